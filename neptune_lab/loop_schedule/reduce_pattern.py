"""f and g of a fused reduction, as the algebra takes them (paper, Algorithm 1, line 4; Eq. 6)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Program, Var
from neptune_lab.loop_ir.reduction import match_reduction
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.walks import substitute, transform, walk
from neptune_lab.loop_schedule.estimate import plain_reads
from neptune_lab.loop_schedule.held_constants import held_constants
from neptune_lab.loop_schedule.rounded_producers import check_rounding
from neptune_lab.loop_to_repair.read import Reading, assumptions, read_term

if TYPE_CHECKING:
    from sympy import Symbol


@dataclass(frozen=True, slots=True)
class ReducePattern:
    """f and g of one consumer, for the algebra.

    Args:
        reducer: f.
        term: g, with the maps between inlined.
        named: each read of a producer in the term, and the producer's buffer.
        reading: g as algebra, and the expression of each of its symbols.
        producers: the buffers of incomplete reductions that g reads, in the caller's order.
        reads: as in `ProducerReads`.
        assumptions: what the program shows about the sign of each symbol.
        constants: the inputs of g that have one value in a whole reduction (`held_constants`), and what they stand for.
    """

    reducer: str
    term: Expr
    named: dict[Expr, str]
    reading: Reading
    producers: tuple[str, ...]
    reads: dict[str, tuple[Expr, ...]]
    assumptions: dict[str, tuple[str, ...]]
    constants: dict[Symbol, Expr]


def inlined_term(program: Program, term: Expr, kept: tuple[str, ...]) -> Expr:
    """A term with the kept maps inlined, for the algebra."""
    blocks = {b.writes: b for b in tree.blocks(program) if b.name in kept}

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in blocks:
            source = blocks[e.buffer]
            names = [i.name for i in source.body.indices if isinstance(i, Var)]
            value = substitute(plain_reads(source), dict(zip(names, e.indices, strict=True)))
            return transform(value, rule)
        return e

    return transform(term, rule)


def match_reduce_pattern(
    program: Program, consumer: Block, producers: dict[str, int | None], kept: tuple[str, ...]
) -> ReducePattern:
    """f and g of a consumer.

    Args:
        program: the program after naive fusion.
        consumer: the local block of the consumer.
        producers: the buffers of incomplete reductions, and the axis of each that is the tag (None: it has no tags).
        kept: the maps between that are separate blocks.

    Raises:
        RepairError: step "read": the term is not one that the algebra takes, or rounds a producer's result.
    """
    reduction = match_reduction(consumer)
    term = inlined_term(program, reduction.term, kept)
    extents = {it.name: it.extent for it in consumer.iters}
    named: dict[Expr, str] = {}
    reads: dict[str, tuple[Expr, ...]] = {}
    for node in walk(term):
        if isinstance(node, Load) and node.buffer in producers:
            axis = producers[node.buffer]
            index = tuple(simplify(i, extents) for n, i in enumerate(node.indices) if n != axis)
            if reads.setdefault(node.buffer, index) != index:
                raise RepairError(
                    f"the term reads {node.buffer!r} at two different places",
                    step="read",
                    expression=node.buffer,
                    node=consumer.name,
                    help="a repaired reduction may read each producer at one index only",
                )
            named[node] = node.buffer
    _check_floats(program, consumer, reads)
    check_rounding(program, consumer.name, term, named, reads)
    reading = read_term(term, named)
    order = tuple(p for p in producers if p in reads)
    held = held_constants(program, consumer, reading, reads)
    return ReducePattern(reduction.reducer, term, named, reading, order, reads, assumptions(program, reading), held)


def _check_floats(program: Program, consumer: Block, producers: Collection[str]) -> None:
    """Raise RepairError, step "read", unless the reduction and all that it reads of its producers are floats.

    Formal statement: h is derived over the real numbers, where nothing wraps around, every difference and quotient
    exists, and a maximum of nothing is -inf.  None of this holds for integers; truth values do not wrap around, and
    repairs of "any" and "all" are theirs.
    """
    for name in (consumer.writes, *producers):
        dtype = program.buffer(name).dtype
        if "float" not in dtype and dtype != "bool":
            raise RepairError(
                f"{name!r} is of dtype {dtype}, and repairs are derived for numbers that do not wrap around",
                step="read",
                expression=name,
                node=consumer.name,
                help="convert it to float32, or leave it in a loop of its own",
            )
