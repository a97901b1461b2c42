"""Where a producer sits at a singular point, is there anything yet to repair?

A stand-in for the singular value (`repair.guard`) is right as algebra, but h from there to the next value can overflow:
exp(0 - r') for r' = -142 is infinite in float32, and infinity times a sum of 0 is no number.  In most programs nothing
has been carried by then: a running maximum is -inf only as long as every score was -inf, and then every term was 0.
Where the program shows that, h keeps the identity whatever the previous value is, and the previous value is read as it
is, or as the current one, with which h does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, substitute, transform, walk
from neptune_lab.loop_ir.reduction import IDENTITIES, reducer_of
from neptune_lab.loop_ir.sign import is_nonnegative
from neptune_lab.loop_ir.simplify import simplify
from neptune_lab.loop_ir.written import is_identity


def carries_nothing(
    program: Program,
    consumer: Block,
    reducer: str,
    term: Expr,
    producer: str,
    point: float,
    stand_ins: Mapping[Expr, float],
) -> bool:
    """Whether all that `consumer` has folded is its identity, as long as `producer` is at `point`.

    Formal statement: the producer folds u, and is at the point only if every u was (a max at -inf; a max or a sum of
    what is not negative at 0); u stands in the consumer's term, at the same elements; and with u at the point, and the
    producers' stand-ins, the term is the identity of its reducer.

    Args:
        consumer: the (local) block whose term it is. reducer: its own. term: with the maps between written out.
        stand_ins: a regular value for each read of a producer in `term`.
    """
    folded = _element(program, producer)
    if folded is None:
        return False
    block, own_reducer, element = folded
    if not _only_if_all(program, own_reducer, element, point):
        return False
    wanted = _in_loops(program, block, element)
    found = {node: _in_loops(program, consumer, node) for node in walk(term)}
    for cause, value in _causes(wanted, point):
        here = [node for node, placed in found.items() if placed == cause and not isinstance(node, Const)]
        if here and is_identity(program, reducer, term, {**stand_ins, here[0]: value}):
            return True
    return False


def _element(program: Program, buffer: str) -> tuple[Block, str, Expr] | None:
    """The block that folds single elements into a reduction, through the tiles that it was made private in: it, its
    reducer, and its term."""
    block = writer_of(program, buffer)
    if block is None or (reducer := reducer_of(block)) is None or not isinstance(block.body.value, Op):
        return None
    term = block.body.value.args[1]
    if isinstance(term, Load):
        inner = writer_of(program, term.buffer)
        if inner is not None and inner.origin == block.origin and inner.name != block.name:
            return _element(program, term.buffer)
    return block, reducer, term


def _only_if_all(program: Program, reducer: str, element: Expr, point: float) -> bool:
    if point == IDENTITIES[reducer] and reducer in ("max", "min"):
        return True
    return point == 0 and reducer in ("max", "sum") and is_nonnegative(program, element)


def _causes(element: Expr, point: float) -> list[tuple[Expr, float]]:
    """The element at the point, and what is under it that must be so then: |x| = 0 and x * x = 0 only if x = 0."""
    match element:
        case Op("abs", (x,)) if point == 0:
            return [(element, point), *_causes(x, 0.0)]
        case Op("mul", (x, y)) if point == 0 and x == y:
            return [(element, point), *_causes(x, 0.0)]
        case Cast(dtype, x) if "float" in dtype:
            return [(element, point), *_causes(x, point)]
    return [(element, point)]


def _in_loops(program: Program, block: Block, expr: Expr) -> Expr:
    """The expression over loop variables, indices made short; casts between floats and guards left out."""
    _, _, loops = tree.find_block(program, block.name)
    extents = {loop.var: loop.extent for loop in loops}
    env = {it.name: it.binding for it in block.iters}

    def rule(e: Expr) -> Expr:
        if isinstance(e, Load):
            return Load(e.buffer, tuple(simplify(i, extents) for i in e.indices))
        return e.args[0] if isinstance(e, Op) and e.name == "guard" else e

    return transform(substitute(expr, env), rule)


__all__ = ["carries_nothing"]
