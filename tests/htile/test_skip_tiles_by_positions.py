"""Tiles past limits that inputs set to positions are skipped, and no others, whatever the values are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from by_turns import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

import neptune_lab as nl
from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import For, Program, Store
from neptune_lab.htile.walk import stores
from neptune_lab.operators import attention

BATCH, HEADS, ROWS, COLUMNS, TILE = 2, 4, 3, 45, 8
TILES = -(-COLUMNS // TILE)
NAME = "skip_tiles_by_positions"
Mod = Callable[..., Any]
# Each gets an offset for each sample and one for each row.
MASKS: dict[str, Mod] = {
    "length": lambda off, pos: lambda b, h, q, kv: kv < off[b],
    "from": lambda off, pos: lambda b, h, q, kv: kv >= off[b],
    "window": lambda off, pos: lambda b, h, q, kv: (kv <= q + off[b]) & (kv > q + off[b] - 11),
    "window by distance": lambda off, pos: lambda b, h, q, kv: (off[b] + q - kv < 11) & (off[b] + q - kv >= 0),
    "positions": lambda off, pos: lambda b, h, q, kv: (pos[q] >= kv) & (kv + 9 > pos[q]),
    "one column": lambda off, pos: lambda b, h, q, kv: kv == off[b] + q,
    "from the end": lambda off, pos: lambda b, h, q, kv: -kv - 4 <= off[b] - pos[q],
    "until": lambda off, pos: lambda b, h, q, kv: off[b] - kv >= 0,
    "length and causal": lambda off, pos: lambda b, h, q, kv: (kv < off[b]) & (kv <= q + 30),
    "window or sink": lambda off, pos: lambda b, h, q, kv: (kv <= q + off[b]) & ((kv > q + off[b] - 9) | (kv < 4)),
    "prefix or window": lambda off, pos: (
        lambda b, h, q, kv: (kv < off[b]) | ((kv <= pos[q]) & (kv + 9 > pos[q])) | (kv <= 2)
    ),
    "lengths": lambda off, pos: lambda b, h, q, kv: (kv < off[b]) | (kv <= pos[q]),
    "from one of two": lambda off, pos: lambda b, h, q, kv: (kv >= off[b]) | ((kv > pos[q]) & (kv < 40)),
    "sums that wrap": lambda off, pos: lambda b, h, q, kv: (off[b] - kv >= 0) | (kv - pos[q] > 7),
}
# The template and its number of splits: loops of splits, programs of one tile, one loop.
FORMS = {"splits": 2, "tiles": TILES, "loop": None}


@cache
def programs(mask: str, form: str, score: str = "") -> tuple[Program, Program]:
    """A program of attention before the pass and after it."""
    off, pos = np.zeros(BATCH, "int32"), np.zeros(ROWS, "int32")
    scores: dict[str, Mod] = {
        "soft cap": lambda s, b, h, q, kv: 3.0 * nl.operators.math.tanh(s / 3.0),
        "slopes": lambda s, b, h, q, kv: s - 0.1 * (off[b] + q - kv),
    }
    operator = attention.general(
        *(BATCH, HEADS, ROWS, COLUMNS, 4), kv_heads=2, mask_mod=MASKS[mask](off, pos), score_mod=scores.get(score),
        dtype="float32", empty_rows="zero",
    )  # fmt: skip
    splits = FORMS[form]
    config = nl.TileConfig(block_kv=TILE) if splits is None else nl.SplitKConfig(splits=splits, block_kv=TILE)
    template = "rolling_update" if splits is None else "split_k_update"
    kernel = nl.compile(operator, template, config=config, validate="none")
    done = next(done for done in kernel.passes if done.name == NAME)
    return done.before, done.program


def arrays_of(program: Program, off: list[int], pos: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {"off": np.array(off, "int32"), "pos": np.array(pos, "int32")}
    return {
        name: given[name] if name in given else rng.standard_normal(program.tensor(name).shape).astype("float32")
        for name in program.inputs
    }


def run(program: Program, off: list[int], pos: list[int]) -> tuple[np.ndarray, set[tuple[int, ...]]]:
    """The output; and the sample, first head and first column of each tile that loops visit, which are never the same
    for two."""
    seen: set[tuple[int, ...]] = set()
    inside = {next(stores(s.body)).node_id for k in program.kernels for s in k.body if isinstance(s, For)}

    def count(store: Store, _env: object, positions: tuple[np.ndarray, ...], _values: object) -> None:
        if store.node_id in inside:
            b, h, _, j = (int(p.min()) for p in positions)
            assert (b, h, j) not in seen
            seen.add((b, h, j))

    made = interpret(program, arrays_of(program, off, pos), observer=count)
    return made[program.outputs[0]], seen


def shown(mask: str, off: list[int], pos: list[int]) -> np.ndarray:
    """The elements that a mask shows, by integers without an end."""
    grid = np.ix_(range(BATCH), range(HEADS), range(ROWS), range(COLUMNS))
    wide = [np.array(values, "int64") for values in (off, pos)]
    return np.broadcast_to(MASKS[mask](*wide)(*grid), (BATCH, HEADS, ROWS, COLUMNS))


VALUE = st.one_of(st.integers(-20, COLUMNS + 20), st.sampled_from([-(2**31), 2**31 - 1, -(2**31) + 9, 2**31 - 9]))


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("mask", "form"), in_turn(MASKS, FORMS, every=4, first=1))
@settings(max_examples=4)
@given(off=st.lists(VALUE, min_size=BATCH, max_size=BATCH), pos=st.lists(VALUE, min_size=ROWS, max_size=ROWS))
def test_the_meaning_stays(mask: str, form: str, off: list[int], pos: list[int]):
    """Also for values outside of the columns, and where sums of int32 wrap."""
    before, after = programs(mask, form)
    np.testing.assert_allclose(run(after, off, pos)[0], run(before, off, pos)[0], atol=1e-6)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("mask", "form"), in_turn(MASKS, FORMS, every=3, first=0))
def test_only_tiles_between_the_limits_are_visited(mask: str, form: str):
    """But for the last one, of which a limit may show what the end of the tensor hides."""
    _, after = programs(mask, form)
    rng = np.random.default_rng(len(mask))
    for _ in range(3):
        off, first = rng.integers(-12, COLUMNS + 12, BATCH).tolist(), int(rng.integers(-5, COLUMNS))
        pos = [first, first + 1, first + 2]
        _, visited = run(after, off, pos)
        elements = shown(mask, off, pos)
        tiles = {(b, j) for b in range(BATCH) for j in range(0, COLUMNS, TILE) if elements[b, 0, :, j : j + TILE].any()}
        assert tiles == {(b, j) for b, _, j in visited if j + TILE <= COLUMNS or elements[b, 0, :, j:].any()}


@pytest.mark.nightly
def test_splits_that_see_nothing_store_the_identity():
    for form in FORMS:
        before, after = programs("window", form)
        assert run(after, [-40, 200], [0] * ROWS)[1] == set()
        out, _ = run(after, [-40, 20], [0] * ROWS)
        assert not out[0].any()
        np.testing.assert_allclose(out, run(before, [-40, 20], [0] * ROWS)[0], atol=1e-6)


@pytest.mark.nightly
def test_a_sum_that_wraps_limits_nothing():
    """`off - kv` is positive for the columns after the tenth, where it leaves int32."""
    off, pos = [-(2**31) + 9, 20], [0] * ROWS
    before, after = programs("until", "splits")
    wanted, _ = run(before, off, pos)
    assert wanted[0].any()
    np.testing.assert_allclose(run(after, off, pos)[0], wanted, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("score", ["soft cap", "slopes"])
def test_scores_of_their_own(score: str):
    before, after = programs("window", "splits", score)
    assert after is not before
    off, pos = [17, 50], [0] * ROWS
    np.testing.assert_allclose(run(after, off, pos)[0], run(before, off, pos)[0], atol=1e-6)


def test_what_a_tile_stores_and_reads_again_is_stored_before():
    """Without `keep_stored_tiles`, a program of one tile reads its own maximum."""
    off = np.zeros(BATCH, "int32")
    operator = attention.general(
        BATCH, HEADS, ROWS, COLUMNS, 4, mask_mod=MASKS["window"](off, None), dtype="float32", empty_rows="zero"
    )
    config, code = nl.SplitKConfig(splits=TILES, block_kv=TILE), nl.CodeOptions(disable_passes=("keep_stored_tiles",))
    kernel = nl.compile(operator, "split_k_update", config=config, code=code, validate="none")
    before, after = kernel.passes[0].program, kernel.htile
    offsets, pos = [5, 40], [0] * ROWS
    np.testing.assert_allclose(run(after, offsets, pos)[0], run(before, offsets, pos)[0], atol=1e-5)


@pytest.mark.nightly
def test_the_text_of_the_program_is_complete():
    for form in FORMS:
        _, after = programs("window by distance", form)
        verify(after)
        assert "_first[], " in to_text(after)
        assert from_text(to_text(after)) == after


OTHERS: dict[str, Mod] = {
    "no tensor": lambda off, pos: lambda b, h, q, kv: kv < q + 30,
    "of columns": lambda off, pos: lambda b, h, q, kv: off[b] * kv < 30,
    "one of two": lambda off, pos: lambda b, h, q, kv: (kv < off[b]) | (kv % 7 > 3),
    "floats": lambda off, pos: lambda b, h, q, kv: kv < off[b] * 0.5,
    "of a tile": lambda off, pos: (lambda ends: lambda b, h, q, kv: kv < ends[kv // TILE])(np.zeros(TILES, "int32")),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mask", OTHERS)
def test_other_masks_are_left_alone(mask: str):
    off, pos = np.zeros(BATCH, "int32"), np.zeros(ROWS, "int32")
    operator = attention.general(
        BATCH, HEADS, ROWS, COLUMNS, 4, mask_mod=OTHERS[mask](off, pos), dtype="float32", empty_rows="zero"
    )
    config = nl.SplitKConfig(splits=2, block_kv=TILE)
    kernel = nl.compile(operator, "split_k_update", config=config, validate="none")
    assert not next(done for done in kernel.passes if done.name == NAME).notes
