"""Sums over all scores in two steps: along one dimension in the nest that computes the scores, then of what that gave.

The gradient of a slope of each head, of a learned cap or a temperature is a sum over samples, queries and keys. No
program holds all of these. But the nest of the gradient of the queries has every score of a row once; with the sums of
rows computed there, what is left is a sum of one number per row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Block, Load, Program, Var
from neptune_lab.loop_ir.products import axes_of, factors_of, is_product
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import is_plain, loads
from neptune_lab.operators.reverse_mode.stages import Axis, Stage, needed

# The most numbers that one program of the last step adds up.
MOST_AT_ONCE = 4096


def with_partial_sums(
    program: Program, stages: Sequence[Stage], results: Sequence[str]
) -> tuple[tuple[Stage, ...], dict[str, str]]:
    """The stages, with sums over all scores as sums of partial sums.

    before ⇒ after, where another result folds j:
        d_slope[h] = sum over b, i, j of t[b, h, i, j]
        ⇒ part[b, h, i] = sum over j of t[b, h, i, j];  d_slope[h] = sum over b, i of part[b, h, i]

    Formal statement: the axes of a sum range over a box, so the sum over all of them is the sum over some of sums over
    the others; it reads products (scores), and each of its axes by itself.

    Args:
        program: of these stages.
        stages: in order.
        results: names of stages.

    Returns:
        The stages; and by partial sum among them, the sum that it is a part of.
    """
    dims, by_block = dimensions(program), {block.name: block for block in blocks(program)}
    by_name = {stage.name: stage for stage in stages}

    def folds(stage: Stage) -> dict[Dimension, Axis]:
        own = dict(stage.folded)
        found = dims.all_of(by_block[stage.name], "reduce")
        return {d: (axis, own[axis]) for d, axis in found.items() if own[axis] > 1}

    last = [stage for name in results if (stage := _last_sum(name, by_name)) is not None]
    others = [folds(stage).keys() for stage in last]
    taken = {*by_name, *program.inputs}
    made: list[Stage] = []
    partial: dict[str, str] = {}
    for stage in stages:
        own = folds(stage) if stage in last else {}
        rows = (
            _rows_of_products(stage, stages, by_block, dims)
            if len(own) > 1 and all(map(is_plain, loads(stage.term)))
            else frozenset()
        )
        # Along what a nest folds anyway; a nest of its own goes along the last rows of its products.
        kept: list[Collection[Dimension]] = [fold for fold in others if fold and fold < own.keys() and fold <= rows]
        wanted = [*kept, *({d} for d in reversed(own) if d in rows)]
        if wanted:
            steps = [*_in_steps(stage, [axis for d, axis in own.items() if d in wanted[0]], taken)]
            partial |= dict.fromkeys((step.name for step in steps[:-1]), stage.name)
            made += steps
        else:
            made.append(stage)
    return tuple(made), partial


def _last_sum(name: str, stages: dict[str, Stage]) -> Stage | None:
    """The last sum on the way to a result, conversions and other maps of one stage aside."""
    while stages[name].reducer is None:
        read = [r for r in stages[name].reads if r in stages]
        if len(read) != 1:
            return None
        (name,) = read
    return stages[name] if stages[name].reducer == "sum" else None


def _rows_of_products(
    stage: Stage, stages: Sequence[Stage], by_block: Mapping[str, Block], dims: Dimensions
) -> frozenset[Dimension]:
    """The dimensions along which a sum reads rows or columns of matrix products; none if it is a product itself."""
    if is_product(by_block[stage.name]):
        return frozenset()
    found: set[Dimension] = set()
    for other in needed(stages, sorted(stage.reads)):
        block = by_block[other.name]
        if is_product(block):
            factors = factors_of(block)
            assert factors is not None
            left, right = map(axes_of, factors)
            found |= {d for d, axis in dims.all_of(block, "spatial").items() if axis in left ^ right}
    return frozenset(found)


def _in_steps(stage: Stage, along: Sequence[Axis], taken: set[str]) -> Iterator[Stage]:
    """The sum along some axes, and that over the others; in more steps if these are long."""
    places = [index.name for read in _by_rank(stage) for index in read.indices if isinstance(index, Var)]
    kept = [axis for axis in (*stage.axes, *stage.folded) if axis not in along]
    kept.sort(key=lambda axis: places.index(axis[0]) if axis[0] in places else -1)
    name = unique(f"{stage.name}_of_rows", taken, "_")
    taken.add(name)
    first = replace(stage, name=name, axes=tuple(kept), folded=tuple(along))
    yield first
    rest = replace(stage, folded=tuple(axis for axis in kept if axis in stage.folded), term=first.element)
    if prod(extent for _, extent in rest.folded) > MOST_AT_ONCE and len(rest.folded) > 1:
        yield from _in_steps(rest, rest.folded[-1:], taken)
    else:
        yield rest


def _by_rank(stage: Stage) -> list[Load]:
    """The reads of a sum, those of the most indices first."""
    found = [read for read in loads(stage.term) if isinstance(read, Load)]
    return sorted(found, key=lambda read: -len(read.indices))


__all__ = ["with_partial_sums"]
