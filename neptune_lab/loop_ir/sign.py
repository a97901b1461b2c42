"""The range of a value, by interval arithmetic on its expression: its sign, and whether it can be infinite.

The algebra's assumptions come from here (a maximum of absolute values, a sum of squares), not only from the user.
Only what is bounded away from 0 counts as positive.  Anything else keeps its guard at 0.
"""

from __future__ import annotations

import math
from functools import lru_cache

import networkx as nx
import numpy as np

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Previous, Program, Var
from neptune_lab.loop_ir.reduction import IDENTITIES, reducer_of
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.value_range import (
    ANY,
    UNIT,
    ValueRange,
    bounded_power,
    even_power,
    power,
    range_of_operation,
)
from neptune_lab.loop_ir.walks import bound_loops, folded_loops, loads, reads_buffer, substitute

_INF = math.inf


def _term(program: Program, buffer: str) -> tuple[str | None, Expr | None]:
    """The reducer of the block that writes `buffer`, and the term that it folds in; None and the whole value, if the
    block does not read its own buffer: a pointwise stage, or a scan whose previous values are in another buffer."""
    block = writer_of(program, buffer)
    if block is None:
        return None, None
    reducer = reducer_of(block)
    value = block.body.value
    if reducer is None:
        return None, value
    assert isinstance(value, Op)
    own = [reads_buffer(side, buffer) for side in value.args]
    if own.count(True) != 1:
        return None, value
    return reducer, value.args[own.index(False)]


def is_nonnegative(program: Program, expr: Expr) -> bool:
    """Whether the value is at least 0 for all inputs, as far as interval arithmetic shows."""
    return range_of(program, expr).low >= 0


def range_of(program: Program, expr: Expr, around: frozenset[str] = frozenset()) -> ValueRange:
    """The range of a scalar expression over all inputs, as far as interval arithmetic shows.

    A reduction has folded at least one element; if a tile may be empty, its identity is in the range too.

    Args:
        program: where the expression's reads come from.
        expr: the expression.
        around: buffers whose own range is being computed; a value that depends on itself (through its copy from the
            previous tag) may be anything.
    """

    def of(inner: Expr) -> ValueRange:
        return range_of(program, inner, around)

    match expr:
        case Const(value):
            return ValueRange(float(value), float(value))
        case Var():
            return ValueRange(0.0)  # loops count from 0
        case Cast("bool", _):
            return UNIT
        case Cast(dtype, arg):
            inner = of(arg)
            # To integers: rounded towards 0, then wrapped around.
            return (
                inner if "float" in dtype else _within(ValueRange(*map(_towards_zero, (inner.low, inner.high))), dtype)
            )
        case Op("mul", (a, b)) if _equal_factors(a, b):
            return even_power(of(a), 2.0)
        case Op("pow", (base, exponent)):
            return power(of(base), _constant(exponent))
        case Op("select", (_, a, b)):
            return of(a).hull(of(b))
        case Op("guard", (a, _, replacement)):
            return of(a).hull(of(replacement))
        case Op(name, args):
            return range_of_operation(name, [of(a) for a in args])
        case Load(buffer, _) | Previous(buffer, _, _):
            return _of_buffer(program, buffer, around & _sources(program)[buffer])
    return ANY


@lru_cache(maxsize=128)
def _sources(program: Program) -> dict[str, frozenset[str]]:
    """For each buffer, those that its values depend on, itself among them.

    Only these can be met again while its range is computed, so that a range is computed once however many paths of a
    chain of stages lead to it.
    """
    reads = nx.DiGraph((b.writes, read.buffer) for b in tree.blocks(program) for read in loads(b.body.value))
    reads.add_nodes_from(buffer.name for buffer in program.buffers)
    # A value that is carried depends on itself, so components of buffers that depend on each other come first.
    parts = nx.condensation(reads)
    found: dict[int, frozenset[str]] = {}
    for part in reversed(list(nx.topological_sort(parts))):
        found[part] = frozenset(parts.nodes[part]["members"]).union(*(found[source] for source in parts[part]))
    return {name: found[part] for name, part in parts.graph["mapping"].items()}


@lru_cache(maxsize=4096)
def _of_buffer(program: Program, buffer: str, around: frozenset[str]) -> ValueRange:
    reducer, term = _folded(program, buffer)
    if term is None or buffer in around:
        return _within(ANY, program.buffer(buffer).dtype)
    each = range_of(program, term, around | {buffer})
    block = writer_of(program, buffer)
    assert block is not None
    if reducer is None:  # its start value may be read too: the previous value at the first iteration
        for other in tree.blocks(program):
            if other.writes == buffer and other is not block:
                each = each.hull(range_of(program, other.body.value, around | {buffer}))
    if reducer in ("sum", "prod"):
        each = (_sum if reducer == "sum" else _product)(each, _count(block))
    if reducer is not None and may_be_empty(program, block):
        start = float(IDENTITIES[reducer])
        each = each.hull(ValueRange(start, start))
    return _within(each, program.buffer(buffer).dtype)


def _folded(program: Program, buffer: str) -> tuple[str | None, Expr | None]:
    """The reducer of a buffer, and the term of one element: a scan folds tiles, with an element at every tag."""
    reducer, term = _term(program, buffer)
    block = writer_of(program, buffer)
    if reducer is not None and block is not None and not block.is_reduction and isinstance(term, Load):
        inner, element = _term(program, term.buffer)
        return (reducer, element) if inner == reducer else (reducer, term)
    return reducer, term


def may_be_empty(program: Program, block: Block) -> bool:
    """Whether a reduction may be read after it has folded no element, as in a tile past the end.

    Formal statement: for some values of the loops that are not folded, a bound fails at the first value of the folded
    ones; the value is the reducer's identity then.
    """
    if not block.is_reduction:
        return False
    _, _, loops = tree.find_block(program, block.name)
    folded = folded_loops(block)
    kept = bound_loops(it for it in block.iters if it.kind == "spatial")
    first: dict[str, Expr] = {name: Const(0) for name in folded - kept}
    extents = {loop.var: loop.extent for loop in loops if loop.var not in first}
    rows = {simplify(it.binding, {}) for it in block.iters if it.kind == "spatial"}
    for predicate in block.predicates:
        if isinstance(predicate, Op) and predicate.name == "lt" and simplify(predicate.args[0], {}) in rows:
            continue  # a row past the end is never read
        match substitute(predicate, first):
            case Op("lt", (index, Const(limit))):
                reach = bounds(index, extents)
                if reach is None or reach[1] >= limit:
                    return True
            case _:
                return True
    return False


def _count(block: Block) -> float:
    """The most elements that a block folds; infinite for a scan, which folds whole tiles."""
    extents = [it.extent for it in block.iters if it.kind == "reduce"]
    return float(math.prod(extents)) if extents else _INF


def _sum(each: ValueRange, count: float) -> ValueRange:
    low = each.low if each.low >= 0 else count * each.low
    return ValueRange(low, each.high if each.high <= 0 else count * each.high)


def _product(each: ValueRange, count: float) -> ValueRange:
    if each.low < 0:
        return ANY
    low = each.low if each.low >= 1 else (bounded_power(each.low, count) if count < _INF else 0.0)
    return ValueRange(low, each.high if each.high <= 1 else bounded_power(each.high, count))


def _within(values: ValueRange, dtype: str) -> ValueRange:
    """The range after conversion to a dtype; integers beyond the ends of the dtype wrap around."""
    if dtype == "bool":
        return UNIT
    if not dtype.startswith(("int", "uint")):
        return values
    limits = np.iinfo(dtype)
    if values.low < limits.min or values.high > limits.max:
        return ValueRange(float(limits.min), float(limits.max))
    return values


def _equal_factors(a: Expr, b: Expr) -> bool:
    """Whether two factors are equal, apart from casts between floats."""
    while isinstance(a, Cast) and "float" in a.dtype:
        a = a.arg
    while isinstance(b, Cast) and "float" in b.dtype:
        b = b.arg
    return a == b


def _constant(expr: Expr) -> float | None:
    match expr:
        case Const(value):
            return float(value)
        case Cast(_, arg):
            return _constant(arg)
        case Op("neg", (arg,)):
            value = _constant(arg)
            return None if value is None else -value
    return None


def _towards_zero(value: float) -> float:
    return float(math.trunc(value)) if math.isfinite(value) else value


def may_be_infinite(program: Program, expr: Expr, sign: int) -> bool:
    """Whether the value can be +inf (sign 1) or -inf (sign -1) for some inputs.

    Any float input may be infinite, and a product or a sum of finite values may overflow, so only a range with a finite
    end excludes it.
    """
    values = range_of(program, expr)
    return values.high == _INF if sign > 0 else values.low == -_INF
