"""Checks that a reduction folds each of its elements once, and that a scan visits its tags in order."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TypeAlias

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.iteration_domain import Extents, IterationDomain, extents_of, iteration_domain, steps_along
from neptune_lab.loop_ir.nodes import Block, Loop, Program
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.walks import loads

# How many elements a reduction folds, and the names of its spatial iterations in the definition.
FoldSize: TypeAlias = tuple[int, frozenset[str]]


def fold_sizes(program: Program, definition: Program) -> dict[str, FoldSize]:
    """For each block that folds tiles: how many elements one of its results folds, and the names of its spatial
    iterations in the definition.

    A block folds the elements of its stage in the definition; if it folds the results of other tiles, it folds these.
    """
    stages = {b.name: b for b in tree.blocks(definition)}
    sizes: dict[str, FoldSize] = {}
    tiles = {b.writes: b.origin for b in tree.blocks(program) if b.role in PARTIAL}
    for block in tree.blocks(program):
        if block.role not in PARTIAL or (stage := stages.get(block.origin)) is None:
            continue
        count = prod(it.extent for it in stage.iters if it.kind == "reduce")
        for name in dict.fromkeys(r.buffer for r in loads(block.body.value)):
            if name != block.writes and tiles.get(name) == block.origin:
                count = prod(program.buffer(name).shape) // prod(definition.buffer(stage.writes).shape)
        sizes[block.name] = count, frozenset(it.name for it in stage.iters if it.kind == "spatial")
    return sizes


@lru_cache(maxsize=4096)
def check_fold(block: Block, loops: Extents, size: FoldSize | None) -> None:
    """Formal statement: for each element that a reduction stores, every value of its reduced iterations occurs once,
    and no loop inside the outermost one that it folds along repeats it.

    Args:
        block: any block; only reductions and scans are checked.
        loops: the loops around it, outermost first.
        size: what `fold_sizes` has for the block; None: the count of a tiled reduction is not checked.

    Raises:
        ScheduleError: elements are folded more than once, or are missing.
    """
    scan = block.role is Role.SCAN
    if not (block.is_reduction or scan):
        return
    reduced = {it.name for it in block.iters if it.kind == "reduce"} | ({block.iters[0].name} if scan else set())
    domain = iteration_domain(block.iters, block.predicates, loops)
    _check_each_once(block, loops, reduced, domain)
    if block.role not in PARTIAL:
        _check_all_values(block, reduced, domain)
    elif size is not None:
        _check_count(block, reduced, domain, size)


def _check_each_once(block: Block, loops: Extents, reduced: set[str], domain: IterationDomain) -> None:
    order = [var for var, _ in loops]
    folded = {var for g in domain.groups if reduced & set(g.iters) for var in g.loops}
    first = min((order.index(var) for var in folded), default=len(order))
    again = [var for var in domain.repeating if order.index(var) > first]
    again += [
        v for g in domain.groups if not g.once for v in g.loops if reduced & set(g.iters) or order.index(v) > first
    ]
    if again:
        raise ScheduleError(
            f"block {block.name!r} would fold elements again in every iteration of loop {again[0]!r}",
            node=block.name,
            help=f"keep {again[0]!r} outside the loops that {block.name!r} folds along, or out of its nest",
        )


def _check_all_values(block: Block, reduced: set[str], domain: IterationDomain) -> None:
    for group in domain.groups:
        mine = reduced & set(group.iters)
        if not mine:
            continue
        wanted = prod(block.iter(name).extent for name in mine)
        _, fewest, _ = group.counts(set(group.iters) - mine)
        if fewest < wanted:
            raise ScheduleError(
                f"block {block.name!r} would fold {fewest} of the {wanted} values of {', '.join(sorted(mine))}",
                node=block.name,
                help="undo the step: its loops or bounds leave elements out",
            )


def _check_count(block: Block, reduced: set[str], domain: IterationDomain, size: FoldSize) -> None:
    wanted, spatial = size
    own = reduced | {it.name for it in block.iters if it.name not in spatial}
    fewest = prod(group.counts(set(group.iters) - own)[1] for group in domain.groups)
    if fewest != wanted:
        raise ScheduleError(
            f"block {block.name!r} would fold {fewest} elements of {block.origin!r}, which folds {wanted}",
            node=block.name,
            help="undo the step: its loops or bounds leave elements out",
        )


def check_tags(block: Block, loops: tuple[Loop, ...]) -> None:
    """Formal statement: every scan visits its tags in increasing order: from the outermost loop inwards, the steps of
    its tag do not grow.

    Raises:
        ScheduleError: the order is another, or cannot be determined.
    """
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


__all__ = ["check_fold", "check_tags", "fold_sizes"]
