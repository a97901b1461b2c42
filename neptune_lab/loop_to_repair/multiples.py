"""Compares scalar expressions as algebra: whether one is 0, and whether it is a multiple of another."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import product

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Const, Expr, Op, children, rebuild
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import transform, variables, walk
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.loop_to_repair.read import read_term
from neptune_lab.repair import simplify, time_limit
from neptune_lab.repair.limit import limited

# Conditions of selects whose branches are compared one by one.
MOST_CONDITIONS = 4
# Processor time of one comparison.
SECONDS = 2.0


def is_zero(expr: Expr) -> bool:
    """Whether an expression is 0 over the reals, however its conditions turn out.

    Args:
        expr: of floats.

    Raises:
        RepairError: step "read", if it is not arithmetic, or has more than `MOST_CONDITIONS` conditions; step "time",
            if the algebra takes longer than `SECONDS`.

    >>> from neptune_lab.loop_ir.nodes import Load
    >>> x, one = Load("x", ()), Const(1.0, "float32")
    >>> is_zero(Op("sub", (one, Op("div", (x, x))))), is_zero(Op("sub", (one, x)))
    (True, False)
    """
    return all(_vanishes(case) for (case,) in _cases(expr))


def multiple_of(expr: Expr, term: Expr, folded: Collection[str], dtype: str) -> Expr | None:
    """The f with `expr == f * term`, however the conditions turn out, if it is the same along the folded axes.

    Args:
        expr, term: of floats.
        folded: variables that f may not read.
        dtype: of f's constants.

    Returns:
        f; 0 if `expr` is; None if the algebra finds none.

    Raises:
        RepairError: as `is_zero`, or no operation computes f.

    >>> from neptune_lab.loop_ir.nodes import Load, Var
    >>> x, m = Load("x", (Var("j"),)), Load("m", ())
    >>> expression(multiple_of(Op("mul", (x, m)), x, ["j"], "float32"))
    'm[]'
    >>> multiple_of(x, m, ["j"], "float32") is None
    True
    """
    found: set[Expr] = set()
    for own, other in _cases(expr, term):
        none, nothing = _vanishes(own), _vanishes(other)
        if none and nothing:
            continue  # every f will do
        if nothing:
            return None
        reading = read_term(Op("div", (own, other)), {})
        ratio = simplify.nicest(reading.term)
        values = {symbol: node for symbol, node in reading.reads if symbol in ratio.free_symbols}
        if any(set(folded) & variables(node) for node in values.values()):
            return None
        found.add(lower(ratio, values, dtype))
    if len(found) > 1:
        return None
    return found.pop() if found else Const(0.0, dtype)


def _vanishes(expr: Expr) -> bool:
    """Whether an expression without conditions is 0."""
    term = read_term(transform(expr, _exactly), {}).term
    with time_limit(SECONDS):
        return limited(lambda: simplify.is_zero(term), term)


def _exactly(node: Expr) -> Expr:
    """log(2) and its reciprocal, which derivatives of powers of two hold as floats, as what they stand for."""
    if not isinstance(node, Const) or abs(node.value) not in (math.log(2), 1 / math.log(2)):
        return node
    log, sign = Op("log", (Const(2.0, node.dtype),)), Const(math.copysign(1.0, node.value), node.dtype)
    return Op("mul" if abs(node.value) < 1 else "div", (sign, log))


def _cases(*exprs: Expr) -> Iterator[tuple[Expr, ...]]:
    """The expressions for every way in which the conditions of their selects may turn out."""
    selects = [node for e in exprs for node in walk(e) if isinstance(node, Op) and node.name == "select"]
    conditions = list(dict.fromkeys(node.args[0] for node in selects))
    if len(conditions) > MOST_CONDITIONS:
        raise RepairError(
            f"the expression has {len(conditions)} conditions",
            step="read",
            expression=expression(exprs[0])[:80],
            help=f"expressions with up to {MOST_CONDITIONS} are compared, in every way in which they may turn out",
        )
    for truth in product((True, False), repeat=len(conditions)):
        chosen = dict(zip(conditions, truth, strict=True))
        yield tuple(_resolved(e, chosen) for e in exprs)


def _resolved(expr: Expr, chosen: Mapping[Expr, bool]) -> Expr:
    """The expression with the branch of each select whose condition turned out so."""
    if isinstance(expr, Op) and expr.name == "select":
        return _resolved(expr.args[1] if chosen[expr.args[0]] else expr.args[2], chosen)
    operands = children(expr)
    return rebuild(expr, tuple(_resolved(child, chosen) for child in operands)) if operands else expr


__all__ = ["is_zero", "multiple_of"]
