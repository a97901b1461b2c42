"""No element of a tile of positions lies outside the interval that is found for it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neptune_lab.htile.bounds import Interval
from neptune_lab.htile.loop_runs import MOST_PROGRAMS, always_runs
from neptune_lab.htile.nodes import (
    Arith,
    Elementwise,
    For,
    Gather,
    Int,
    Iota,
    Literal,
    Name,
    NewAxis,
    Scalar,
    Slice,
    TileExpr,
)
from neptune_lab.htile.tile_bounds import tile_interval
from neptune_lab.htile.walk import subexpressions

OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
QUOTIENTS = {"floordiv": np.floor_divide, "floormod": np.mod}
ROWS, COLUMNS = 5, 3
small = st.integers(-9, 9)


def tiles() -> st.SearchStrategy[TileExpr]:
    """Tiles of int32 from two positions, the program i and constants."""
    starts = st.builds(lambda factor, more: Arith("+", Arith("*", Name("i"), Int(factor)), Int(more)), small, small)
    rows = starts.map(lambda start: Iota((Slice(start, ROWS, "r"), NewAxis())))
    columns = starts.map(lambda start: Iota((NewAxis(), Slice(start, COLUMNS, "c"))))
    leaves = rows | columns | starts.map(Scalar) | small.map(lambda value: Literal(value, "int32"))
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(lambda op, a, b: Elementwise(op, (a, b), "int32"), st.sampled_from([*OPERATIONS]), inner, inner)
            | st.builds(
                lambda op, a, by: Elementwise(op, (a, Literal(by, "int32")), "int32"),
                st.sampled_from([*QUOTIENTS]),
                inner,
                st.integers(1, 9),
            )
        ),
        max_leaves=5,
    )


def values(expr: TileExpr, i: int, lanes: int) -> np.ndarray:
    """The elements of a tile in program i; a position has `lanes` elements more."""
    match expr:
        case Literal(value=value):
            return np.array(int(value))
        case Scalar(value=Arith(a=Arith(b=Int(factor)), b=Int(more))):
            return np.array(i * factor + more)
        case Iota(index=index):
            (part,) = (part for part in index if isinstance(part, Slice))
            assert isinstance(part.start, Arith)
            start = int(values(Scalar(part.start), i, lanes))
            own = start + np.arange(part.extent + lanes)
            return own[:, None] if isinstance(index[1], NewAxis) else own[None, :]
        case Elementwise(op=op, args=(a, b)):
            return {**OPERATIONS, **QUOTIENTS}[op](values(a, i, lanes), values(b, i, lanes))
        case _:
            raise AssertionError(expr)


@given(tile=tiles(), programs=st.integers(1, 4), lanes=st.integers(0, 3))
def test_no_element_is_outside(tile: TileExpr, programs: int, lanes: int):
    found = tile_interval(tile, {"i": Interval(0, programs - 1)}, lambda extent: extent + lanes)
    if found is None:  # (quotients are followed from 0 on)
        assert any(isinstance(e, Elementwise) and e.op in QUOTIENTS for e in subexpressions(tile))
        return
    every = [values(tile, i, lanes) for i in range(programs)]
    assert found.lo <= min(v.min() for v in every)
    assert found.hi >= max(v.max() for v in every)


def test_the_ends_of_a_diagonal_are_exact():
    rows = Iota((Slice(Arith("*", Name("i"), Int(4)), 4, "r"), NewAxis()))
    columns = Iota((NewAxis(), Slice(Int(0), 8, "c")))
    diagonal = Elementwise("sub", (rows, columns), "int32")
    assert tile_interval(diagonal, {"i": Interval(0, 1)}) == Interval(-7, 7)
    assert tile_interval(diagonal, {"i": Interval(0, 1)}, lambda extent: 16) == Interval(-15, 19)


def test_what_depends_on_values_or_may_leave_int32_is_not_known():
    table = Gather("x", (Iota((Slice(Int(0), 4, "r"),)),))
    assert tile_interval(Elementwise("add", (table, Literal(1, "int32")), "int32"), {}) is None
    large = Literal(2**30, "int32")
    assert tile_interval(Elementwise("mul", (large, Literal(2, "int32")), "int32"), {}) is None
    assert tile_interval(Elementwise("sub", (large, large), "int32"), {}) == Interval(0, 0)
    assert tile_interval(Elementwise("max", (large, large), "int32"), {}) is None


def test_a_loop_without_a_tile_in_one_program_does_not_always_run():
    """Its bounds are computed in every program, since no bound of a quotient says so."""
    stop = Arith("-", Arith("//", Arith("*", Name("i"), Int(-5)), Int(3)), Int(-6))  # 6, 4, 2, 1, -1
    loop = For("4", "j", Int(0), stop, (), "row")
    assert always_runs(loop, {"i": Interval(0, 3)})
    assert not always_runs(loop, {"i": Interval(0, 4)})
    assert not always_runs(loop, {}), "nothing is known of the program"
    assert not always_runs(loop, {"i": Interval(0, MOST_PROGRAMS)})


def test_the_ends_of_places_in_pages_are_exact():
    """Positions from 0 to 511, and a lane more, in pages of 16."""
    keys = Iota((Slice(Arith("*", Name("i"), Int(64)), 64, "j"),))
    one = [Elementwise(op, (keys, Literal(16, "int32")), "int32") for op in ("floordiv", "floormod")]
    for extent, last in ((64, 31), (65, 32)):
        found = [tile_interval(tile, {"i": Interval(0, 7)}, lambda _, extent=extent: extent) for tile in one]
        assert found == [Interval(0, last), Interval(0, 15)]
    few = Elementwise("floormod", (keys, Literal(1000, "int32")), "int32")
    assert tile_interval(few, {"i": Interval(0, 7)}) == Interval(0, 511)
    assert tile_interval(one[0], {"i": Interval(-1, 7)}) is None
