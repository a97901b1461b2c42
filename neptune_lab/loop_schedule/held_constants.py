"""Inputs of a term that have one value in a whole reduction: h may read them, as the temperature in exp((x - m) / t).

h(t, r, r') moves a partial result of many elements, so it may not read what differs from element to element.  But a
value of the row, t[i] of exp((x[i, k] - m[i]) / t[i]), is the same for all k, and for all tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Cast, Expr, Load, Program
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_to_repair.read import Reading

if TYPE_CHECKING:
    from sympy import Symbol


def held_constants(
    program: Program, consumer: Block, reading: Reading, reads: Mapping[str, Iterable[Expr]]
) -> dict[Symbol, Expr]:
    """The inputs of a term that h may read, each converted to the dtype of the consumer.

    Formal statement: the expression reads floats alone, which are inputs of the program or complete before the nest of
    the consumer; and it has no other iteration variables than those by which the term reads its producers (their tags
    left out), so that it is the same at every element and every tag of one reduction; and no extremum of the term reads
    it: exp(x - min(m, s)) with s = -inf is infinite, and its h would be exp(s - s), not a number.

    Args:
        program: after naive fusion.
        consumer: the local block of the consumer.
        reading: its term as algebra.
        reads: for each producer's buffer, the index at which the term reads it, its tag left out.

    Returns:
        Symbol of the term -> the expression that it stands for.
    """
    position = tree.find_block(program, consumer.name)[0][0]
    complete = {p.name for p in program.buffers} - {
        b.writes for b in tree.blocks(program) if tree.find_block(program, b.name)[0][0] >= position
    }
    of_row = {name for index in reads.values() for e in index for name in variables(e)}
    dtype = program.buffer(consumer.writes).dtype
    in_extrema = reading.in_extrema()
    found: dict[Symbol, Expr] = {}
    for symbol, node in reading.reads:
        if not isinstance(node, Load) or node.buffer in reads or node.buffer not in complete or symbol in in_extrema:
            continue
        own = program.buffer(node.buffer).dtype
        if "float" in own and variables(node) <= of_row and all(inner == node for inner in loads(node)):
            found[symbol] = node if own == dtype else Cast(dtype, node)
    return found


__all__ = ["held_constants"]
