"""Pairs that samples share are added up by the kernel of both nests: programs changed in one place are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite
from neptune_lab.htile_to_gluon.joint import joined, pair_sums
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.joint.pair_sums import with_sum
from tests.gluon.pairs import as_chosen, causal, changed, with_bias
from tests.gluon.test_pair_checks import ALWAYS

SUM = "attention_general_backward_d_bias"


@cache
def shared() -> ir.Program:
    """Two samples share a bias of float32."""
    return as_chosen(with_bias(256, 256, 64, 2, dtype=torch.float32)).htile


def added(program: ir.Program) -> bool:
    return with_sum(program, joint_of(program)) is not None


def of_sum(change: Callable[[ir.Store], ir.Store]) -> ir.Program:
    return changed(SUM, change, shared())


def in_values(change: Callable[[ir.TileExpr], ir.TileExpr]) -> ir.Program:
    return of_sum(lambda stmt: replace(stmt, value=rewrite(stmt.value, change)))


def largest(expr: ir.TileExpr) -> ir.TileExpr:
    return replace(expr, op="max") if isinstance(expr, ir.Reduce) else expr


def first_row(expr: ir.TileExpr) -> ir.TileExpr:
    if not isinstance(expr, ir.Access) or expr.tensor != "d_score":
        return expr
    sample, head, _, columns = expr.index
    return replace(expr, index=(sample, head, ir.Int(0), columns))


def first_sample(expr: ir.TileExpr) -> ir.TileExpr:
    if not isinstance(expr, ir.Access) or expr.tensor != "d_score":
        return expr
    return replace(expr, index=(ir.Slice(ir.Int(0), 1, "b1"), *expr.index[1:]))


def beside(target: str) -> ir.Program:
    """Another kernel sums the pairs too, or stores the sum."""
    (kernel,) = (k for k in shared().kernels if k.name == SUM)
    first, last = kernel.body
    assert isinstance(first, ir.Store)
    assert isinstance(last, ir.Store)
    if target == "d_bias":
        first = replace(first, value=ir.Literal(0.0, "float32"))
    body = (first, replace(last, target=replace(last.target, tensor=target)))
    return replace(shared(), kernels=(*shared().kernels, replace(kernel, name="beside", body=body)))


OTHERS: dict[str, Callable[[], ir.Program]] = {
    "the largest": lambda: in_values(largest),
    "of one row": lambda: in_values(first_row),
    "of one sample": lambda: in_values(first_sample),
    "under a condition": lambda: of_sum(lambda stmt: replace(stmt, mask=ALWAYS)),
    "that others read too": lambda: beside("d_bias_2"),
    "that others store too": lambda: beside("d_bias"),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", OTHERS)
def test_only_a_sum_of_all_samples_is_added_up(name: str):
    assert added(shared())
    assert OTHERS[name]() != shared()
    assert not added(OTHERS[name]())


def test_more_samples_than_wait_for_each_other_store_their_pairs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pair_sums, "MOST_SAMPLES", 1)
    assert not added(shared())


@pytest.mark.nightly
def test_pairs_that_a_mask_hides_are_not_added_up():
    """Nobody would store the others."""
    assert not added(as_chosen(with_bias(256, 256, 64, 2, mask=causal, dtype=torch.float32)).htile)


def test_programs_in_any_order_store_their_pairs():
    """The sum would depend on the order in which they come."""
    assert "d_score" in {t.name for t in shared().tensors}
    names = [[k.name for k in joined(shared(), in_order=order).program.kernels] for order in (True, False)]
    assert [SUM in of for of in names] == [False, True]
