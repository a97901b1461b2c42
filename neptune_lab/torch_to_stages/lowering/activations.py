"""Functions of one float each, written by the operations of the IR: exponentials, rounding, activations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.operators.formulas import FLAT_AT_LIMITS, FORMULAS, Term, expm1
from neptune_lab.operators.formulas import softplus as softplus_of
from neptune_lab.operators.ties import HALVES_TIES
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import Value

# Functions of floats that the IR has under the same name.
_SAME = (
    *("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "atan", "erf"),
    *("floor", "ceil", "round"),
)
_ERF_SCALE = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)


_GELU: dict[str, Term] = {
    "none": ("mul", ("mul", "x", 0.5), ("add", 1.0, ("erf", ("mul", "x", _ERF_SCALE)))),
    "tanh": (
        "mul",
        ("mul", "x", 0.5),
        ("add", 1.0, ("tanh", ("mul", _TANH_SCALE, ("add", "x", ("mul", 0.044715, ("mul", "x", ("mul", "x", "x"))))))),
    ),
}


def formula(ctx: Context, term: Term, x: Expr) -> Expr:
    """A formula's value for one element."""
    if term == "x":
        return x
    if not isinstance(term, tuple):
        return Const(float(term), ctx.stages.type_of(x))
    if term[0] == "number":
        return ctx.as_dtype(formula(ctx, term[1], x), ctx.stages.type_of(x))
    made = Op(term[0], tuple(formula(ctx, part, x) for part in term[1:]))
    if term[0] in ("max", "min"):
        return ctx.stages.with_tie(made, 0.0 if ctx.name in FLAT_AT_LIMITS else HALVES_TIES)
    return made


def _repeats(term: Term) -> int:
    return 1 if term == "x" else sum(map(_repeats, term[1:])) if isinstance(term, tuple) else 0


def by_formula(ctx: Context, x: Value, term: Term) -> Value:
    """A formula of each element, computed within the result's dtype."""
    x = ctx.converted(x, ctx.dtype)
    if _repeats(term) > 1:
        x = ctx.reused(x)
    return ctx.elementwise(lambda e: formula(ctx, term, e), x)


def _register_formulas() -> None:
    formulas = {n: term for n, term in FORMULAS.items() if n != "softplus"}
    for name, term in {**{n: (n, "x") for n in _SAME}, **formulas}.items():
        lowers(name)(partial(_unary, term))


def _unary(term: Term, ctx: Context, x: Value, *more: Any, **kwargs: Any) -> Value:
    """A function of each element; the sign of a condition is itself."""
    own = "x" if ctx.name == "sign" and ctx.dtype == "bool" else term
    return by_formula(ctx, _only(ctx, x, more, kwargs), own)


def _only(ctx: Context, x: Value, more: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """`x`, or a refusal if an operation of one operand has further arguments."""
    given = [*more, *kwargs.values()]
    if given:
        raise ctx.refused(f"with the arguments {', '.join(map(str, given))}")
    return x


@lowers("gelu")
def gelu(ctx: Context, x: Value, *, approximate: str = "none") -> Value:
    """x times the normal distribution's function, exactly or by tanh."""
    return by_formula(ctx, x, _GELU[approximate])


@lowers("softplus")
def softplus(ctx: Context, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """log(1 + exp(beta * x)) / beta, or x where beta * x is above the threshold."""
    usual = FORMULAS["softplus"]
    if (beta, threshold) == (1, 20):  # (there, both are equal)
        return by_formula(ctx, x, usual)
    inner: Term = ("mul", "x", float(beta))
    scaled: Term = ("div", softplus_of(inner), float(beta))
    return by_formula(ctx, x, ("select", ("gt", inner, float(threshold)), "x", scaled))


@lowers("leaky_relu")
def leaky_relu(ctx: Context, x: Value, slope: float = 0.01) -> Value:
    """x, or x * slope below 0."""
    return by_formula(ctx, x, ("select", ("gt", "x", 0.0), "x", ("mul", "x", float(slope))))


@lowers("elu")
def elu(ctx: Context, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """x, or alpha * (exp(x) - 1) below 0."""
    low = ("mul", float(alpha), expm1(("mul", "x", float(input_scale))))
    return by_formula(ctx, x, ("mul", ("select", ("le", "x", 0.0), low, "x"), float(scale)))


_register_formulas()
