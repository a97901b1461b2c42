"""A reduction folds each of its elements once, and a scan meets its tags in order."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TypeAlias

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Loop, Program, loads
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.visits import Extents, extents_of, steps_along, visits

Domain: TypeAlias = tuple[int, frozenset[str]]


def domains(program: Program, definition: Program) -> dict[str, Domain]:
    """For each block that folds tiles: how many elements it folds in all, and the names of its other iterations.

    It folds those of its stage in the definition, or where it folds tiles of tiles, those of the tiles.
    """
    stages = {b.name: b for b in tree.blocks(definition)}
    found: dict[str, Domain] = {}
    tiles = {b.writes: b.origin for b in tree.blocks(program) if b.role in PARTIAL}
    for block in tree.blocks(program):
        if block.role not in PARTIAL or (stage := stages.get(block.origin)) is None:
            continue
        count = prod(it.extent for it in stage.iters if it.kind == "reduce")
        for name in dict.fromkeys(r.buffer for r in loads(block.body.value)):
            if name != block.writes and tiles.get(name) == block.origin:
                count = prod(program.buffer(name).shape) // prod(definition.buffer(stage.writes).shape)
        found[block.name] = count, frozenset(it.name for it in stage.iters if it.kind == "spatial")
    return found


@lru_cache(maxsize=4096)
def check_fold(block: Block, loops: Extents, domain: Domain | None) -> None:
    """Formal statement: for each element that a reduction visits, every value of its reduced iterations is visited
    once, and no loop outside of which it folds repeats it."""
    scan = block.role is Role.SCAN
    if not (block.is_reduction or scan):
        return
    reduced = {it.name for it in block.iters if it.kind == "reduce"} | ({block.iters[0].name} if scan else set())
    found = visits(block.iters, block.predicates, loops)
    order = [var for var, _ in loops]
    folded = {var for g in found.groups if reduced & set(g.iters) for var in g.loops}
    first = min((order.index(var) for var in folded), default=len(order))
    again = [var for var in found.idle if order.index(var) > first]
    again += [
        v for g in found.groups if not g.once for v in g.loops if reduced & set(g.iters) or order.index(v) > first
    ]
    if again:
        raise ScheduleError(
            f"block {block.name!r} would fold elements again in every iteration of loop {again[0]!r}",
            node=block.name,
            help=f"keep {again[0]!r} outside the loops that {block.name!r} folds along, or out of its nest",
        )
    for group in found.groups:
        mine = reduced & set(group.iters)
        if not mine or block.role in PARTIAL:
            continue
        wanted = prod(block.iter(name).extent for name in mine)
        _, fewest, _ = group.counts(set(group.iters) - mine)
        if fewest < wanted:
            raise ScheduleError(
                f"block {block.name!r} would fold {fewest} of the {wanted} values of {', '.join(sorted(mine))}",
                node=block.name,
                help="undo the step: its loops or bounds leave elements out",
            )
    if block.role in PARTIAL and domain is not None:
        wanted, spatial = domain
        own = reduced | {it.name for it in block.iters if it.name not in spatial}
        fewest = prod(g.counts(set(g.iters) - own)[1] for g in found.groups)
        if fewest != wanted:
            raise ScheduleError(
                f"block {block.name!r} would fold {fewest} elements of {block.origin!r}, which folds {wanted}",
                node=block.name,
                help="undo the step: its loops or bounds leave elements out",
            )


def check_tags(block: Block, loops: tuple[Loop, ...]) -> None:
    """Formal statement: every scan meets its tags in order, i.e. along the loops around it, outermost first, the steps
    of its tag do not grow."""
    if block.role is not Role.SCAN:
        return
    steps = steps_along(block.iters[0].binding, extents_of(loops))
    if steps is None or any(step < 0 for _, step in steps):
        raise ScheduleError(
            f"block {block.name!r} would visit its tags in an unknown order",
            node=block.name,
            help="retire_tags first, or keep the loops of the tag as they are",
        )
    for (outer, a), (inner, b) in pairwise(steps):
        if a < b:
            raise ScheduleError(
                f"with loop {outer!r} outside {inner!r}, block {block.name!r} would visit its tags out of order",
                node=block.name,
                help="retire_tags first, or keep the loops of the tag in order",
            )


__all__ = ["check_fold", "check_tags", "domains"]
