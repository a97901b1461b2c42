"""Which values of the forward pass the backward pass reads, and which it computes again.

Kept are the final values of rolled reductions and what is made of them: one value per row, whose recomputation would
fold a whole row first.  Everything else, such as the scores of attention, is computed again tile by tile: reading it
from memory would take longer, and it may be larger than all inputs together (Dao et al. 2022, 3.1).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from neptune_lab.loop_ir.dimensions import Dimension, dimensions
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.operators.reverse_mode.digits import along_digits
from neptune_lab.operators.reverse_mode.stages import Stage, needed, program_of


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the forward pass that the backward pass can read from memory or compute again.

    Args:
        stage: that makes it.
        kept: whether it is read from memory.
        result: whether the operator returns it, so that it is in memory anyway.
        again: the stages that compute it from the inputs and the other values that are kept.
        why: why it is kept or not, in a sentence.
    """

    stage: Stage
    kept: bool
    result: bool
    again: tuple[Stage, ...]
    why: str


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


def values(
    program: Program, stages: Sequence[Stage], read: Collection[str], kept: Collection[str]
) -> tuple[Value, ...]:
    """Every value that the backward pass may read, with what speaks for keeping it or against.

    Args:
        program: the definition.
        stages: its stages, each after those that it reads.
        read: the stages that the backward pass reads.
        kept: those that the forward pass gives.

    Returns:
        Values in the order of the stages.
    """
    after, rolled = _after_rolled(program, stages), _rolled_by_stage(program)
    chosen = kept_by_default(program, stages, read)
    computed = {stage.name for stage in needed(stages, [*read], frozenset(kept))}
    found = []
    for stage in needed(stages, [*read, *kept]):
        name = stage.name
        again = needed(stages, [name], frozenset(kept) - {name})
        own = stage.reads & {s.name for s in stages}
        if name not in kept and name not in computed:
            ends = [k for k in kept if name in {s.name for s in needed(stages, [k])}]
            why = f"not needed: {' and '.join(ends)}, made of it, {'is' if len(ends) == 1 else 'are'} kept"
        elif name in after and stage.reducer is not None:
            count = 1
            for axis, extent in stage.folded:
                count *= extent if axis in rolled[name] else 1
            why = f"final value of a rolled reduction: to compute it again, {count} terms are folded first"
        elif name in after and not _follows(stage, own, [k for k in kept if k != name]):
            why = "made of final values of rolled reductions: to compute it again, whole rows are folded first"
        elif name in after:
            why = "a map of values that are kept, computed again in registers"
        elif rolled[name]:
            why = "computed along a rolled dimension: computed again tile by tile, in less time than memory takes"
        else:
            why = "needs no rolled reduction: computed again from the inputs"
        if (name in kept) != (name in chosen):
            why = f"your choice; by itself {'not kept' if name in kept else 'kept'}: {why}"
        found.append(Value(stage, name in kept, name in program.outputs, again, why))
    return tuple(found)


def _rolled_by_stage(program: Program) -> dict[str, frozenset[str]]:
    """By stage, its axes along rolled dimensions."""
    dims = dimensions(program)
    rolled = rolled_axes(program)
    return {
        block.name: frozenset(axis for d, axis in dims.all_of(block).items() if d in rolled)
        for block in blocks(program)
    }


def _follows(stage: Stage, own: Collection[str], kept: Collection[str]) -> bool:
    """Whether a stage is better computed again: a map of what is kept."""
    return stage.reducer is None and set(own) <= set(kept)


def _after_rolled(program: Program, stages: Sequence[Stage]) -> set[str]:
    """The stages that need a whole rolled reduction, and do not compute along its dimension, of the program as it is or
    along the digits of flattened rows: `t[r // 4, r % 4]` and `t[d // 4, d % 4]` are along the same rows."""
    found = _after(program, stages)
    cut = along_digits(stages, program.outputs)
    if all(a is b for a, b in zip(cut, stages, strict=True)):
        return found
    inputs = [program.buffer(name) for name in program.inputs]
    return found | _after(program_of(program.name, inputs, cut, program.outputs), cut)


def _after(program: Program, stages: Sequence[Stage]) -> set[str]:
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


__all__ = ["Value", "kept_by_default", "rolled_axes", "values"]
