"""Which values of the forward pass the backward pass reads, and which it computes again.

Kept are the final values of rolled reductions and what is made of them: one value per row, whose recomputation would
fold a whole row first.  Everything else, such as the scores of attention, is computed again tile by tile: reading it
from memory would take longer, and it may be larger than all inputs together (Dao et al. 2022, 3.1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neptune_lab.loop_ir.dimensions import Dimension, dimensions
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.operators.reverse_mode.stages import Stage


def rolled_axes(program: Program) -> set[Dimension]:
    """The dimensions that a reduction folds and along which another stage computes.

    Args:
        program: a definition.

    Returns:
        Its rolled dimensions, as of `dimensions(program)`: for softmax the columns, for attention the keys, and not the
        width of the heads.
    """
    dims = dimensions(program)
    every = blocks(program)
    folded = {d for block in every for d in dims.all_of(block, "reduce")}
    computed = {d for block in every for d in dims.all_of(block, "spatial")}
    return folded & computed


def kept_by_default(program: Program, stages: Sequence[Stage], read: Collection[str]) -> tuple[str, ...]:
    """The stages whose values the forward pass should keep.

    Args:
        program: the definition.
        stages: its stages, each after those that it reads.
        read: the stages that the backward pass reads.

    Returns:
        Names, in the order of the stages: those of `read`, and those that stages of `read` are computed from again,
        that come after a rolled reduction; except maps of values that are kept anyway.
    """
    after = _after_rolled(program, stages)
    by_name = {stage.name: stage for stage in stages}
    kept: list[str] = []
    waiting = set(read)
    seen: set[str] = set()
    while waiting:
        # The earliest first, so that what a later map reads is known to be kept.
        name = next(stage.name for stage in stages if stage.name in waiting)
        waiting.remove(name)
        seen.add(name)
        stage = by_name[name]
        own = stage.reads & by_name.keys()
        if name in after and not _follows(stage, own, kept):
            kept.append(name)
        else:
            waiting |= own - seen
    return tuple(kept)


def _follows(stage: Stage, own: Collection[str], kept: Collection[str]) -> bool:
    """Whether a stage is better computed again: a map of what is kept."""
    return stage.reducer is None and set(own) <= set(kept)


def _after_rolled(program: Program, stages: Sequence[Stage]) -> set[str]:
    """The stages that need a whole rolled reduction, and do not compute along its dimension."""
    dims = dimensions(program)
    rolled = rolled_axes(program)
    by_name = {block.name: block for block in blocks(program)}
    after: set[str] = set()
    for stage in stages:
        block = by_name[stage.name]
        folds = bool(rolled & dims.all_of(block, "reduce").keys())
        along = bool(rolled & dims.all_of(block, "spatial").keys())
        if folds or (not along and stage.reads & after):
            after.add(stage.name)
    return after


__all__ = ["kept_by_default", "rolled_axes"]
