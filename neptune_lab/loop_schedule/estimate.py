"""Running estimates of the final value of a sum, from the elements seen so far.

A vector repair moves its sums between any two reference values (`repair.vector`).  So any value can be the reference at
a tag, as long as it is the producer's final value at the last tag.  For a producer that is a plain sum over N terms,
its value after n terms times N / n is such a value, as N / N = 1.  If the consumer divides by N, it is the running
mean.  So the sum of (c - mean)**2 is always taken about the mean of the elements so far, as in Welford's and Chan's
updates, and nothing cancels.  With the partial sum over N as the mean, the first tiles would be taken about a value
near 0, and a large mean would cost all digits.

An estimate has the form `x * (N / float(n))`, which only this module writes.  `plain_reads` removes it again for the
algebra, to which an estimate is a value of the producer like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.iteration_domain import always, points
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, Store, Var, add, mul
from neptune_lab.loop_ir.reach import as_sum, without_gaps
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import folded_loops, transform, variables
from neptune_lab.loop_schedule.affine import affine_terms


@dataclass(frozen=True, slots=True)
class ReductionProgress:
    """The elements that a reduction folds along the rolling loop.

    Args:
        tags: iterations of the loop.
        step: elements per iteration; the last may have fewer.
        total: elements in all.
        terms: terms per element, more than 1 if the reduction also folds over other dimensions.

    >>> progress = ReductionProgress(tags=3, step=2, total=5)
    >>> progress.seen(Const(2)), progress.seen_before(Const(2))
    (Op(name='min', args=(Const(value=5, dtype='int32'), Const(value=6, dtype='int32'))), Const(value=4, dtype='int32'))
    """

    tags: int
    step: int
    total: int
    terms: int = 1

    def seen(self, tag: Expr) -> Expr:
        """The number of elements up to and including iteration `tag`, as an index expression."""
        return self._at_most(mul(add(tag, Const(1)), self.step), self.step * self.tags)

    def seen_before(self, tag: Expr) -> Expr:
        """The number of elements before iteration `tag`."""
        return self._at_most(mul(tag, self.step), self.step * (self.tags - 1))

    def at(self, tag: int) -> int:
        """The number of elements in iteration `tag`."""
        return max(0, min(self.step, self.total - self.step * tag))

    def _at_most(self, count: Expr, most: int) -> Expr:
        return count if most <= self.total else Op("min", (Const(self.total), count))


def progress_of(program: Program, local: str, var: str) -> ReductionProgress:
    """The progress along loop `var` of block `local`, which folds a tile (or an element) per iteration.

    Raises:
        RepairError: step "count": the number of elements is not the same in every run of the loop, or not in every
            iteration but those at the end.
    """
    _, block, loops = tree.find_block(program, local)
    inside = loops[tree.depth_of(loops, var) :]
    folded = _terms_per_iteration(block, var, {x.var: x.extent for x in inside}, {x.var: x.extent for x in loops})
    most, total = folded[0], sum(folded)
    # Other dimensions that are folded in each iteration are counted once, as `terms`, if they are whole.
    for terms in dict.fromkeys((_other_dimensions(block, var), 1)):
        if most % terms == 0 and total % terms == 0:
            progress = ReductionProgress(len(folded), most // terms, total // terms, terms)
            if folded == [terms * progress.at(tag) for tag in range(len(folded))]:
                return progress
    shown = ", ".join(map(str, folded[:6])) + (", …" if len(folded) > 6 else "")
    raise RepairError(
        f"the iterations of loop {var!r} fold unlike numbers of elements: {shown}; a vector repair counts the elements "
        "so far, as if only iterations at the end fold fewer",
        step="count",
        expression=expression(block.body.value),
        node=local,
        help="roll over the outermost loop of the dimension, or choose tile sizes that divide it",
    )


def _terms_per_iteration(block: Block, var: str, inside: dict[str, int], extents: dict[str, int]) -> list[int]:
    """How many terms a block folds in each iteration of loop `var`.

    Args:
        inside: the extents of `var` and of the loops inside it.
        extents: the extents of all loops.
    """
    folding = {name: extent for name, extent in inside.items() if name in folded_loops(block) or name == var}
    predicates = [p for p in block.predicates if variables(p) & set(folding) and not always(p, extents)]
    for predicate in predicates:
        if others := sorted(variables(predicate) - set(folding)):
            raise RepairError(
                f"how many elements loop {var!r} runs over depends on {', '.join(others)}: {expression(predicate)}",
                step="count",
                expression=expression(predicate),
                node=block.name,
                help="choose tile sizes that divide the reduced dimension",
            )
    bounding = {var}.union(*(variables(p) for p in predicates))
    free = prod(extent for name, extent in folding.items() if name not in bounding)
    counts = _cut_at_an_end(predicates, var, folding)
    if counts is None:
        table = points([Var(var)], predicates, {name: folding[name] for name in sorted(bounding)})
        if table is None:
            raise RepairError(
                f"how many elements each iteration of loop {var!r} folds under "
                f"{' and '.join(map(expression, predicates))} is not known",
                step="count",
                expression=expression(predicates[0]),
                node=block.name,
                help="choose tile sizes that divide the reduced dimension",
            )
        counts = np.bincount(table[:, 0], minlength=folding[var]).tolist()
    return [free * int(count) for count in counts]


def _cut_at_an_end(predicates: list[Expr], var: str, sizes: dict[str, int]) -> list[int] | None:
    """How often one predicate `var * step + rest < limit` holds in each iteration of `var`, where `rest` takes each of
    the values 0 to step - 1 once; None if the predicates are others."""
    match predicates:
        case []:
            return [1] * sizes[var]
        case [Op("lt", (index, Const(int(limit))))]:
            split, form = affine_terms(index, var), None
            if split is not None:
                form = as_sum(split[1])
            reach = None if form is None else without_gaps(form, sizes)
            if split is None or reach is None or not reach.once or (reach.low, reach.high) != (0, split[0] - 1):
                return None
            return [max(0, min(split[0], limit - split[0] * tag)) for tag in range(sizes[var])]
    return None


def _other_dimensions(block: Block, var: str) -> int:
    """Elements of the folded dimensions that do not run along `var`.

    In a tile, the variable of its elements comes directly after that of its tag, if there is one (privatize_reduction).
    """
    along = next((n for n, it in enumerate(block.iters) if it.binding == Var(var)), len(block.iters))
    own = along if along < len(block.iters) and block.iters[along].kind == "reduce" else along + 1
    return prod(it.extent for n, it in enumerate(block.iters) if it.kind == "reduce" and n != own)


def is_plain_sum(program: Program, buffer: str) -> bool:
    """Whether `buffer` is a sum that is not repaired from tag to tag, so that it grows with the number of elements."""
    block = writer_of(program, buffer)
    return block is not None and reducer_of(block) == "sum" and block.repair is None


def estimated(read: Expr, progress: ReductionProgress, count: Expr, dtype: str) -> Expr:
    """The estimate of the final value of a sum, from its value `read` over `count` elements."""
    return Op("mul", (read, Op("div", (Const(float(progress.total), dtype), Cast(dtype, count)))))


def with_estimates(block: Block, buffers: Mapping[str, ReductionProgress], tag: Expr, program: Program) -> Block:
    """The block with every read of `buffers`, at its own tag, as an estimate, and their names in `estimates`."""
    estimates: dict[str, None] = {}

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in buffers:
            estimates[e.buffer] = None
            progress = buffers[e.buffer]
            return estimated(e, progress, progress.seen(tag), program.buffer(e.buffer).dtype)
        return e

    if block.estimates:
        return block  # a shared map in which the repair of an earlier consumer has put estimates
    value = transform(block.body.value, rule)
    if not estimates:
        return block
    return replace(block, body=Store(block.body.buffer, block.body.indices, value), estimates=tuple(estimates))


def plain_reads(block: Block) -> Expr:
    """The value that the block stores, with the plain reads in place of estimates."""
    buffers = block.estimates

    def rule(e: Expr) -> Expr:
        match e:
            case Op("mul", (Load(buffer) as read, Op("div", (Const(), Cast(_, _))))) if buffer in buffers:
                return read
        return e

    return transform(block.body.value, rule) if buffers else block.body.value
