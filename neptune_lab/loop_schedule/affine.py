"""Index expressions as sums of multiples of variables."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Const, Expr, Op, Var, add, mul
from neptune_lab.loop_ir.walks import variables, walk


def affine_terms(expr: Expr, var: str) -> tuple[int, Expr] | None:
    """(a, rest) with expr = a * var + rest and rest without var; None if it is not of that form."""
    match expr:
        case Var(name):
            return (1, Const(0)) if name == var else (0, expr)
        case Const():
            return 0, expr
        case Op("add", (a, b)):
            la, lb = affine_terms(a, var), affine_terms(b, var)
            return None if la is None or lb is None else (la[0] + lb[0], add(la[1], lb[1]))
        case Op("mul", (a, Const(k))) | Op("mul", (Const(k), a)):
            la = affine_terms(a, var)
            return None if la is None else (la[0] * int(k), mul(la[1], int(k)))
    return None if var in variables(expr) else (0, expr)


def difference(a: Expr, b: Expr) -> Expr | None:
    """a - b for sums of multiples of variables, if every term of `b` is a term of `a`; None otherwise."""
    terms, less = _terms(a), _terms(b)
    if terms is None or less is None:
        return None
    for var, factor in less.items():
        if terms.pop(var, None if var else 0) != factor:
            return None
    result: Expr = Const(0)
    for var, factor in terms.items():
        result = add(result, mul(Var(var), factor) if var else Const(factor))
    return result


def quotient(expr: Expr, by: int) -> tuple[Expr, Expr]:
    """(q, rest) with expr = q * by + rest: q has the terms whose factors are multiples of `by`, and rest the others.

    >>> from neptune_lab.loop_ir.render import expression
    >>> tuple(map(expression, quotient(add(mul(Var("i"), 8), Var("j")), 4)))
    ('i * 2', 'j')
    """
    taken: Expr = Const(0)
    for var in sorted(variables(expr)):
        split = affine_terms(expr, var)
        if split is not None and split[0] >= by and split[0] % by == 0:
            taken, expr = add(taken, mul(Var(var), split[0] // by)), split[1]
    if isinstance(expr, Const) and by == 1:
        return add(taken, expr), Const(0)
    return taken, expr


def _terms(expr: Expr) -> dict[str, int] | None:
    """The factor of each variable, in order ("" for the constant); None if `expr` is no such sum."""
    factors: dict[str, int] = {}
    for var in dict.fromkeys(e.name for e in walk(expr) if isinstance(e, Var)):
        split = affine_terms(expr, var)
        if split is None:
            return None
        factors[var], expr = split
    if not isinstance(expr, Const):
        return None
    return factors if expr.value == 0 else {**factors, "": int(expr.value)}


__all__ = ["affine_terms", "difference", "quotient"]
