"""The order of passes comes from what each of them declares."""

from __future__ import annotations

import pytest

from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes import ALL_PASSES, PASSES
from neptune_lab.htile_passes.rewrite import Place, in_order, tile_pass


def nothing(program: Program) -> Program:
    return program


def test_the_passes_run_in_their_known_order():
    known = [
        *("unroll_single_iterations", "keep_stored_tiles", "fold_initial_values", "fold_dot_accumulate"),
        *("share_common_tiles", "hoist_invariant_loads", "drop_dead_tiles", "partition_masked_loops"),
        *("convert_positions_as_vectors", "keep_exact", "fold_constant_factors", "scale_after_maximum"),
        *("exponentials_to_base_two", "divide_by_multiplying", "unroll_single_parts", "longest_first"),
    ]
    assert [name for name in PASSES if name in known] == known
    assert "interleave_rows" in set(ALL_PASSES) - set(PASSES)


def test_a_function_may_have_several_places():
    assert PASSES["unroll_single_parts"] is PASSES["unroll_single_iterations"]


A, B = Place("a", nothing), Place("b", nothing, after="a")


@pytest.mark.parametrize(
    ("places", "order"),
    [
        ((B, A), ["a", "b"]),
        ((Place("new", nothing, before="b"), B, A), ["a", "new", "b"]),
        ((Place("new", nothing, before="a"), B, A), ["new", "a", "b"]),
        ((Place("newer", nothing, before="new"), Place("new", nothing, before="b"), B, A), ["a", "newer", "new", "b"]),
        ((Place("last", nothing, after="b"), B, A), ["a", "b", "last"]),
    ],
)
def test_a_new_pass_says_where_it_runs_and_no_other_changes(places: tuple[Place, ...], order: list[str]):
    assert list(in_order(places)) == order


@pytest.mark.parametrize(
    ("places", "match"),
    [
        ((A, B, Place("c", nothing, after="a")), r"two passes have one place: b \(.*test_pass_order\) and c"),
        ((A, B, Place("c", nothing, before="b"), Place("d", nothing, before="b")), "two passes have one place: c"),
        ((A, Place("a", nothing, after="a")), "two passes have one name: a"),
        ((A, Place("c", nothing, after="gone")), "pass c is to run after gone, which is not a pass"),
        ((A, Place("c", nothing, before="gone")), "pass c is to run before gone"),
        ((A, Place("c", nothing, after="c")), "pass c is to run after c"),
    ],
)
def test_places_that_do_not_fit_are_refused(places: tuple[Place, ...], match: str):
    with pytest.raises(TypeError, match=match):
        in_order(places)


def test_a_declaration_leaves_the_function_as_it_is():
    declared = tile_pass(before="b", name="other")(nothing)
    assert declared is nothing
    assert nothing.places == (Place("other", nothing, before="b"),)  # type: ignore[attr-defined]
