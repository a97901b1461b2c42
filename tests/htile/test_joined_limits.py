"""Tiles that none of several limits joined by `or` shows are skipped, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.errors import TileError
from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import For, Program
from neptune_lab.htile.walk import stores
from neptune_lab.operators import attention, backward
from neptune_lab.pipeline.validate import triton_numpy

BATCH, HEADS, KV_HEADS, COLUMNS, TILE = 2, 4, 2, 45, 8
TILES = -(-COLUMNS // TILE)
NAME = "skip_tiles_by_positions"
Mod = Callable[..., Any]
# Each gets an offset for each sample.
MASKS: dict[str, Mod] = {
    "window or sink": lambda off: lambda b, h, q, kv: (kv <= q + off[b]) & ((kv > q + off[b] - 9) | (kv < 4)),
    "prefix or window": lambda off: (
        lambda b, h, q, kv: (kv < off[b] - 20) | ((kv <= off[b]) & (kv > off[b] - 9)) | (kv <= 2)
    ),
    "prefixes": lambda off: lambda b, h, q, kv: (kv < off[b]) | (kv < off[1 - b]),
    "windows": lambda off: lambda b, h, q, kv: (kv >= off[b]) | ((kv > 20) & (kv < 30)) | (kv < 3),
    "positions": lambda off: lambda b, h, q, kv: (kv < 4) | (q + 40 - kv < 9),
    "two joined": lambda off: lambda b, h, q, kv: ((kv < 4) | (kv > off[b])) & ((kv < 12) | (kv > off[b] + 9)),
}  # fmt: skip
FORMS = {"splits": 2, "tiles": TILES, "loop": None}
OFFSETS = ([17, 44], [-9, 60], [30, 5])


@cache
def compiled(mask: str, form: str) -> nl.Kernel:
    off = np.zeros(BATCH, "int32")
    operator = attention.general(
        *(BATCH, HEADS, 1, COLUMNS, 4), kv_heads=KV_HEADS, mask_mod={**MASKS, **OTHERS}[mask](off), dtype="float32",
        empty_rows="zero",
    )  # fmt: skip
    splits = FORMS[form]
    config = nl.TileConfig(block_kv=TILE) if splits is None else nl.SplitKConfig(splits=splits, block_kv=TILE)
    template = "rolling_update" if splits is None else "split_k_update"
    return nl.compile(operator, template, config=config, validate="none")


def inputs_of(program: Program, off: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: np.array(off, "int32")
        if name == "off"
        else rng.standard_normal(program.tensor(name).shape).astype("float32")
        for name in program.inputs
    }


def visited(program: Program, off: list[int]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """The output; and the sample, first head and first column of each tile that loops visit."""
    seen: list[tuple[int, ...]] = []
    inside = {next(stores(s.body)).node_id for k in program.kernels for s in k.body if isinstance(s, For)}

    def count(store: Any, _env: object, positions: tuple[np.ndarray, ...], _values: object) -> None:
        if store.node_id in inside:
            b, h, _, j = (int(p.min()) for p in positions)
            seen.append((b, h, j))

    made = interpret(program, inputs_of(program, off), observer=count)
    return made[program.outputs[0]], seen


def shown(mask: str, off: list[int]) -> np.ndarray:
    """The columns of each sample that a mask shows."""
    grid = np.ix_(range(BATCH), range(1), range(1), range(COLUMNS))
    return np.broadcast_to(MASKS[mask](np.array(off, "int64"))(*grid), (BATCH, 1, 1, COLUMNS))[:, 0, 0]


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("mask", "form"), [*product(MASKS, FORMS)])
def test_tiles_that_no_alternative_shows_are_left_out(mask: str, form: str):
    """The meaning stays; of two conjuncts with alternatives, the gap of the first alone is left out."""
    kernel = compiled(mask, form)
    before = next(done.before for done in kernel.passes if done.name == NAME)
    for off in OFFSETS if "positions" not in mask else OFFSETS[:1]:
        wanted, _ = visited(before, off)
        made, seen = visited(kernel.htile, off)
        np.testing.assert_allclose(made, wanted, atol=1e-6)
        assert len(seen) == len(set(seen))
        columns = shown(mask, off)
        every = product(range(BATCH), range(0, HEADS, HEADS // KV_HEADS), range(0, COLUMNS, TILE))
        tiles = {(b, h, j) for b, h, j in every if columns[b, j : j + TILE].any()}
        own = {at for at in seen if at[2] + TILE <= COLUMNS}
        assert tiles <= set(seen)
        if mask not in ("two joined", "windows"):  # (what is between two windows is visited)
            assert own <= tiles


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("mask", "form"), [*product(["window or sink"], FORMS), ("positions", "loop")])
def test_emitted_kernels_visit_them_too(mask: str, form: str):
    kernel = compiled(mask, form)
    for off in OFFSETS[:2]:
        inputs = inputs_of(kernel.htile, off)
        module, order = kernel.triton, kernel.program.inputs
        (made, *_) = triton_numpy.run(module, inputs, {n: str(a.dtype) for n, a in inputs.items()}, order, {})
        np.testing.assert_allclose(made, visited(kernel.passes[0].program, off)[0], atol=1e-5)


@pytest.mark.nightly
def test_the_text_of_such_a_loop_is_complete():
    for form in FORMS:
        program = compiled("window or sink", form).htile
        verify(program)
        assert "_last[] without " in to_text(program)
        assert from_text(to_text(program)) == program
    with pytest.raises(TileError, match="expected `within` before `without`"):
        verify(from_text(to_text(program).replace(" within j0_first[], j0_last[]", "")))


PREFILL, SMALL = 64, 4
# Of many queries, by positions alone; the last ones have lists.
PREFILLS: dict[str, Mod] = {
    "sinks and window": lambda b, h, q, kv: ((kv < 4) | (q - kv < 9)) & (q >= kv),
    "negated": lambda b, h, q, kv: ~((kv >= 9) & (kv + 9 <= q)) & (kv <= q),
    "windows on both sides": lambda b, h, q, kv: (kv < 4) | ((q - kv < 9) & (kv - q < 9)),
    "prefix or causal": lambda b, h, q, kv: (kv < 20) | (q >= kv),
    "documents": lambda b, h, q, kv: q // 12 == kv // 12,
    "tokens that see all": lambda b, h, q, kv: (q < 3) | (kv < 3) | (abs(q - kv) < 5),
    "dilated blocks": lambda b, h, q, kv: (q >= kv) & ((q - kv) // 4 % 6 == 0),
    "strided": lambda b, h, q, kv: (q >= kv) & ((q - kv < 9) | (kv % 16 < 2)),
    "every third tile": lambda b, h, q, kv: (q >= kv) & ((q // 4 - kv // 4) % 3 == 0),
}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("passes", ["forward", "backward"])
@pytest.mark.parametrize("mask", PREFILLS)
def test_prefill_visits_the_tiles_that_an_alternative_shows(mask: str, passes: str):
    """Each nest multiplies queries and keys once in each tile that has an element, and in no other."""
    mod = PREFILLS[mask]
    operator = attention.general(1, 1, PREFILL, PREFILL, 4, mask_mod=mod, dtype="float32", empty_rows="zero")
    nests = 1
    if passes == "backward":
        operator, nests = backward(operator), 2
    sizes = nl.TileConfig(block_q=SMALL, block_kv=SMALL)
    kernel = nl.compile(operator, "rolling_update", config=sizes, validate="none")
    seen: list[tuple[int, ...]] = []

    def count(store: Any, _env: object, positions: tuple[np.ndarray, ...], _values: object) -> None:
        if store.node_id.startswith("tile:qk"):
            at = tuple(int(p.min()) // SMALL for p in positions[2:])
            seen.append(at if store.target.tensor == "qk" else at[::-1])  # (the other nest's tiles are transposed)

    inputs = inputs_of(kernel.htile, [])
    made = interpret(kernel.htile, inputs, observer=count)
    shown = np.broadcast_to(mod(0, 0, *np.ogrid[:PREFILL, :PREFILL]), (PREFILL, PREFILL))
    tiles = np.argwhere(shown.reshape(-1, SMALL, PREFILL // SMALL, SMALL).any((1, 3)))
    assert sorted(seen) == sorted([*map(tuple, tiles.tolist())] * nests)
    wanted = interpret(kernel.passes[0].program, inputs)
    for name in kernel.htile.outputs:
        np.testing.assert_allclose(made[name], wanted[name], atol=1e-5)


OTHERS: dict[str, Mod] = {
    "one has no limit": lambda off: lambda b, h, q, kv: (kv < off[b]) | (kv % 7 > 3),
    "one is of floats": lambda off: lambda b, h, q, kv: (kv < off[b]) | (kv < off[b] * 0.5),
    "true of all positions": lambda off: lambda b, h, q, kv: (kv < 4) | (kv <= q + COLUMNS),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", OTHERS)
def test_other_masks_are_left_alone(mask: str):
    assert not next(done for done in compiled(mask, "splits").passes if done.name == NAME).notes
