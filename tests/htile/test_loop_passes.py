"""Passes that change loops, grids and the order of stores: what they write and leave, and that the numbers stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from htile_programs import CASES, F16, F32, at, attention, causal_rows, lit, op, softmax
from pass_programs import I, J, X, program, same_numbers, store, value_of

from neptune_lab.htile import interpret, to_text, verify
from neptune_lab.htile.nodes import (
    Arith,
    Dot,
    For,
    GridAxis,
    Int,
    Kernel,
    Name,
    Program,
    Reduce,
    Slice,
    Tensor,
)
from neptune_lab.htile.walk import stores
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.interleave_rows import interleave_rows
from neptune_lab.htile_passes.longest_first import longest_first
from neptune_lab.htile_passes.partition_masked_loops import partition_masked_loops
from neptune_lab.htile_passes.unroll_single_iterations import unroll_single_ends, unroll_single_iterations


def test_a_loop_of_one_iteration_is_no_loop():
    at_i = Slice(Arith("*", Name("j0"), Int(16)), 16, "i")
    loop = For(
        "l", "j0", Name("i0"), Arith("+", Name("i0"), Int(1)), (store("s1", at("y", at_i, J), at("x", at_i, J)),), ""
    )
    after = unroll_single_iterations(program(loop))
    assert value_of(after, "s1") == X
    assert not any(isinstance(s, For) for s in after.kernels[0].body)
    same_numbers(program(loop), after)
    twice = program(For("l", "j0", Int(0), Int(2), (store("s1", at("y", at_i, J), at("x", at_i, J)),), ""))
    assert unroll_single_iterations(twice) is twice


def test_a_loop_of_one_iteration_between_two_others_stays_one():
    bounds = [(Int(0), Int(2)), (Int(2), Int(3)), (Int(3), Name("i0"))]
    at_i = Slice(Arith("*", Name("j0"), Int(16)), 16, "i")
    loops = [
        For(f"l{n}", "j0", start, stop, (store(f"s{n}", at("y", at_i, J), at("x", at_i, J)),), "")
        for n, (start, stop) in enumerate(bounds)
    ]
    between = program(*loops)
    assert unroll_single_ends(between) is between
    for ends in (loops[:2], loops[1:]):
        after = unroll_single_ends(program(*ends))
        assert after == unroll_single_iterations(program(*ends))
        assert len([s for s in after.kernels[0].body if isinstance(s, For)]) == 1


def test_the_longest_programs_start_first():
    case = causal_rows()
    parted = apply(partition_masked_loops, case.program).program
    after = longest_first(parted)
    assert after is not parted
    verify(after)
    last = after.kernels[0].grid[0].extent - 1
    assert f"range({last}-i0)" in to_text(after)
    found = interpret(after, case.inputs, dtype="float64")
    for name, expected in case.expected().items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12)
    assert longest_first(after) is after, "now they shrink along the grid"
    alike = attention().program
    assert longest_first(alike) is alike, "all programs are alike"


def test_trip_counts_that_are_not_affine_are_compared_at_both_ends():
    """Key tiles wider than row tiles: (16 i0 + 1) // 64 iterations."""
    at_i = Slice(Arith("*", Name("j0"), Int(16)), 16, "i")
    stop = Arith("//", Arith("+", Arith("*", Name("i0"), Int(63)), Int(2)), Int(64))
    body = (store("s1", at("y", at_i, J), at("x", at_i, J)),)
    before = program(For("l", "j0", Int(0), stop, body, ""), store("s2", at("y", I, J), X))
    after = longest_first(before)
    assert after is not before
    assert "(1-i0)*63" in to_text(after)


def test_rows_of_chunks_start_with_the_longest():
    """Causal in chunks of two tiles, of which the last program is the first of one: 1, 2, 1, 2 and 1 tiles."""
    at_i = Slice(Arith("*", Name("j0"), Int(16)), 16, "i")
    start = Arith("*", Arith("//", Name("i0"), Int(2)), Int(2))
    body = (store("s1", at("y", at_i, J), at("x", at_i, J)),)
    loop = For("l", "j0", start, Arith("+", Name("i0"), Int(1)), body, "")
    before = program(loop, store("s2", at("y", I, J), X))
    (kernel,) = before.kernels
    five = replace(before, kernels=(replace(kernel, grid=(replace(kernel.grid[0], extent=5), *kernel.grid[1:])),))
    assert "range((4-i0)//2*2, 4-i0+1)" in to_text(longest_first(five))


# -- halves -----------------------------------------------------------------------------------------------------


def test_rows_in_two_halves_have_tiles_of_their_own():
    case = attention()
    after = interleave_rows(case.program)
    verify(after)
    loop = next(s for s in after.kernels[0].body if isinstance(s, For))
    assert [s.node_id[-2:] for s in loop.body[:2]] == ["/a", "/b"], "both first products, then one half at a time"
    rest = [s.node_id[-1] for s in loop.body[2:]]
    assert rest == sorted(rest)
    rows = [s.target.index[2] for s in stores(loop.body) if s.target.tensor.startswith("acc")]
    assert rows
    assert all(isinstance(part, Slice) and part.extent == 32 for part in rows)
    found = interpret(after, case.inputs, dtype="float64")
    for name, expected in case.expected().items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12)


def test_halves_need_products_and_independent_rows():
    case = softmax()
    assert interleave_rows(case.program) is case.program
    folded = Slice(Int(0), 64, "r")
    tensors = (
        Tensor("a", (64, 64), F16, "input"), Tensor("o", (64,), F32, "output"),
        Tensor("t", (64, 64), F32, "chip"), Tensor("c", (64,), F32, "chip"),
    )  # fmt: skip
    column = Slice(Int(0), 64, "c")
    body = (
        store("s0", at("c", column), lit(0.0)),
        For(
            "l", "n", Int(0), Int(2),
            (
                store("s1", at("t", folded, column), Dot(at("a", folded, column), at("a", column, column))),
                store("s2", at("c", column), op("add", at("c", column), Reduce("sum", at("t", folded, column), 0))),
            ),
            "",
        ),
        store("s3", at("o", column), at("c", column)),
    )  # fmt: skip
    whole = Program("p", tensors, ("a",), ("o",), (Kernel("k", "p", (GridAxis("i0", 1),), body),))
    verify(whole)
    assert interleave_rows(whole) is whole, "the sum runs over the rows"


@pytest.mark.parametrize("name", CASES)
def test_halves_keep_the_meaning(name):
    case = CASES[name]()
    after = interleave_rows(case.program)
    verify(after)
    found = interpret(after, case.inputs, dtype="float64")
    for output, expected in case.expected().items():
        np.testing.assert_allclose(found[output], expected, rtol=1e-12, atol=1e-12)
