"""Where rows begin in memory, and slices that begin at a multiple of 16 bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neptune_lab.htile.aligned import behind_the_head, head_of, steps_of
from neptune_lab.htile.nodes import Access, Arith, IndexExpr, Int, Name, Slice, Tensor
from neptune_lab.htile.walk import evaluate


def plus(a: IndexExpr, b: IndexExpr) -> IndexExpr:
    return Arith("+", a, b)


@given(st.integers(1, 300), st.integers(1, 5), st.sampled_from([2, 4, 8, 16]), st.integers(0, 50), st.integers(0, 4))
def test_the_first_multiple_of_a_block_is_behind_the_head(columns: int, rows: int, block: int, b: int, i: int):
    tensor = Tensor("x", (60, 5, columns), "float16", "input", (7 * columns * rows, columns, 1))
    access = Access("x", (Name("b"), Name("i"), Slice(Int(0), columns, "j")))
    head = head_of(access, steps_of(tensor), block)
    begins = sum(n * step for n, step in zip((b, i), steps_of(tensor), strict=False))
    length = 0 if head is None else evaluate(head, {"b": b, "i": i})
    assert 0 <= length < block
    assert (begins + length) % block == 0
    if head is None:
        return
    moved = Access("x", (Name("b"), Name("i"), Slice(plus(head, Int(3 * block)), 16, "j")))
    assert behind_the_head(moved, steps_of(tensor)) == (block, Int(3 * block))


X = Tensor("x", (9, 1003), "float16", "input")
HEAD = Arith("%", Arith("*", Name("i"), Int(5)), Int(8))


@pytest.mark.parametrize(
    ("row", "start", "found"),
    [
        (Name("i"), HEAD, (8, Int(0))),
        (Name("i"), plus(HEAD, Arith("*", Name("j0"), Int(64))), (8, Arith("*", Name("j0"), Int(64)))),
        (Name("i"), plus(HEAD, Int(12)), None),  # between two blocks
        (Name("i"), plus(HEAD, Name("j0")), None),
        (Name("k"), HEAD, None),  # the head of another row
        (Name("i"), Int(8), None),
        (Name("i"), Arith("%", Arith("*", Name("i"), Int(3)), Int(8)), None),
    ],
)
def test_a_slice_behind_the_head_of_its_row(row: IndexExpr, start: IndexExpr, found: object):
    assert behind_the_head(Access("x", (row, Slice(start, 64, "j"))), steps_of(X)) == found


def test_rows_that_begin_at_a_multiple_have_no_head():
    tensor = Tensor("x", (9, 1000), "float16", "input")
    assert head_of(Access("x", (Name("i"), Slice(Int(0), 1000, "j"))), steps_of(tensor), 8) is None


def test_a_tile_of_several_rows_has_no_head():
    access = Access("x", (Slice(Int(0), 2, "i"), Slice(HEAD, 64, "j")))
    assert behind_the_head(access, steps_of(X)) is None
