"""Attention under masks that compare inputs, before and after the passes that read bounds of tiles from these."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from hypothesis import strategies as st

import neptune_lab as nl
from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import For, Program, Store
from neptune_lab.htile.walk import stores
from neptune_lab.htile_passes import ALL_PASSES, PASSES, apply
from neptune_lab.operators import attention

ROWS, COLUMNS, TILE = 20, 45, 8
TILES = -(-COLUMNS // TILE)
Mask = Callable[..., object]
MASKS: dict[str, Mask] = {
    "equal": lambda rows, columns: lambda b, h, q, kv: rows[q] == columns[kv],
    "columns first": lambda rows, columns: lambda b, h, q, kv: columns[kv] == rows[q],
    "below": lambda rows, columns: lambda b, h, q, kv: rows[q] < columns[kv],
    "at most": lambda rows, columns: lambda b, h, q, kv: rows[q] <= columns[kv],
    "above": lambda rows, columns: lambda b, h, q, kv: rows[q] > columns[kv],
    "at least": lambda rows, columns: lambda b, h, q, kv: rows[q] >= columns[kv],
    "and causal": lambda rows, columns: lambda b, h, q, kv: (rows[q] == columns[kv]) & (kv <= q + 20),
}


@cache
def programs(
    mask: str, dtype: str = "int32", name: str = "skip_tiles_by_data", form: str | None = None
) -> tuple[Program, Program]:
    """A program of attention before a pass, and after it; `form`: the pass that runs in its place."""
    rows, columns = np.zeros(ROWS, dtype), np.zeros(COLUMNS, dtype)
    operator = attention.general(1, 1, ROWS, COLUMNS, 4, mask_mod=MASKS[mask](rows, columns), dtype="float32")
    kernel = nl.compile(operator, "rolling_update", block_q=TILE, block_kv=TILE, validate="none")
    earlier = list(PASSES)[: list(PASSES).index(name)]
    before = [done.program for done in kernel.passes if done.name in earlier][-1]
    return before, apply(ALL_PASSES[form or name], before).program


def run(
    program: Program, rows: np.ndarray, columns: np.ndarray, *, only: Callable[[For], bool] = lambda _: True
) -> tuple[np.ndarray, int]:
    """The output, and the number of tiles that the loops in `only` visited."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(program.tensor(name).shape).astype("float32") for name in program.inputs[:3]]
    arrays += [{ROWS: rows, COLUMNS: columns}[program.tensor(name).shape[0]] for name in program.inputs[3:]]
    visits = []

    def count(store: Store, *_: object) -> None:
        if store.node_id in inside:
            visits.append(store.node_id)

    inside = {next(stores(s.body)).node_id for k in program.kernels for s in k.body if isinstance(s, For) and only(s)}
    made = interpret(program, dict(zip(program.inputs, arrays, strict=True)), observer=count)
    return made[program.outputs[0]], len(visits)


IDS = st.lists(st.integers(-3, 3), min_size=ROWS + COLUMNS, max_size=ROWS + COLUMNS)
