"""A run of a loop program in which every write is kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neptune_lab.loop_ir import tags, tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.render import render
from neptune_lab.loop_ir.tag_events import Write, origin
from neptune_lab.pipeline.bisect.observed import Observed, TileWrite


def observe_loops(program: Program, inputs: Mapping[str, np.ndarray]) -> Observed:
    """Every write of a small loop program, by buffer."""
    writes = [
        _write(w, w.buffer, w.index, program.buffer(w.buffer).shape)
        for w in tags.record(program, dict(inputs)).events
        if not w.init
    ]
    return Observed.of(writes, {b.name: b.shape for b in program.buffers})


def observe_stages(program: Program, definition: Program, inputs: Mapping[str, np.ndarray]) -> Observed:
    """Every write of a small loop program to an element of a stage whose last value is the definition's.

    These are reductions and outputs: a pointwise stage that reads a running maximum has other values, which a repair
    makes good.  The tensor is called after the stage, and the tag is no part of its index; partial results, which
    have other shapes, are left out.
    """
    buffers = {b.name: b for b in program.buffers}
    stages = {b.name: origin(b) for b in tree.blocks(program)}
    shapes = {
        b.name: definition.buffer(b.writes).shape
        for b in tree.blocks(definition)
        if b.is_reduction or b.writes in definition.outputs
    }
    writes = []
    for write in tags.record(program, dict(inputs)).events:
        buffer, stage = buffers[write.buffer], stages[write.block]
        shape = buffer.shape[1:] if buffer.tagged else buffer.shape
        if not write.init and shapes.get(stage) == shape:
            writes.append(_write(write, stage, write.index[1:] if buffer.tagged else write.index, shape))
    return Observed.of(writes, shapes)


def _write(write: Write, tensor: str, index: tuple[int, ...], shape: tuple[int, ...]) -> TileWrite:
    element = int(np.ravel_multi_index(index, shape)) if shape else 0
    return TileWrite(write.block, tensor, write.loops, np.asarray([element]), np.asarray([float(write.value)]))


def block_text(program: Program, block: str) -> str:
    """The block's statement as the program shows it, on one line."""
    return " ".join(line.text.strip() for line in render(program) if line.node == f"store:{block}")
