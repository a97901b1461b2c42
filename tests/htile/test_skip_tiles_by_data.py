"""Tiles that the values of an input hide are skipped, and no others: the meaning stays, whatever the values are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from by_turns import in_turn
from htile.data_masks import COLUMNS, IDS, MASKS, ROWS, TILE, TILES, programs, run
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.errors import TileError
from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile.bounds import grid_env
from neptune_lab.htile.nodes import (
    Arith,
    Cast,
    Elementwise,
    For,
    FoundTiles,
    GridAxis,
    Int,
    Name,
    Program,
    TileExpr,
)
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.input_comparisons import own_axes
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProver
from neptune_lab.htile_passes.rewrite import rewrite_expressions
from neptune_lab.htile_passes.skip_tiles_by_data import (
    MOST_TILES,
    found_tiles,
    hiding_comparison,
    skip_tiles_by_data,
)

FORMS = "skip_tiles_by_data", "skip_any_tiles_by_data"


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("mask", "form"), in_turn(MASKS, FORMS, every=2, first=1))
@settings(max_examples=8)
@given(ids=IDS, rising=st.booleans())
def test_the_meaning_stays(mask: str, form: str, ids: list[int], rising: bool):
    before, after = programs(mask, form=form)
    assert after is not before
    rows, columns = np.array(ids[:ROWS], "int32"), np.array(ids[ROWS:], "int32")
    if rising:
        rows, columns = np.sort(rows), np.sort(columns)
    wanted, most = run(before, rows, columns)
    got, visited = run(after, rows, columns)
    np.testing.assert_array_equal(got, wanted)
    assert visited <= most


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", FORMS)
def test_only_the_tiles_of_the_own_document_are_visited(form: str):
    """Documents of 8 columns each, and of 4 rows: a program of 8 rows has two documents; the last has half its rows."""
    rows, columns = np.arange(ROWS, dtype="int32") // 4, np.arange(COLUMNS, dtype="int32") // 8
    before, after = programs("equal", form=form)
    assert run(before, rows, columns)[1] == 3 * TILES
    assert run(after, rows, columns)[1] == 2 + 2 + 1


def test_rows_without_a_column_visit_one_tile():
    rows, columns = np.full(ROWS, 9, "int32"), np.zeros(COLUMNS, "int32")
    before, after = programs("equal")
    got, visited = run(after, rows, columns)
    np.testing.assert_array_equal(got, run(before, rows, columns)[0])
    assert visited == 3


def test_the_text_of_the_program_is_complete():
    _, after = programs("equal")
    verify(after)
    text = to_text(after)
    assert "for j0 in range(6) within attention_general_tiles_first[i0], attention_general_tiles_last[i0]:" in text
    assert from_text(text) == after


def test_the_form_for_any_number_of_tiles_has_one_size_of_tile():
    """Its tiles are those of any number of tiles, so that a kernel for all lengths can have it."""
    _, after = programs("equal", form="skip_any_tiles_by_data")
    verify(after)
    ends, bounds = after.kernels[:2]
    assert [axis.extent for axis in ends.grid] == [TILES]
    chip = {t.shape for t in after.tensors if t.space == "chip" and t.name.startswith(f"{bounds.name}_")}
    assert chip - {()} == {(MOST_TILES,), (TILE,)}
    assert from_text(to_text(after)) == after


@pytest.mark.parametrize(("mask", "form"), [("equal", FORMS[0]), ("equal", FORMS[1]), ("below", FORMS[0])])
def test_kernels_say_what_they_find(mask: str, form: str):
    """If it is the tiles of equal elements: of others, a launcher must not take those for it."""
    _, after = programs(mask, form=form)
    *bounds, last = [kernel.finds for kernel in after.kernels]
    wanted = None
    if mask == "equal":
        names = [t.name for t in after.tensors if t.space == "global"][-2:]
        rows, columns = (
            next(t.name for t in after.tensors if t.space == "input" and t.shape == (n,)) for n in (ROWS, COLUMNS)
        )
        wanted = FoundTiles(names[0], names[1], rows, columns, TILE, TILE)
    assert bounds == [wanted] * (1 + FORMS.index(form))
    assert last is None


def test_of_tiles_with_gaps_or_a_part_of_a_vector_kernels_say_nothing():
    before, _ = programs("equal")
    (comparison, loop, env, grid), numbers = parts_of(before), ("first", "last")
    assert found_tiles(before, loop, grid, comparison, env, numbers) is not None
    rows = comparison.rows
    for start in (Arith("*", Name("i0"), Int(2 * TILE)), Arith("+", rows.slice.start, Int(1)), Int(0)):
        moved = replace(rows, access=replace(rows.access, index=(replace(rows.slice, start=start),)))
        assert found_tiles(before, loop, grid, replace(comparison, rows=moved), env, numbers) is None
    fewer = (replace(grid[0], extent=grid[0].extent - 1),)
    assert found_tiles(before, loop, fewer, comparison, env, numbers) is None
    assert found_tiles(before, replace(loop, stop=Int(TILES - 1)), grid, comparison, env, numbers) is None
    assert found_tiles(before, loop, (*grid, GridAxis("h", 2)), comparison, env, numbers) is None


def parts_of(program: Program):
    """The comparison of a program's loop, the loop, the bounds around it, and the grid of what finds its bounds."""
    (kernel,) = program.kernels
    loop = next(stmt for stmt in kernel.body if isinstance(stmt, For))
    env = grid_env(kernel)
    found = hiding_comparison(program, kernel, loop, env, NoOpProver(program, kernel), many=False)
    assert found is not None
    return found[0], loop, env, own_axes(kernel, loop, found[0])


def test_a_program_that_says_what_no_kernel_finds_is_not_valid():
    _, after = programs("equal")
    bounds, kernel = after.kernels
    assert bounds.finds is not None
    for name in ("q", "attention_general_tiles_begin", "nothing"):
        wrong = replace(bounds, finds=replace(bounds.finds, first=name))
        with pytest.raises(TileError):
            verify(replace(after, kernels=(wrong, kernel)))
    with pytest.raises(TileError, match="two inputs of one dimension"):
        verify(replace(after, kernels=(replace(bounds, finds=replace(bounds.finds, rows="q")), kernel)))


def test_the_note_names_the_inputs_and_has_the_proof():
    notes = apply(skip_tiles_by_data, programs("at least")[0]).notes
    assert "of a row may be at least" in notes[0]
    assert any("where s_max" in note or "stays" in note or "keeps" in note for note in notes[1:])


@pytest.mark.parametrize(("through", "skips"), [("int64", True), ("int16", False), ("float32", False)])
def test_conversions_that_lose_the_order_are_left_alone(through: str, skips: bool):
    """Numbers of documents, converted and back: only more bits keep them as they are."""
    before, _ = programs("equal")

    def converted(expr: TileExpr) -> TileExpr:
        if isinstance(expr, Elementwise) and expr.op == "eq" and dtype_of(expr.args[0], before) == "int32":
            return replace(expr, args=tuple(Cast(Cast(arg, through), "int32") for arg in expr.args))
        return expr

    program = rewrite_expressions(before, converted)
    verify(program)
    assert program is not before
    assert (apply(skip_tiles_by_data, program).program is not program) == skips


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_floats_and_conditions_are_left_alone(dtype: str):
    """A NaN is in no interval; two values of bool say little."""
    before, after = programs("equal", dtype)
    assert after is before
