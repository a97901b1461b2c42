"""Which sums of rows may be left to the threads of a row until the loop is over."""

from __future__ import annotations

import pytest

from neptune_lab.htile import nodes as ir
from neptune_lab.htile_to_gluon.partial_sums import summed_after_loop
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure

ROWS = (ir.Slice(ir.Int(0), 64, "i"),)
TILE = (*ROWS, ir.Slice(ir.Int(0), 128, "j"))


def row(name: str) -> ir.Access:
    return ir.Access(name, ROWS)


def store(name: str, value: ir.TileExpr) -> ir.Store:
    return ir.Store("n0", row(name), value, "")


def float32(op: str, *args: ir.TileExpr) -> ir.Elementwise:
    return ir.Elementwise(op, args, "float32")


SUM = store("s", ir.Reduce("sum", ir.Access("e", TILE), 1))
TOTAL = store("total", float32("add", float32("mul", row("repair"), row("total")), row("s")))


def structure(*middle: ir.Store, start: float = 0.0, after: tuple[ir.Store, ...] = ()) -> Structure:
    part = LoopPart(None, (), middle, (), after, True)
    before = (store("total", ir.Literal(start, "float32")),)
    return Structure(128, {}, before, part, (part,), False, ())


def test_a_total_that_only_grows():
    assert summed_after_loop(structure(SUM, TOTAL)) == {"s": "total"}


def test_the_terms_may_change_places():
    other = store("total", float32("add", row("s"), float32("mul", row("total"), row("repair"))))
    assert summed_after_loop(structure(SUM, other)) == {"s": "total"}


@pytest.mark.parametrize(
    "case",
    {
        "the total is read": structure(SUM, TOTAL, store("ratio", float32("div", row("total"), row("repair")))),
        "the sum is read": structure(SUM, TOTAL, store("ratio", float32("div", row("s"), row("repair")))),
        "read at the end of a tile": structure(SUM, TOTAL, after=(store("kept", row("total")),)),
        "it starts at another value": structure(SUM, TOTAL, start=1.0),
        "the factor reads the total": structure(
            SUM, store("total", float32("add", float32("mul", float32("exp2", row("total")), row("total")), row("s")))
        ),
        "no sum": structure(store("s", ir.Reduce("max", ir.Access("e", TILE), 1)), TOTAL),
        "a difference": structure(
            SUM, store("total", float32("sub", float32("mul", row("repair"), row("total")), row("s")))
        ),
    }.items(),
    ids=lambda case: case[0],
)
def test_other_sums(case: tuple[str, Structure]):
    assert summed_after_loop(case[1]) == {}
