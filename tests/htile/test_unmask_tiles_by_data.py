"""A mask over values of inputs is left out in tiles where it is true, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from htile.data_masks import COLUMNS, IDS, MASKS, ROWS, TILES, programs, run
from hypothesis import given, settings
from hypothesis import strategies as st

import neptune_lab as nl
from neptune_lab.errors import TileError
from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile.nodes import Elementwise, For, Literal, Program
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes import unmask_tiles_by_data as unmasking
from neptune_lab.htile_passes.unmask_tiles_by_data import unmask_tiles_by_data
from neptune_lab.operators import attention

FEWEST = unmasking.FEWEST_TILES


@pytest.fixture(scope="module", autouse=True)
def of_few_tiles():
    """In the compiler, loops of few tiles are left as they are."""
    patch = pytest.MonkeyPatch()
    patch.setattr(unmasking, "FEWEST_TILES", 4)
    yield
    patch.undo()


def both_sides(mask: str) -> tuple[Program, Program]:
    return programs(mask, name="unmask_tiles_by_data")


@pytest.mark.one_in(12)
@pytest.mark.parametrize("mask", MASKS)
@settings(max_examples=8)
@given(ids=IDS, rising=st.booleans())
def test_the_meaning_stays(mask: str, ids: list[int], rising: bool):
    before, after = both_sides(mask)
    assert after is not before
    rows, columns = np.array(ids[:ROWS], "int32"), np.array(ids[ROWS:], "int32")
    if rising:
        rows, columns = np.sort(rows), np.sort(columns)
    wanted, visited = run(before, rows, columns)
    got, same = run(after, rows, columns)
    np.testing.assert_array_equal(got, wanted)
    assert same == visited


def test_kernels_that_find_more_do_not_say_that_it_is_all():
    before, after = both_sides("equal")
    finds = before.kernels[0].finds
    assert finds is not None
    assert [kernel.finds for kernel in after.kernels] == [None, None]
    with pytest.raises(TileError, match="others read nothing else"):
        verify(replace(after, kernels=(replace(after.kernels[0], finds=finds), after.kernels[1])))


def masked_tiles(rows: np.ndarray, columns: np.ndarray, mask: str = "equal") -> int:
    """How many tiles are computed with the mask."""
    _, after = both_sides(mask)
    return run(after, rows, columns, only=lambda loop: loop.part != "interior")[1]


def test_tiles_inside_of_a_document_have_no_mask():
    """Its last tile of columns is padded; positions decided that it is an edge."""
    assert masked_tiles(np.zeros(ROWS, "int32"), np.zeros(COLUMNS, "int32")) == 3
    rows = np.arange(ROWS, dtype="int32") // 8
    assert masked_tiles(rows, np.arange(COLUMNS, dtype="int32") // 16) == 1
    assert masked_tiles(rows, np.arange(COLUMNS, dtype="int32") // 20) == 3


def test_the_edge_of_positions_is_in_the_last_loop():
    before, after = both_sides("and causal")
    loops = [stmt for kernel in after.kernels for stmt in kernel.body if isinstance(stmt, For)]
    assert [loop.part for loop in loops] == ["left edge", "interior", "right edge"]
    for width in (1, 20, 50):
        rows, columns = np.zeros(ROWS, "int32"), np.arange(COLUMNS, dtype="int32") // width
        wanted, visited = run(before, rows, columns)
        got, same = run(after, rows, columns)
        np.testing.assert_array_equal(got, wanted)
        assert same == visited


def test_whole_tiles_that_are_no_neighbours_keep_the_mask():
    columns = (np.arange(COLUMNS, dtype="int32") // 8) % 2
    assert masked_tiles(np.zeros(ROWS, "int32"), columns) == 3 * (TILES - 1)


def test_the_interior_lies_within_other_bounds_than_those_of_the_skipping_pass():
    """The pass trusts no bounds: with narrower ones than it would find, no other tile is visited."""
    before, _ = both_sides("equal")
    bounds, *others = before.kernels
    values = {2: "first", 3: "last"}
    body = list(bounds.body)
    for value, name in values.items():
        (at,) = (n for n, s in enumerate(body) if s.target.tensor == f"{bounds.name}_{name}")
        body[at] = replace(body[at], value=Literal(value, "int32"))
    narrowed = replace(before, kernels=(replace(bounds, body=tuple(body)), *others))
    verify(narrowed)
    after = apply(unmask_tiles_by_data, narrowed).program
    assert after is not narrowed
    rng = np.random.default_rng(1)
    rows, columns = np.zeros(ROWS, "int32"), np.zeros(COLUMNS, "int32")
    for ids in (columns, rng.integers(0, 2, COLUMNS).astype("int32")):
        wanted, visited = run(narrowed, rows, ids)
        got, same = run(after, rows, ids)
        np.testing.assert_array_equal(got, wanted)
        assert same == visited == 3


def test_other_masks_stay():
    """Of `documents and causal` the second half stays where positions do not decide it."""
    _, after = both_sides("and causal")
    interiors = [s for k in after.kernels for s in k.body if isinstance(s, For) and s.part == "interior"]
    assert interiors
    for loop in interiors:
        wheres = [e for s in stores(loop.body) for e in subexpressions(s.value) if _masks(e)]
        assert not any(op.op == "eq" for e in wheres for op in subexpressions(e.args[0]) if isinstance(op, Elementwise))


def _masks(expr: object) -> bool:
    return (
        isinstance(expr, Elementwise)
        and expr.op == "where"
        and isinstance(expr.args[2], Literal)
        and expr.args[2].value == -np.inf
    )


def test_the_text_of_the_program_is_complete_and_the_note_names_the_inputs():
    before, after = both_sides("at most")
    verify(after)
    assert from_text(to_text(after)) == after
    (note,) = apply(unmask_tiles_by_data, before).notes
    assert "is at most every" in note


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("columns", "runs"), [(8192, True), (2048, False)])
def test_it_runs_where_loops_are_long(monkeypatch, columns: int, runs: bool):
    rows, ids = np.zeros(64, "int32"), np.zeros(columns, "int32")
    mask = MASKS["equal"](rows, ids)
    operator = attention.general(1, 1, 64, columns, 16, mask_mod=mask)
    monkeypatch.setattr(unmasking, "FEWEST_TILES", FEWEST)
    kernel = nl.compile(operator, "rolling_update", block_q=64, block_kv=64, validate="none")
    assert ("unmask_tiles_by_data" in {done.name for done in kernel.passes if done.notes}) == runs
    assert kernel.source.count("# interior") == runs
