"""Memory statements hoisted through the graph: the paper's figures, and counts against loops that are really run."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.autotune.dag import executions, flow, place, text, trip_counts, without_dead_loops
from neptune_lab.autotune.expressions import Tiling, gemm_chain, tilings

CHAIN = gemm_chain(64, 64, 64, 64)
FOUR = {"m": 4, "n": 4, "k": 4, "h": 4}
EXPRESSIONS = tilings(CHAIN)


@pytest.mark.parametrize(
    ("expression", "placed"),
    [
        # MCFuser, section III-B: S_E leaves n, and stands in h.
        (Tiling(tuple("mhnk")), "mh(n(k(L_A,L_B,C_C),L_D,C_E),S_E)"),
        (Tiling(tuple("mhkn")), "mh(k(L_A,n(L_B,C_C,L_D,C_E)),S_E)"),
        (Tiling(("m", "n"), (("k",), ("h",))), "m(n(k(L_A,L_B,C_C),h(L_D,C_E)),h(S_E))"),
    ],
)
def test_statements_stand_in_the_innermost_loop_that_they_need(expression, placed):
    assert text(place(CHAIN, expression, FOUR)) == placed


def test_a_dead_loop_lets_a_load_move_out():
    """MCFuser, Figures 4(b) and 5(b): with one tile of k, L_A is executed h * n times less."""
    expression, one = Tiling(tuple("mhnk")), {**FOUR, "k": 1}
    before, after = place(CHAIN, expression, FOUR), place(CHAIN, expression, one)
    assert text(after) == "m(L_A,h(n(L_B,C_C,L_D,C_E),S_E))"
    assert executions(before[0], FOUR) // FOUR["k"] == executions(after[0], one) * FOUR["h"] * FOUR["n"]


def test_on_the_grid_every_block_loads_for_itself():
    placed = place(CHAIN, Tiling(tuple("mhnk")), {**FOUR, "k": 1}, grid=("m", "h"))
    assert text(placed) == "mh(L_A,n(L_B,C_C,L_D,C_E),S_E)"


def test_only_dead_loops_leave_the_graph():
    graph = flow(CHAIN, Tiling(tuple("mhnk")))
    assert without_dead_loops(graph, ()) is graph
    left = without_dead_loops(graph, ["n"])
    assert "n" not in left
    assert left.edges["h", "k"]["kind"] == "nest"


def test_trip_counts_round_up():
    assert trip_counts(gemm_chain(100, 64, 64, 64), {"m": 32, "n": 64, "k": 128}) == {"m": 4, "n": 1, "k": 1, "h": 64}


@pytest.mark.nightly
@settings(max_examples=60)
@given(st.sampled_from(EXPRESSIONS), st.tuples(*[st.integers(1, 3)] * 4))
def test_loads_are_counted_as_a_program_that_keeps_one_tile_would_load(expression, counts):
    """Runs the deep loops one by one: a load happens where the tile is another one than at the iteration before.

    That is the least that any placement outside conditionals can do, so a load inside its innermost related loop is
    executed that often, or more where a loop between repeats the same walk."""
    trips = dict(zip("mnkh", counts, strict=True))
    order = expression.nested
    for stmt in place(CHAIN, expression, trips):
        related = stmt.tensor.loops
        needed = prod(trips[loop] for loop in related)
        assert executions(stmt, trips) >= needed
        if stmt.kind != "L" or not expression.deep:
            continue
        seen, changes = None, 0
        for values in product(*(range(trips[loop]) for loop in order)):
            tile = tuple(v for loop, v in zip(order, values, strict=True) if loop in related)
            changes, seen = changes + (tile != seen), tile
        walked = executions(stmt, trips)
        assert changes <= walked
        inner = [loop for loop in order if loop in related and trips[loop] > 1]
        assert walked == (prod(trips[x] for x in order[: order.index(inner[-1]) + 1]) if inner else 1)
