"""Divides a backward pass into parts, each of which can be one loop nest.

The gradient of the queries is a sum over keys, and those of keys and values are sums over queries.  A stage along both
dimensions, such as the scores, would have to go through memory between the two nests, with an element per pair.  So
each nest computes its own copy, and what lies along one dimension only, such as the delta of each row, is computed
before.  Each nest computes its copy in the order of axes that its products read (`tile_order`), and sums over groups of
heads where it sums over queries (`groups`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from neptune_lab.loop_ir.dimensions import Dimension, dimensions
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Load, Program
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.operators.reverse_mode.groups import with_groups_summed
from neptune_lab.operators.reverse_mode.stages import Stage, in_order, needed, renamed
from neptune_lab.operators.reverse_mode.tile_order import left_factors, reordered

# Up to so many products per element, computing them again takes less time than storing and loading the sum in float32:
# 2 operations each at 700 TFLOP/s against 8 bytes at 4 TB/s.
MOST_REPEATED = 700


@dataclass(frozen=True, slots=True)
class Division:
    """The stages in parts: first what several results read, then those of each group of results.

    Args:
        parts: without empty ones; their stages together are the definition.
        copies: by stage that computes again what an earlier part computes, the name of that one.
    """

    parts: tuple[tuple[Stage, ...], ...]
    copies: Mapping[str, str]


def divided(program: Program, stages: Sequence[Stage], results: Sequence[str], grouped: bool | None = None) -> Division:
    """Divides the stages into parts.

    Args:
        program: a definition.
        stages: its stages.
        results: names of stages.
        grouped: as for `with_groups_summed`.

    Returns:
        The parts, in which copies have names with a number.
    """
    dims = dimensions(program)
    by_block = {block.name: block for block in blocks(program)}
    by_name = {stage.name: stage for stage in stages}

    def folded_last(name: str) -> frozenset[Dimension]:
        """The dimensions of the last sum that makes a result, sums of its partial results aside."""
        while by_name[name].reducer is None or isinstance(by_name[name].term, Load):
            made = [read for read in by_name[name].reads if read in by_name]
            if len(made) != 1:
                return frozenset()
            (name,) = made
        own = dims.all_of(by_block[name], "reduce")
        return frozenset(d for d, axis in own.items() if by_name[name].extents[axis] > 1)

    groups: dict[frozenset[Dimension], list[str]] = {}
    for name in results:
        groups.setdefault(folded_last(name), []).append(name)
    of_group = [needed(stages, names) for names in groups.values()]
    spatial = {stage.name: dims.all_of(by_block[stage.name], "spatial").keys() for stage in stages}
    early = {name for fold, group in zip(groups, of_group, strict=True) for name in _early(group, fold, spatial)}
    early -= {*results}
    if len(groups) == 1 and not early:
        orders = left_factors(stages, results, next(iter(groups)), dims, by_block)
        whole = with_groups_summed([reordered(stage, orders) for stage in stages], results, grouped)
        return Division((whole,), {})
    folds = [fold for fold in groups if fold]
    repeated = {
        stage.name
        for stage in stages
        if sum(bool(fold & dims.all_of(by_block[stage.name]).keys()) for fold in folds) > 1
        and _products(stage) <= MOST_REPEATED
        and stage.name not in early
    }
    shared = early | {
        stage.name for stage in stages if stage.name not in repeated and sum(stage in group for group in of_group) > 1
    }
    before = needed(stages, [stage.name for stage in stages if stage.name in shared])
    parts = [before]
    taken = {*by_name, *program.inputs}
    copies: dict[str, str] = {}
    for n, (fold, group) in enumerate(zip(groups, of_group, strict=True)):
        own = [stage for stage in group if stage not in before]
        orders = left_factors(own, results, fold, dims, by_block)
        names: dict[str, str] = {}
        for stage in own if n else ():
            if stage.name not in results:  # (whether or not it is a copy, so that names are the same at all sizes)
                names[stage.name] = unique(f"{stage.name}_{n + 1}", taken, "_")
                taken.add(names[stage.name])
        copies |= {copy: name for name, copy in names.items()}
        own = in_order([renamed(reordered(stage, orders), names) for stage in own])
        parts.append(with_groups_summed(own, results, grouped))
    return Division(tuple(part for part in parts if part), copies)


def _early(
    group: Sequence[Stage], fold: frozenset[Dimension], spatial: Mapping[str, Collection[Dimension]]
) -> list[str]:
    """The sums of a group that are computed before its nest, such as the delta of a row before the sum over rows.

    Formal statement: the nest goes along `fold`, and computes elements along further dimensions that such a sum lacks,
    so that each of its programs would compute the sum again; and the sum reads nothing that the nest computes along
    these dimensions.
    """
    found: list[str] = []
    for stage in group:
        own = {*spatial[stage.name]}
        if stage.reducer is None or _products(stage) == 1 or not fold or not fold <= own:
            continue
        wider = {other.name for other in group if own < {*spatial[other.name]}}
        if wider and not wider & {other.name for other in needed(group, [stage.name])}:
            found.append(stage.name)
    return found


def _products(stage: Stage) -> int:
    """How many terms one element folds."""
    count = 1
    for _, extent in stage.folded:
        count *= extent
    return count


__all__ = ["Division", "divided"]
