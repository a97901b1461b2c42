"""keep_stored_tiles and share_common_tiles: what they do, and what they must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from htile_programs import F32, NEW, at, lit, op, tile

from neptune_lab.errors import TileError
from neptune_lab.htile import to_text, verify
from neptune_lab.htile.nodes import Arith, For, GridAxis, Int, Kernel, Name, Program, Slice, Stmt, Store, Tensor
from neptune_lab.htile_passes import keep_stored_tiles, share_common_tiles

I, D = tile("i0", 16, "i"), Slice(Int(0), 8, "d")
TENSORS = (
    Tensor("x", (32,), F32, "input"), Tensor("w", (32, 8), F32, "input"), Tensor("y", (32,), F32, "output"),
    Tensor("z", (32, 8), F32, "output"), Tensor("a", (32,), F32, "chip"), Tensor("b", (32,), F32, "chip"),
    Tensor("s", (32,), F32, "chip"), Tensor("o", (32, 8), F32, "chip"),
)  # fmt: skip
X, W, Y, Z = at("x", I), at("w", I, D), at("y", I), at("z", I, D)
A, B, S, O = at("a", I), at("b", I), at("s", I), at("o", I, D)
A2, B2 = at("a", I, NEW), at("b", I, NEW)


def program(*body: Stmt) -> Program:
    """The body as the first kernel; a second one fills both outputs, since every output must be stored."""
    fill = (store("fill_y", Y, X), store("fill_z", Z, W))
    grid = (GridAxis("i0", 2),)
    out = Program("p", TENSORS, ("x", "w"), ("y", "z"), (Kernel("k", "p", grid, body), Kernel("f", "f", grid, fill)))
    verify(out)
    return out


def store(node: str, target, value) -> Store:
    return Store(node, target, value, f"block_{node}")


def nodes(after: Program) -> list[str]:
    return [stmt.node_id for stmt in after.kernels[0].body]


def test_what_is_stored_and_read_again_stays_on_chip():
    after = keep_stored_tiles(program(store("s1", Y, op("exp", X)), store("s2", Z, op("mul", at("y", I, NEW), W))))
    verify(after)
    assert nodes(after) == ["s1/chip", "s1", "s2"]
    assert "z[i0*16:i0*16+16, 0:8] = y_chip[i0*16:i0*16+16, NewAxis] *" in to_text(after)


def test_an_output_that_a_loop_carries_is_stored_once():
    loop = For("l1", "t", Int(0), Int(4), (store("s2", Y, op("add", Y, X)),), "block")
    after = keep_stored_tiles(program(store("s1", Y, lit(0.0)), loop))
    verify(after)
    assert nodes(after) == ["s1/chip", "l1", "s2"]
    assert to_text(after).count(" y[") == 2  # here, and in the second kernel


def test_an_output_whose_region_moves_with_the_loop_is_stored_in_it():
    moving = Slice(Arith("*", Name("t"), Int(8)), 8, "i")
    body = (store("s1", at("y", moving), lit(1.0)), store("s2", at("z", moving, D), at("y", moving, NEW)))
    after = keep_stored_tiles(program(For("l1", "t", Int(0), Int(4), body, "block")))
    verify(after)
    (loop,) = after.kernels[0].body
    assert isinstance(loop, For)
    assert [s.node_id for s in loop.body] == ["s1/chip", "s1", "s2"]


def test_what_an_earlier_kernel_stored_is_loaded_before_the_loop_that_adds_to_it():
    adds = For("l1", "t", Int(0), Int(4), (store("s1", Y, op("add", Y, X)),), "block")
    start = Kernel("k0", "start", (GridAxis("i0", 2),), (store("s0", Y, lit(0.0)),))
    before = program(adds)
    after = keep_stored_tiles(replace(before, kernels=(start, *before.kernels)))
    verify(after)
    load, loop, out = after.kernels[1].body
    assert "y_chip[i0*16:i0*16+16] = y[i0*16:i0*16+16]" in to_text(after)
    assert [stmt.node_id for stmt in (load, loop, out)] == ["tile:y/load@p", "l1", "s1"]


def test_nothing_read_again_is_the_same_object():
    before = program(store("s1", Y, op("exp", X)))
    assert keep_stored_tiles(before) is before


def test_another_region_read_back_is_refused():
    other = Slice(Int(0), 16, "i")
    with pytest.raises(TileError, match=r"(?s)'y'.*kernel of its own"):
        keep_stored_tiles(program(store("s1", Y, X), store("s2", Z, at("y", other, NEW))))


def start() -> tuple[Stmt, ...]:
    return store("a", A, X), store("b", B, lit(0.0)), store("s", S, lit(1.0)), store("o", O, lit(1.0))


def test_a_repair_term_is_computed_once_for_all_ranks():
    one, two = op("exp", op("sub", A, B)), op("exp", op("sub", A2, B2))
    after = share_common_tiles(program(*start(), store("n", S, op("mul", one, S)), store("m", O, op("mul", two, O))))
    verify(after)
    text = to_text(after)
    assert nodes(after) == ["a", "b", "s", "o", "n/repair", "n", "m"]
    assert text.count("exp(") == 1
    assert "repair[0:16, NewAxis] * o[" in text


def test_a_guard_is_named_after_what_it_guards():
    def guard(x):
        return op("where", op("eq", x, lit(0.0), dtype="bool"), lit(1.0), x)

    after = share_common_tiles(
        program(*start(), store("n", S, op("div", S, guard(A))), store("m", O, op("div", O, guard(A2))))
    )
    verify(after)
    assert "n/a_finite" in nodes(after)


def test_a_tile_written_between_two_uses_keeps_them_apart():
    one = op("exp", op("sub", A, B))
    before = program(*start(), store("n", S, one), store("c", B, A), store("m", O, op("exp", op("sub", A2, B2))))
    assert share_common_tiles(before) is before


def test_reads_of_global_memory_and_cheap_arithmetic_are_left_alone():
    value = op("add", op("exp", X), op("sub", A, B))
    before = program(*start(), store("n", Y, value), store("m", S, value))
    assert share_common_tiles(before) is before
