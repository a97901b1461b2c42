"""What the verifier refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from htile_programs import F16, F32, NEW, at, lit, op, tile

from neptune_lab.errors import TileError
from neptune_lab.htile import verify
from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    Gather,
    GridAxis,
    Grouped,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    Permute,
    Program,
    Reduce,
    Slice,
    Stmt,
    Store,
    Tensor,
    TileExpr,
)  # fmt: skip

TENSORS = (
    Tensor("x", (8, 8), F32, "input"),
    Tensor("h", (8, 8), F16, "input"),
    Tensor("y", (8, 8), F32, "output"),
    Tensor("g", (8, 8), F32, "global"),
    Tensor("t", (8, 8), F32, "chip"),
    Tensor("row", (8,), F32, "chip"),
)
I, J = tile("i0", 4, "i"), Slice(Int(0), 8, "j")
GRID = (GridAxis("i0", 2),)
X, Y, T = at("x", I, J), at("y", I, J), at("t", I, J)


def program(*body: Stmt, more: Iterable[Kernel] = (), grid=GRID) -> Program:
    return Program("p", TENSORS, ("x", "h"), ("y",), (Kernel("k", "first", grid, body), *more))


def store(value: TileExpr, target: Access = Y, node: str = "s9", mask: TileExpr | None = None) -> Store:
    return Store(node, target, value, "block", mask)


def loop(*body: Stmt) -> For:
    return For("l", "j0", Int(0), Int(2), body, "block")


def refused(broken: Program, match: str, node: str | None = "s9") -> None:
    with pytest.raises(TileError, match=match) as caught:
        verify(broken)
    assert caught.value.node == node


def test_a_valid_program_passes():
    verify(program(store(X)))


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (at("nothing", I), r"tensor 'nothing' is not declared; declared are x, h, y"),
        (at("x", I), r"x of shape \(8, 8\) is accessed with 1 indices; expected 2"),
        (at("x", tile("nowhere", 4, "i"), J), r"index variable 'nowhere' is not bound here; bound are i0"),
        (Reduce("sum", X, 2), r"reduce\(sum\) over dim 2 of a tile of shape \(4, 8\)"),
        (Grouped(X, 3), r"groups of 3 neighbours of a tile of shape \(4, 8\); expected a divisor"),
        (Permute(X, (0, 0)), r"permute order \(0, 0\) of a tile of shape \(4, 8\)"),
        (Permute(X, (1, 0)), r"value of shape \(8, 4\) stored to y\[i0\*4:i0\*4\+4, 0:8\]; expected shape \(4, 8\)"),
        (Reduce("sum", X, 1), r"value of shape \(4,\) stored to y.*; expected shape \(4, 8\)"),
        (op("add", X, at("x", J, I)), r"operands of shapes \(4, 8\) and \(8, 4\) do not broadcast"),
        (op("add", X, at("x", Name("i0"), J)), r"differ in rank; expected equal ranks\n  help: insert NewAxis"),
        (op("add", X, at("h", I, J)), r"add\(float32, float16\) -> float32; expected .* of the result's dtype"),
        (at("h", I, J), r"value of dtype float16 stored to y.*; expected float32\n  help: make the conversion a Cast"),
        (op("lt", X, X), r"lt\(float32, float32\) -> float32; expected operands of one dtype and a bool result"),
        (op("div", Literal(1, "int32"), Literal(2, "int32"), dtype="int32"), r"div.*expected float operands"),
        (op("frobnicate", X), r"'frobnicate' is not an elementwise operator"),
        (op("exp", X, X), r"exp has 2 operands; expected 1"),
        (Cast(X, "float31"), r"unknown dtype 'float31'"),
        (Dot(X, X), r"dot of shapes \(4, 8\) and \(4, 8\); expected \[..., m, k\] and \[..., k, n\]"),
        (Dot(at("h", I, J), at("x", J, J)), r"dot of float16 and float32; expected two tiles of one dtype"),
        (Dot(at("x", Name("i0"), J), X), r"dot of shapes \(8,\) and \(4, 8\); expected two tiles of one rank"),
        (Dot(X, at("x", J, J), at("x", J, J)), r"dot accumulates \(4, 8\) into a tile of shape \(8, 8\)"),
        (Iota((I, J)), r"Iota has 2 slices; expected exactly one"),
        (Elementwise("and", (X, X), "bool"), r"and\(float32, float32\) -> bool; expected bool operands"),
        (at("x", Slice(Arith("//", Name("i0"), Int(0)), 4, "i"), J), r"the divisor must be positive"),
        (T, r"on-chip tile t\[i0\*4:i0\*4\+4, 0:8\] is read before any store"),
        (at("g", I, J), r"global g is read before any kernel stores to it"),
    ],
)  # fmt: skip
def test_refused_values(value, match):
    refused(program(store(value)), match)


def test_refused_targets_and_masks():
    refused(program(store(lit(0.0), at("x", I, J))), "input x is stored to")
    refused(program(store(lit(0.0), at("row", I, NEW))), "is stored to with NewAxis")
    refused(program(store(X, mask=X)), r"mask of dtype float32")
    refused(program(store(X, mask=Literal(True, "bool"), target=at("y", I, Int(0)))), r"value of shape \(4, 8\)")


def test_on_chip_tiles_hold_one_region():
    j = tile("j0", 4, "j")
    refused(
        program(store(X, T, "s1"), store(at("t", J, J), at("g", J, J))), r"read as t\[0:8, 0:8\] but holds t\[i0\*4"
    )
    inside = loop(store(at("x", I, j), at("t", I, j), "s1"))
    refused(program(inside, store(at("t", I, tile("i0", 4, "j")), at("y", I, j))), "read before any store|not bound")
    # Written in an iteration, read at the top of the next one.
    stale = loop(store(at("t", I, j), at("g", I, j)), store(at("x", I, j), at("t", I, j), "s1"))
    refused(program(stale), "read before any store")
    # A loop may not run: a tile holds one region before it and another one after it.
    moved = loop(store(at("x", J, J), at("t", J, J), "s2"))
    refused(program(store(X, T, "s1"), moved, store(at("t", J, J), at("y", J, J))), "read before any store")


def test_a_loop_may_reuse_a_tile_name():
    j, k = tile("j0", 4, "j"), tile("j1", 4, "j")
    first = loop(store(at("x", I, j), at("t", I, j), "a1"), store(at("t", I, j), at("y", I, j), "a2"))
    pair = (store(at("x", I, k), at("t", I, k), "b1"), store(at("t", I, k), at("y", I, k), "b2"))
    second = For("m", "j1", Int(0), Int(2), pair, "")
    verify(program(first, second))


def test_refused_structure():
    refused(program(store(X), store(X)), "node id 's9' is used twice")
    refused(program(store(X), loop(loop(store(X, node="s1")))), "node id 'l' is used twice", "l")
    inner = For("m", "i0", Int(0), Int(2), (store(X),), "block")
    refused(program(inner), "loop variable i0 is bound already", "m")
    refused(
        program(store(X), grid=tuple(GridAxis(f"i{n}", 2) for n in range(4))), "4 grid axes; expected at most 3", "k"
    )
    refused(program(store(X), grid=(GridAxis("i0", 0),)), "grid axis i0 has extent 0", "k")
    refused(program(store(X, at("g", I, J))), "output y is never stored", None)
    other = Kernel("k2", "second", GRID, (Store("s5", at("g", I, J), T, "b"),))
    refused(
        program(store(X, T, "s1"), store(X), more=(other,)),
        r"on-chip tile t is used in kernel second and in first",
        "s5",
    )
    same = Kernel("k2", "first", GRID, (Store("s5", at("g", I, J), X, "b"),))
    refused(program(store(X), more=(same,)), "two kernels are called first", "k2")


def test_refused_declarations():
    def with_tensors(*tensors: Tensor) -> Program:
        return Program("p", tensors, ("x",), ("y",), ())

    x, y = TENSORS[0], TENSORS[2]
    refused(with_tensors(x, y, x), "tensor x is declared twice", None)
    refused(with_tensors(x, y, Tensor("a b", (1,), F32, "chip")), "'a b' is not a Python identifier", None)
    refused(with_tensors(x, y, Tensor("z", (0,), F32, "chip")), r"tensor z has shape \(0,\)", None)
    refused(with_tensors(x, y, Tensor("z", (1,), "real", "chip")), "tensor z has dtype 'real'", None)
    refused(with_tensors(x, y, Tensor("z", (1,), F32, "input")), r"lists the inputs \('x',\)", None)


# -- gathers -------------------------------------------------------------------------------------------------

ROWS, COLUMNS = Iota((Slice(Int(0), 4, "i"), NEW)), Iota((NEW, Slice(Int(0), 8, "j")))


def test_a_gather_by_two_positions_is_legal():
    verify(program(store(Gather("x", (ROWS, COLUMNS)))))


@pytest.mark.parametrize(
    ("gather", "match"),
    [
        (Gather("x", (ROWS,)), "gathered by 1 indices; expected 2"),
        (Gather("x", (Cast(ROWS, F32), COLUMNS)), "gathered by an index of dtype float32; expected int32"),
        (Gather("t", (ROWS, COLUMNS)), "t is gathered element by element in the kernel that computes it"),
        (Gather("y", (ROWS, COLUMNS)), "y is gathered element by element in the kernel that computes it"),
        (Gather("g", (ROWS, COLUMNS)), "global g is gathered before any kernel stores to it"),
    ],
)
def test_gathers_that_are_refused(gather: Gather, match: str):
    refused(program(store(gather)), match)
