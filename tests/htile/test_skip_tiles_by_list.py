"""Tiles in which a mask over inputs shows no element are skipped, and no others, whatever the values are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from by_turns import in_turn
from htile.data_masks import COLUMNS, IDS, MASKS, ROWS, TILE, TILES, programs, run
from hypothesis import given, settings

import neptune_lab as nl
from neptune_lab.errors import ScheduleError, TileError
from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import For, Name, Program, Store
from neptune_lab.htile.walk import stores
from neptune_lab.htile_passes import ALL_PASSES, PASSES, apply
from neptune_lab.operators import attention

FORMS = "skip_every_tile_by_list", "skip_any_tiles_by_list"
Mod = Callable[..., Any]
Q_BLOCKS, KV_BLOCKS = -(-ROWS // 4), -(-COLUMNS // 4)


def listed(mask: str, form: str) -> tuple[Program, Program]:
    return programs(mask, name="skip_tiles_by_list", form=form)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("mask", "form"), in_turn(MASKS, FORMS, every=4, first=1))
@settings(max_examples=4)
@given(ids=IDS)
def test_the_meaning_stays(mask: str, form: str, ids: list[int]):
    before, after = listed(mask, form)
    assert after is not before
    rows, columns = np.array(ids[:ROWS], "int32"), np.array(ids[ROWS:], "int32")
    wanted, most = run(before, rows, columns)
    got, visited = run(after, rows, columns, only=lambda loop: loop.listed is not None)
    np.testing.assert_array_equal(got, wanted)
    assert visited <= most == 3 * TILES


# Masks that no interval of values decides: of a table, of a permutation, of two comparisons, of heads and samples.
# Each gets the tables and the positions, as NumPy's arrays or as a mod's.
TABLE_MASKS: dict[str, Mod] = {
    "blocks": lambda t: lambda b, h, q, kv: t["blocks"][q // 4, kv // 4],
    "elements": lambda t: lambda b, h, q, kv: t["elements"][q, kv],
    "blocks and causal": lambda t: lambda b, h, q, kv: t["blocks"][q // 4, kv // 4] & (kv <= q + 20),
    "blocks of heads": lambda t: lambda b, h, q, kv: t["heads"][h, q // 4, kv // 4],
    "blocks of samples and heads": lambda t: lambda b, h, q, kv: t["both"][b, h, q // 4, kv // 4],
    "documents or a prefix": lambda t: lambda b, h, q, kv: (t["rows"][q] == t["columns"][kv]) | (kv < t["prefix"][b]),
    "through a permutation": lambda t: lambda b, h, q, kv: t["elements"][t["order"][q], kv],
    "floats": lambda t: lambda b, h, q, kv: t["weights"][kv] > t["limits"][q],
    "differences": lambda t: lambda b, h, q, kv: (t["rows"][q] - t["columns"][kv]) % 3 == 0,
}
BATCH, HEADS, WIDTH = 2, 2, 8


def tables_of(rng: np.random.Generator, share: float) -> dict[str, np.ndarray]:
    """Tables in which about this share is visible."""

    def visible(*shape: int) -> np.ndarray:
        return rng.random(shape) < share

    weights = np.repeat(rng.standard_normal(KV_BLOCKS), 4)[:COLUMNS]
    return {
        "blocks": visible(Q_BLOCKS, KV_BLOCKS),
        "elements": visible(ROWS, COLUMNS)
        & np.kron(visible(Q_BLOCKS, KV_BLOCKS), np.ones((4, 4), bool))[:ROWS, :COLUMNS],
        "heads": visible(HEADS, Q_BLOCKS, KV_BLOCKS),
        "both": visible(BATCH, HEADS, Q_BLOCKS, KV_BLOCKS),
        "rows": rng.integers(0, 6, ROWS).astype("int32"),
        "columns": np.repeat(rng.integers(0, 6, KV_BLOCKS), 4)[:COLUMNS].astype("int32"),
        "prefix": rng.integers(0, 10, BATCH).astype("int32"),
        "order": rng.permutation(ROWS).astype("int32"),
        "weights": np.where(rng.random(COLUMNS) < 0.1, np.nan, weights).astype("float32"),
        "limits": (rng.standard_normal(ROWS) + 1 - share).astype("float32"),
    }


@cache
def table_programs(mask: str, form: str, template: str) -> tuple[Program, Program, tuple[str, ...]]:
    """A program of attention before the pass and after it, and the names of the tables that it reads."""
    tables = tables_of(np.random.default_rng(0), 0.5)
    operator = attention.general(
        BATCH, HEADS, ROWS, COLUMNS, 4, mask_mod=TABLE_MASKS[mask](tables), dtype="float32", empty_rows="zero"
    )
    config = nl.SplitKConfig(splits=2) if template == "split_k_update" else nl.TileConfig()
    config = replace(config, block_q=TILE, block_kv=WIDTH if template == "rolling_update" else 4)
    kernel = nl.compile(operator, template, config=config, validate="none")
    earlier = list(PASSES)[: list(PASSES).index("skip_tiles_by_list")]
    before = [done.program for done in kernel.passes if done.name in earlier][-1]
    return before, apply(ALL_PASSES[form], before).program, tuple(before.inputs[3:])


def visits_of(program: Program, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, set[tuple[int, ...]]]:
    """The output; and for a listed loop, the first row, first column, head and sample of each tile that it visits."""
    seen: set[tuple[int, ...]] = set()
    inside = {
        next(stores(s.body)).node_id
        for k in program.kernels
        for s in k.body
        if isinstance(s, For) and s.listed is not None
    }

    def count(store: Store, _env: object, positions: tuple[np.ndarray, ...], _values: object) -> None:
        if store.node_id in inside:
            b, h, i, j = (int(p.min()) for p in positions)
            assert (b, h, i, j) not in seen, "a tile is visited twice"
            seen.add((b, h, i, j))

    made = interpret(program, arrays, observer=count)
    return made[program.outputs[0]], seen


@pytest.mark.nightly
@pytest.mark.parametrize(("mask", "form", "share"), in_turn(TABLE_MASKS, FORMS, [0.0, 0.1, 0.6, 1.0], every=4, first=0))
def test_exactly_the_tiles_with_an_element_are_visited(mask: str, form: str, share: float):
    """For tables of every density, with rows that see nothing; and where no tile has an element, the last one."""
    before, after, names = table_programs(mask, form, "rolling_update")
    verify(after)
    rng = np.random.default_rng(int(share * 10))
    tables = tables_of(rng, share)
    arrays = {n: rng.standard_normal(before.tensor(n).shape).astype("float32") for n in before.inputs[:3]}
    arrays |= {n: tables[n].astype(before.tensor(n).dtype) for n in names}
    wanted, _ = visits_of(before, arrays)
    got, visited = visits_of(after, arrays)
    np.testing.assert_array_equal(got, wanted)
    b, h, q, kv = np.ix_(range(BATCH), range(HEADS), range(ROWS), range(COLUMNS))
    shown = np.broadcast_to(np.asarray(TABLE_MASKS[mask](tables)(b, h, q, kv)), (BATCH, HEADS, ROWS, COLUMNS))
    expected = {
        (one, head, i, j)
        for one, head in np.ndindex(BATCH, HEADS)
        for i in range(0, ROWS, TILE)
        for j in range(0, COLUMNS, WIDTH)
        if shown[one, head, i : i + TILE, j : j + WIDTH].any()
    }
    assert expected <= visited
    # A tile may also be visited for elements behind the ends of the tensors, or as the only one of its rows.
    last = (COLUMNS - 1) // WIDTH * WIDTH
    inside = {t for t in visited - expected if t[2] + TILE <= ROWS and t[3] + WIDTH <= COLUMNS}
    assert not inside, "tiles without an element"
    seen = {t[:3] for t in expected}
    assert all(t[:3] in seen or t[3] == last or t[2] + TILE > ROWS for t in visited), "the only tile of its rows"
    rows = {t[:3] for t in visited}
    assert len(rows) == BATCH * HEADS * -(-ROWS // TILE), "each program visits a tile"


@pytest.mark.nightly
def test_splits_have_lists_of_their_own():
    before, after, names = table_programs("blocks", "skip_every_tile_by_list", "split_k_update")
    loops = [s for k in after.kernels for s in k.body if isinstance(s, For) and s.listed is not None]
    assert loops, "the loop of a split has a list"
    rng = np.random.default_rng(1)
    arrays = {n: rng.standard_normal(before.tensor(n).shape).astype("float32") for n in before.inputs[:3]}
    arrays |= {n: tables_of(rng, 0.2)[n].astype(before.tensor(n).dtype) for n in names}
    np.testing.assert_array_equal(visits_of(after, arrays)[0], visits_of(before, arrays)[0])


REFUSED: dict[str, Mod] = {
    "positions only": lambda t: lambda b, h, q, kv: q >= kv,
    "floats that round": lambda t: lambda b, h, q, kv: t["weights"][kv] * 1.5 + t["limits"][q] > 0,
    "a sum of floats": lambda t: lambda b, h, q, kv: t["weights"][kv] + t["limits"][q] > 0,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", REFUSED)
def test_other_masks_have_no_list(mask: str):
    """Positions have bounds; and what a GPU may contract in one kernel and not in another could differ in two."""
    tables = tables_of(np.random.default_rng(0), 0.5)
    operator = attention.general(1, 1, ROWS, COLUMNS, 4, mask_mod=REFUSED[mask](tables), dtype="float32")
    kernel = nl.compile(
        operator, block_q=TILE, block_kv=WIDTH, validate="none", code=nl.CodeOptions(hidden_tiles="list")
    )
    assert all(s.listed is None for k in kernel.htile.kernels for s in k.body if isinstance(s, For))


# The rule: enough tiles, enough programs that share a list, and no bounds.
LARGE = {"heads": 8, "q_len": 16, "kv_len": 16 * 16}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("sizes", "mask", "hidden_tiles", "lists"),
    [
        ({}, "table", "auto", True),
        ({}, "table", "bounds", False),
        ({"kv_len": 15 * 16}, "table", "auto", False),
        ({"kv_len": 15 * 16}, "table", "list", True),
        ({"heads": 7}, "table", "auto", False),
        ({"heads": 7}, "table", "list", True),
        ({}, "documents", "auto", False),
        ({}, "documents", "list", True),
    ],
)
def test_which_loops_have_a_list(sizes: dict[str, int], mask: str, hidden_tiles: str, lists: bool):
    own: Any = LARGE | sizes
    table, ids = np.zeros((1, 16), bool), np.zeros(256, "int32")
    mod = {
        "table": lambda b, h, q, kv: table[q // 16, kv // 16],
        "documents": lambda b, h, q, kv: ids[q] == ids[kv],
    }[mask]
    operator = attention.general(1, **own, head_dim=16, mask_mod=mod, dtype="float16")
    code = nl.CodeOptions(hidden_tiles=hidden_tiles)  # pyright: ignore[reportArgumentType]
    kernel = nl.compile(operator, "rolling_update", block_q=16, block_kv=16, code=code, validate="none")
    every = [s for k in kernel.htile.kernels for s in k.body if isinstance(s, For)]
    assert any(s.listed is not None for s in every) == lists
    assert any(s.within is not None for s in every) == (mask == "documents" and not lists)
    assert any("list them" in note for done in kernel.passes for note in done.notes) == lists


def test_gluon_takes_no_list():
    with pytest.raises(ScheduleError, match="kernels in Gluon visit all tiles"):
        nl.CodeOptions(code="gluon", hidden_tiles="list")


@pytest.mark.nightly
def test_the_text_of_the_program_is_complete():
    _, after = listed("equal", "skip_every_tile_by_list")
    text = to_text(after)
    assert "for j0 in range(6) listed attention_general_list_entry[i0, j0_place]" in text
    assert from_text(text) == after


def _changed(program: Program, **fields: object) -> Program:
    def loop(stmt: object) -> object:
        return replace(stmt, **fields) if isinstance(stmt, For) and stmt.listed is not None else stmt  # type: ignore[arg-type]

    kernels = tuple(replace(k, body=tuple(map(loop, k.body))) for k in program.kernels)  # type: ignore[arg-type]
    return replace(program, kernels=kernels)


def test_a_list_that_is_none_is_refused():
    _, after = listed("equal", "skip_every_tile_by_list")
    entry, count = next(s.listed for k in after.kernels for s in k.body if isinstance(s, For) and s.listed)
    with pytest.raises(TileError, match="is not read at j0_place"):
        verify(_changed(after, listed=(replace(entry, index=(*entry.index[:-1], Name("i0"))), count)))
    with pytest.raises(TileError, match="has bounds and a list"):
        verify(_changed(after, within=(count, count)))
    short = tuple(replace(t, shape=(3, 5)) if t.name == entry.tensor else t for t in after.tensors)
    with pytest.raises(TileError, match="has room for 5 values; loop j0 has 6"):
        verify(replace(after, tensors=short))
