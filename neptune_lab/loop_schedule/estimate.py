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

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, Store, Var, add, mul
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.walks import transform, variables


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

    def _at_most(self, count: Expr, most: int) -> Expr:
        return count if most <= self.total else Op("min", (Const(self.total), count))


def progress_of(program: Program, local: str, var: str) -> ReductionProgress:
    """The progress along loop `var` of block `local`, which folds a tile (or an element) per iteration.

    Raises:
        RepairError: step "count": the number of elements is not the same in every run of the loop.
    """
    _, block, loops = tree.find_block(program, local)
    depth = tree.depth_of(loops, var)
    tags = loops[depth].extent
    if any(it.kind == "reduce" and it.binding == Var(var) for it in block.iters):
        return ReductionProgress(tags, 1, tags)
    # The variable of a tile's elements comes directly after that of its tag (privatize_reduction).
    tag = next(n for n, it in enumerate(block.iters) if it.kind == "spatial" and it.binding == Var(var))
    step = block.iters[tag + 1].extent
    others = [it.extent for n, it in enumerate(block.iters) if it.kind == "reduce" and n != tag + 1]
    total = step * tags
    outer = {loop.var for loop in loops[:depth]}
    extents = {loop.var: loop.extent for loop in loops}
    for predicate in block.predicates:
        match predicate:
            case Op("lt", (index, Const(limit))) if var in variables(index):
                reach = bounds(index, extents)
                if reach is not None and reach[1] < limit:
                    continue
                if variables(index) & outer:
                    raise RepairError(
                        f"how many elements loop {var!r} runs over depends on {', '.join(variables(index) & outer)}: "
                        f"{expression(predicate)}",
                        step="count",
                        expression=expression(predicate),
                        node=local,
                        help="choose tile sizes that divide the reduced dimension",
                    )
                total = min(total, int(limit))
    return ReductionProgress(tags, step, total, prod(others))


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
