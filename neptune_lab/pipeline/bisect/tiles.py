"""A run of an HTile program in which every store of a tile is kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neptune_lab.htile import nodes as ir
from neptune_lab.htile import printer
from neptune_lab.htile.interpret import interpret
from neptune_lab.pipeline.bisect.observed import Observed, TileWrite


def observe_tiles(program: ir.Program, inputs: Mapping[str, np.ndarray]) -> Observed:
    """Every store of `program` on `inputs`; on-chip tensors have the whole tensor's indices, as in the IR."""
    writes: list[TileWrite] = []
    shapes = {t.name: t.shape for t in program.tensors}

    def observer(
        store: ir.Store, env: Mapping[str, int], positions: tuple[np.ndarray, ...], values: np.ndarray
    ) -> None:
        name = store.target.tensor
        elements = np.ravel_multi_index(positions, shapes[name]) if positions else np.zeros(1, int)
        writes.append(
            TileWrite(store.node_id, name, tuple(env.items()), elements, np.asarray(values, np.float64).reshape(-1))
        )

    interpret(program, inputs, observer=observer)
    return Observed.of(writes, shapes)


def statement_text(program: ir.Program, statement: str) -> str:
    """The statement as the printer writes it, on one line."""
    lines = [line.text.strip() for line in printer.print_program(program) if line.node_id == statement]
    return " ".join(lines)
