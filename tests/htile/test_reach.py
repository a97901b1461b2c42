"""How far an index reaches in loops whose ends depend on each other: never less than it does, exact for splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import neptune_lab as nl
from neptune_lab.htile.bounds import Interval, interval, loop_interval
from neptune_lab.htile.nodes import Arith, For, IndexExpr, Int, Name
from neptune_lab.htile.reach import highest
from neptune_lab.htile.walk import evaluate
from neptune_lab.operators import attention

SMALL = st.integers(-5, 9)


def terms(*names: str) -> st.SearchStrategy[IndexExpr]:
    """Indices of these variables."""
    leaves = SMALL.map(Int) | st.sampled_from([Name(name) for name in names])

    def joined(inner: st.SearchStrategy[IndexExpr]) -> st.SearchStrategy[IndexExpr]:
        divided = st.builds(Arith, st.sampled_from(["//", "%"]), inner, st.integers(1, 7).map(Int))
        return st.builds(Arith, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner) | divided

    return st.recursive(leaves, joined, max_leaves=6)


@pytest.mark.nightly
@given(
    grid=st.integers(1, 5),
    size=st.integers(1, 40),
    outer=st.tuples(terms("g", "n"), terms("g", "n")),
    inner=st.tuples(terms("g", "n", "a"), terms("g", "n", "a")),
    index=terms("g", "n", "a", "b"),
)
def test_no_value_is_above_it(grid, size, outer, inner, index):
    """Two loops in each other, and an index, all drawn; every value is looked at."""
    loops = [For("a", "a", *outer, (), "k"), For("b", "b", *inner, (), "k")]
    env = {"g": Interval(0, grid - 1), "n": Interval(size, size)}
    for loop in loops:
        env[loop.var] = loop_interval(loop, env)
    most = highest(index, env, loops)
    assert most <= interval(index, env).hi
    for g in range(grid):
        at = {"g": g, "n": size}
        for a in range(evaluate(outer[0], at), evaluate(outer[1], at))[:50]:
            for b in range(evaluate(inner[0], {**at, "a": a}), evaluate(inner[1], {**at, "a": a}))[:50]:
                assert evaluate(index, {**at, "a": a, "b": b}) <= most


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 200), st.integers(1, 16))
def test_it_is_exact_for_the_tiles_of_splits(splits: int, each: int, tiles: int, width: int):
    js, j0 = Name("js"), Name("j0")
    stop = Arith("min", Int(each), Arith("-", Int(tiles), Arith("*", js, Int(each))))
    loop = For("j0", "j0", Int(0), stop, (), "k")
    index = Arith("+", Arith("*", js, Int(each * width)), Arith("*", j0, Int(width)))
    env = {"js": Interval(0, splits - 1)}
    env["j0"] = loop_interval(loop, env)
    assert highest(index, env, [loop]) == (min(splits * each, tiles) - 1) * width


@pytest.mark.nightly
def test_whole_tiles_of_a_split_are_loaded_without_a_mask():
    """45 keys in 2 splits of 3 tiles of 8: five tiles are whole, the sixth has 5 keys."""
    operator = attention.full(1, 1, q_len=1, kv_len=45, head_dim=16)
    kernel = nl.compile(operator, template="split_k_update", config=nl.SplitKConfig(splits=2, block_kv=8))
    interior, _, edge = kernel.source.partition("# interior")[2].partition("# right edge")
    assert interior.count("tl.load(") == edge.partition("\n\n")[0].count("mask=") == 2
    assert "mask=" not in interior
    assert kernel.relative_error() < 1e-3


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 16))
def test_it_is_exact_for_tiles_that_are_dealt_to_splits(splits: int, more: int, width: int):
    """All splits have a tile, and the last turn may be short."""
    js, j0, tiles = Name("js"), Name("j0"), splits + more
    stop = Arith("//", Arith("-", Int(tiles + splits - 1), js), Int(splits))
    loop = For("j0", "j0", Int(0), stop, (), "k")
    index = Arith("+", Arith("*", js, Int(width)), Arith("*", j0, Int(splits * width)))
    env = {"js": Interval(0, splits - 1)}
    env["j0"] = loop_interval(loop, env)
    assert highest(index, env, [loop]) == (tiles - 1) * width
