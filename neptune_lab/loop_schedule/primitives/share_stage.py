"""share_stage: a stage that computes what an earlier one computes is left out."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dtypes import dtype_of
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Program, Var
from neptune_lab.loop_ir.reduction import match_reduction, reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import substitute, transform
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.definition.stages import computed, inlined, stage, without_dead
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, Phase


@primitive(ours=True, makes="one", made="The stage that is read instead.", normalises=True)
def share_stage(program: Program, *, block: BlockName) -> Outcome:
    """Leaves out a stage that computes the same as an earlier one.

    before ⇒ after:
        for i, j: s[i, j] = x[i, j] * 0.5                   for i, j: s[i, j] = x[i, j] * 0.5
        for i, j: m[i] max= s[i, j]                         for i, j: m[i] max= s[i, j]
        for i, j: n[i] max= x[i, j] * 0.5              ⇒
        for i, j: y[i, j] = s[i, j] - n[i]                  for i, j: y[i, j] = s[i, j] - m[i]

    Formal statement: both stages have as many iterations of the same extents, fold along the same number of them with
    the same reducer and start, store in one dtype, and their terms are one expression over inputs and reductions once
    each read of an elementwise stage is replaced by what that stage computes in its own dtype.  So both stages hold
    the same numbers.

    Args:
        block: the later stage.

    Raises:
        ScheduleError: no earlier stage computes the same, or the stage is a result of the program.
    """
    later = stage(program, block)
    if later.writes in program.outputs:
        raise ScheduleError(
            f"stage {block!r} is a result of the program, which no other stage can stand for",
            node=block,
            help="name a stage that only others read",
        )
    meanings = _meanings(program)
    wanted = meanings.get(block)
    same = (b for b in tree.blocks(program) if wanted is not None and meanings.get(b.name) == wanted)
    earlier = next(same, later)
    if earlier.name != later.name:
        return _shared(program, later, earlier)
    raise ScheduleError(
        f"no earlier stage computes the same as {block!r}",
        node=block,
        help="name the later one of two stages that compute one value in two ways",
    )


@lru_cache(maxsize=2)  # each stage of a program asks
def _meanings(program: Program) -> dict[str, tuple[object, ...]]:
    """What each stage of a definition computes, by its name; without stages of other forms."""
    found = {
        block.name: _meaning(program, block)
        for block in tree.blocks(program)
        if block.role is Role.DEFINED and not block.predicates
    }
    return {name: meaning for name, meaning in found.items() if meaning is not None}


def _meaning(program: Program, block: Block) -> tuple[object, ...] | None:
    """What two stages have in common that hold the same numbers; None for a stage of another form.

    Iterations are named by their place in the result, and those that are folded in their order.
    """
    places = [i.name if isinstance(i, Var) else "" for i in block.body.indices]
    folded = [it for it in block.iters if it.kind == "reduce"]
    spatial = {it.name for it in block.iters if it.kind == "spatial"}
    if len(places) != len(spatial) or set(places) != spatial:
        return None
    order = [*places, *(it.name for it in folded)]
    names: dict[str, Expr] = {name: Var(f"@{n}") for n, name in enumerate(order)}
    if block.is_reduction:
        try:
            reduction = match_reduction(block)
        except ScheduleError:
            return None
        kind: object = (reducer_of(block), reduction.identity)
        term = reduction.term
    else:
        kind, term = "elementwise", block.body.value
    extents = tuple(block.iter(name).extent for name in order)
    dtype = program.buffer(block.writes).dtype
    return dtype, kind, len(folded), extents, substitute(inlined(program, term, _exact), names)


def _exact(program: Program, read: Expr) -> Expr | None:
    """What an elementwise stage computes for an element, if it stores that as it is."""
    value = computed(program, read)
    if value is None or not isinstance(read, Load) or dtype_of(value, program) != program.buffer(read.buffer).dtype:
        return None
    return value


def _shared(program: Program, later: Block, earlier: Block) -> Outcome:
    def redirected(e: Expr) -> Expr:
        return Load(earlier.writes, e.indices) if isinstance(e, Load) and e.buffer == later.writes else e

    def visit(block: Block) -> Block:
        return replace(block, body=replace(block.body, value=transform(block.body.value, redirected)))

    result = without_dead(tree.map_blocks(program, visit))
    note = f"{later.name} computes the same as {earlier.name}, which is read in its place."
    return Outcome(result, (Phase("share_stage", "one stage for two", note, result),), (earlier.name,))


__all__ = ["share_stage"]
