"""The range of a value, by interval arithmetic on its expression: its sign, and whether it can be infinite.

The algebra's assumptions come from here (a maximum of absolute values, a sum of squares), not only from the user.
Ranges are closed: an exponential is positive over the reals but underflows to 0 in floats, so only what is bounded away
from 0 counts as positive.  Anything else keeps its guard at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import networkx as nx
import numpy as np

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import (
    Block,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Previous,
    Program,
    Var,
    bound_loops,
    folded_loops,
    loads,
    reads_buffer,
    substitute,
)
from neptune_lab.loop_ir.reduction import IDENTITIES, reducer_of
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.scalar_ops import NUMPY, OPERATIONS, ScalarOp, compose

_INF = math.inf


@dataclass(frozen=True, slots=True)
class ValueRange:
    """`low <= value <= high`; the ends may be infinite.

    >>> ValueRange(0.5, 2.0).words, ValueRange(0.0, 2.0).words, ValueRange(-1.0, 2.0).words
    (('positive',), ('nonnegative',), ())
    """

    low: float = -_INF
    high: float = _INF

    @property
    def words(self) -> tuple[str, ...]:
        """The strongest word for its sign, as `repair.solve` takes it; none if both signs are possible."""
        for word, holds in (
            ("positive", self.low > 0),
            ("negative", self.high < 0),
            ("nonnegative", self.low >= 0),
            ("nonpositive", self.high <= 0),
        ):
            if holds:
                return (word,)
        return ()

    def hull(self, other: ValueRange) -> ValueRange:
        """The smallest range that contains both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))


_ANY = ValueRange()
_UNIT = ValueRange(0.0, 1.0)


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
            return _UNIT
        case Cast(dtype, arg):
            inner = of(arg)
            # To integers: rounded towards 0, then wrapped around.
            return (
                inner if "float" in dtype else _within(ValueRange(*map(_towards_zero, (inner.low, inner.high))), dtype)
            )
        case Op("mul", (a, b)) if _same(a, b):
            return _even_power(of(a), 2.0)
        case Op("pow", (base, exponent)):
            return _power(of(base), _constant(exponent))
        case Op("select", (_, a, b)):
            return of(a).hull(of(b))
        case Op("guard", (a, _, replacement)):
            return of(a).hull(of(replacement))
        case Op(name, args):
            return range_of_operation(name, [of(a) for a in args])
        case Load(buffer, _) | Previous(buffer, _, _):
            return _of_buffer(program, buffer, around & _sources(program)[buffer])
    return _ANY


def _known(values: ValueRange) -> ValueRange:
    """The range with ends that are NaN, such as -inf - (-inf), replaced by infinities."""
    low, high = values.low, values.high
    return ValueRange(-_INF if math.isnan(low) else low, _INF if math.isnan(high) else high)


@lru_cache(maxsize=128)
def _sources(program: Program) -> dict[str, frozenset[str]]:
    """For each buffer, those that its values depend on, itself among them.

    Only these can be met again while its range is computed, so that a range is computed once however many paths of a
    chain of stages lead to it.
    """
    reads = nx.DiGraph((b.writes, read.buffer) for b in tree.blocks(program) for read in loads(b.body.value))
    reads.add_nodes_from(buffer.name for buffer in program.buffers)
    return {name: frozenset(nx.descendants(reads, name)) | {name} for name in reads}


@lru_cache(maxsize=4096)
def _of_buffer(program: Program, buffer: str, around: frozenset[str]) -> ValueRange:
    reducer, term = _folded(program, buffer)
    if term is None or buffer in around:
        return _within(_ANY, program.buffer(buffer).dtype)
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
        return _ANY
    low = each.low if each.low >= 1 else (_bounded_power(each.low, count) if count < _INF else 0.0)
    return ValueRange(low, each.high if each.high <= 1 else _bounded_power(each.high, count))


def _within(values: ValueRange, dtype: str) -> ValueRange:
    """The range after conversion to a dtype; integers beyond the ends of the dtype wrap around."""
    if dtype == "bool":
        return _UNIT
    if not dtype.startswith(("int", "uint")):
        return values
    limits = np.iinfo(dtype)
    if values.low < limits.min or values.high > limits.max:
        return ValueRange(float(limits.min), float(limits.max))
    return values


def _same(a: Expr, b: Expr) -> bool:
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


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _multiplied(a: ValueRange, b: ValueRange) -> ValueRange:
    corners = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return ValueRange(min(corners), max(corners))


def _divided(a: ValueRange, b: ValueRange) -> ValueRange:
    if b.low > 0 or b.high < 0:
        return _multiplied(a, ValueRange(1 / b.high, 1 / b.low))
    if a.low >= 0 and b.low >= 0:
        return ValueRange(0.0)  # an infinity at most
    return _ANY


def _even_power(a: ValueRange, exponent: float) -> ValueRange:
    ends = [_bounded_power(abs(a.low), exponent), _bounded_power(abs(a.high), exponent)]
    return ValueRange(0.0 if a.low <= 0 <= a.high else min(ends), max(ends))


def _power(base: ValueRange, exponent: float | None) -> ValueRange:
    if exponent is None:
        return ValueRange(0.0) if base.low >= 0 else _ANY
    if exponent > 0 and exponent % 2 == 0:
        return _even_power(base, exponent)
    if exponent < 0:
        return _divided(ValueRange(1.0, 1.0), _power(base, -exponent))
    if base.low >= 0:
        return ValueRange(_bounded_power(base.low, exponent), _bounded_power(base.high, exponent))
    return _ANY


def _bounded_power(base: float, exponent: float) -> float:
    try:
        return base**exponent
    except OverflowError:
        return _INF


def _absolute(a: ValueRange) -> ValueRange:
    ends = (abs(a.low), abs(a.high))
    return ValueRange(0.0 if a.low <= 0 <= a.high else min(ends), max(ends))


_RULES: dict[str, Callable[..., ValueRange]] = {
    "sub": lambda a, b: ValueRange(a.low - b.high, a.high - b.low),
    "mul": _multiplied,
    "div": _divided,
    "neg": lambda a: ValueRange(-a.high, -a.low),
    "abs": _absolute,
}


def range_of_operation(name: str, args: Sequence[ValueRange]) -> ValueRange:
    """The range of an operation on ranges: by its own rule, or by its row in the table of scalar operations."""
    row = OPERATIONS[name]
    if name in _RULES:
        return _known(_RULES[name](*args))
    if row.rising:
        result = _known(ValueRange(_at(row, [a.low for a in args]), _at(row, [a.high for a in args])))
    elif row.formula is not None:
        result = compose(row.formula, args, range_of_operation, lambda value: ValueRange(value, value))
    else:
        result = _ANY
    least, most = row.within  # reached in floats
    return ValueRange(max(result.low, least), min(result.high, most))


def _at(row: ScalarOp, values: Sequence[float]) -> float:
    with np.errstate(all="ignore"):
        return float(NUMPY[row.name](*(np.float64(max(value, row.start)) for value in values)))


def may_be_infinite(program: Program, expr: Expr, sign: int) -> bool:
    """Whether the value can be +inf (sign 1) or -inf (sign -1) for some inputs.

    Any float input may be infinite, and a product or a sum of finite values may overflow, so only a range with a finite
    end excludes it.
    """
    values = range_of(program, expr)
    return values.high == _INF if sign > 0 else values.low == -_INF
