"""Removes producers from conditions and from the branches of a select, or refuses.

A truth value does not contain the difference of the two sides of a comparison, so a condition that changes with r has
no inverse.  But a condition may read r without changing with it: both sides scaled by the same B(r) > 0, or shifted by
the same B(r).  If the condition is free of r, r is taken out of the branches as a common factor or summand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import sympy as sp
from sympy import Expr, Piecewise, Symbol
from sympy.core.relational import Relational

from neptune_lab.errors import RepairError
from neptune_lab.repair.render import text
from neptune_lab.repair.splitting import Roles, split_product, split_sum


class nonneg(sp.Function):
    """Its argument, which must never be negative.

    It marks the argument of a root or logarithm: SymPy turns exp(c - log(r)) into exp(c)/r as it builds it, which would
    lose the fact that log(r) is undefined for a negative intermediate value of r.
    """


def check_nonnegative(g: Expr, producers: Sequence[Symbol]) -> Expr:
    """g without its `nonneg` marks, each of which is proved.

    Raises:
        RepairError: step "prove Eq. 3", for a mark around a producer that may be negative.

    >>> p, r = Symbol("p", nonnegative=True), Symbol("r", real=True)
    >>> check_nonnegative(sp.sqrt(nonneg(p + 1)), [p])
    sqrt(p + 1)
    >>> check_nonnegative(1 / nonneg(r), [r])
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: the root or logarithm of r is not known to be real: r may be negative on the way
      help: ...
    """
    for mark in sorted(g.atoms(nonneg), key=sp.default_sort_key):
        inner = check_nonnegative(cast(Expr, mark.args[0]), producers)
        if not _never_negative(inner) and set(producers) & cast("set[Symbol]", inner.free_symbols):
            raise RepairError(
                f"the root or logarithm of {text(inner)} is not known to be real: {text(inner)} may be negative on "
                "the way",
                step="prove Eq. 3",
                expression=text(inner),
                help="a producer passes through values that it does not end at; take the root of what cannot be "
                "negative, such as a sum of squares or of exponentials",
            )
        g = cast(Expr, g.xreplace({mark: inner}))
    return g


def _never_negative(expr: Expr) -> bool:
    """Whether an expression is 0 or more, infinite or undefined: also the quotient by a sum that may still be 0.

    >>> s = Symbol("s", nonnegative=True)
    >>> _never_negative(sp.exp(Symbol("c", real=True)) / s), _never_negative(1 / (s - 1))
    (True, False)
    """

    def factor(part: Expr) -> bool:
        power = isinstance(part, sp.Pow) and part.exp.is_real and cast(Expr, part.base).is_nonnegative
        return bool(part.is_nonnegative or power)

    return all(factor(cast(Expr, part)) for part in sp.Mul.make_args(expr))


def free_conditions(g: Expr, producers: Sequence[Symbol]) -> Expr:
    """An expression equal to g in which no `Piecewise` contains a producer.

    Raises:
        RepairError: step "separate": a condition changes with r, or the branches have no common factor or summand of r.

    >>> c, d = sp.symbols("c d", real=True)
    >>> p, r = Symbol("p", positive=True), Symbol("r", real=True)
    >>> free_conditions(Piecewise((1, c / p > 0), (0, True)), [p])
    Piecewise((1, c > 0), (0, True))
    >>> free_conditions(Piecewise((sp.exp(c - r), d > 0), (0, True)), [r])
    Piecewise((exp(c), d > 0), (0, True))*exp(-r)
    >>> free_conditions(Piecewise((1, c > r), (0, True)), [r])
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: the condition c > r changes with r, and its earlier results cannot be repaired: ...
      help: ...
    """
    choices = [node for node in sp.postorder_traversal(g) if isinstance(node, Piecewise)]
    for node in dict.fromkeys(choices):
        moving = set(producers) & cast("set[Symbol]", node.free_symbols)
        if moving and g.has(node):
            g = cast(Expr, g.xreplace({node: _free_choice(node, producers)}))
    return g


def _free_choice(node: Piecewise, producers: Sequence[Symbol]) -> Expr:
    """A choice with the producers' share taken out of its branches.

    Raises:
        RepairError: the branches do not share it.
    """
    pairs = cast("list[tuple[Expr, Any]]", [tuple(pair.args) for pair in cast("tuple[Any, ...]", node.args)])
    pairs = [(free_conditions(value, producers), _free_truth(condition, producers)) for value, condition in pairs]
    values = [value for value, _ in pairs]
    conditions = [condition for _, condition in pairs]

    def choose(parts: Sequence[Expr]) -> Expr:
        return cast(Expr, Piecewise(*zip(parts, conditions, strict=True)))

    if not any(set(producers) & value.free_symbols for value in values):
        return choose(values)
    roles = Roles.of(producers, cast("set[Symbol]", node.free_symbols) - set(producers))
    # A branch of 0 has any factor, and an infinite one any finite summand.
    for split, absorbing, join in (
        (split_product, (sp.S.Zero,), lambda a, b: a * b),
        (split_sum, (sp.oo, -sp.oo), lambda a, b: a + b),
    ):
        parts = {n: split(value, roles) for n, value in enumerate(values) if value not in absorbing}
        shares = {part[1] for part in parts.values() if part is not None}
        if None in parts.values() or len(shares) != 1:
            continue
        (share,) = shares
        heads = [value if n not in parts else cast(Any, parts[n])[0] for n, value in enumerate(values)]
        return cast(Expr, join(choose(heads), share))
    raise RepairError(
        f"the branches of {text(node)} do not read {_names(producers)} in the same way",
        step="separate",
        expression=text(node),
        help="both branches may be a product, or a sum, with the same term of r, as in select(mask, exp(c - r), 0)",
    )


def _free_truth(condition: Any, producers: Sequence[Symbol]) -> Any:
    if not set(producers) & condition.free_symbols:
        return condition
    if not isinstance(condition, Relational):
        return condition.func(*(_free_truth(arg, producers) for arg in condition.args))
    difference = cast(Expr, sp.expand(cast(Expr, condition.lhs) - cast(Expr, condition.rhs)))
    inputs = cast("set[Symbol]", difference.free_symbols) - set(producers)
    part = split_product(difference, Roles.of(producers, inputs))
    if part is not None:
        head, scale = part
        if scale.is_positive:
            return condition.func(head, 0)
        if scale.is_negative:
            return condition.func(-head, 0)
    raise RepairError(
        f"the condition {text(condition)} changes with {_names(producers)}, and its earlier results cannot be "
        "repaired: a truth value does not contain the difference of its two sides",
        step="separate",
        expression=text(condition),
        help="compare inputs with inputs, or scale both sides by an r that is known to be positive; a comparison with "
        "a finished reduction (an argmax, a count above the mean) has to wait for it in a second pass",
    )


def _names(producers: Sequence[Symbol]) -> str:
    return ", ".join(text(symbol) for symbol in producers)
