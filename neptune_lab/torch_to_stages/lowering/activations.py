"""Functions of one float each, written by the operations of the IR: exponentials, rounding, activations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeAlias

from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.torch_to_stages.lowering.context import Context, lowers
from neptune_lab.torch_to_stages.values import Value

Term: TypeAlias = str | float | tuple[Any, ...]

# Functions of floats that the IR has under the same name.
_SAME = (
    *("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "erf", "floor", "ceil", "round"),
)
_ERF_SCALE = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)


def _log1p(x: Term) -> Term:
    """log(1 + x) to the last digits also for small x: the logarithm of the rounded sum u, times x / (u - 1) (Kahan)."""
    u: Term = ("add", 1.0, x)
    exact: Term = ("eq", ("sub", u, 1.0), x)
    corrected: Term = ("mul", ("log", u), ("div", x, ("sub", u, 1.0)))
    return ("select", ("eq", u, 1.0), x, ("select", exact, ("log", u), corrected))


def _expm1(x: Term) -> Term:
    """exp(x) - 1 to the last digits also for small x: u - 1 for the rounded power u, times x / log(u) (Kahan)."""
    u: Term = ("exp", x)
    less: Term = ("sub", u, 1.0)
    corrected: Term = ("mul", less, ("div", x, ("log", u)))
    far: Term = ("or", ("eq", less, -1.0), ("eq", u, math.inf))
    return ("select", ("eq", u, 1.0), x, ("select", far, less, corrected))


_SMALL_SINH: Term = ("mul", 0.5, ("add", _expm1("x"), ("div", _expm1("x"), ("add", 1.0, _expm1("x")))))

# Functions of one float x by the operations of the IR; numbers have the dtype of x.
FORMULAS: dict[str, Term] = {
    "square": ("mul", "x", "x"),
    "reciprocal": ("div", 1.0, "x"),
    "relu": ("max", "x", 0.0),
    "relu6": ("min", ("max", "x", 0.0), 6.0),
    "silu": ("mul", "x", ("sigmoid", "x")),
    "log10": ("mul", ("log2", "x"), math.log10(2)),
    "tan": ("div", ("sin", "x"), ("cos", "x")),
    "erfc": ("sub", 1.0, ("erf", "x")),
    "sign": ("sub", ("number", ("gt", "x", 0.0)), ("number", ("lt", "x", 0.0))),
    "hardsigmoid": ("div", ("min", ("max", ("add", "x", 3.0), 0.0), 6.0), 6.0),
    "hardswish": ("div", ("mul", "x", ("min", ("max", ("add", "x", 3.0), 0.0), 6.0)), 6.0),
    "trunc": ("select", ("lt", "x", 0.0), ("ceil", "x"), ("floor", "x")),
    "frac": ("sub", "x", ("select", ("lt", "x", 0.0), ("ceil", "x"), ("floor", "x"))),
    "softplus": ("add", ("max", "x", 0.0), _log1p(("exp", ("neg", ("abs", "x"))))),
    "log_sigmoid": ("sub", ("min", "x", 0.0), _log1p(("exp", ("neg", ("abs", "x"))))),
    "log1p": _log1p("x"),
    "expm1": _expm1("x"),
    "cosh": ("div", ("add", ("exp", "x"), ("exp", ("neg", "x"))), 2.0),
    "sinh": (
        "select",
        ("gt", ("abs", "x"), 1.0),
        ("div", ("sub", ("exp", "x"), ("exp", ("neg", "x"))), 2.0),
        _SMALL_SINH,
    ),
}
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
    return Op(term[0], tuple(formula(ctx, part, x) for part in term[1:]))


def _repeats(term: Term) -> int:
    return 1 if term == "x" else sum(map(_repeats, term[1:])) if isinstance(term, tuple) else 0


def by_formula(ctx: Context, x: Value, term: Term) -> Value:
    """A formula of each element, computed within the result's dtype."""
    x = ctx.converted(x, ctx.dtype)
    if _repeats(term) > 1:
        x = ctx.reused(x)
    return ctx.elementwise(lambda e: formula(ctx, term, e), x)


def _register_formulas() -> None:
    for name, term in {**{n: (n, "x") for n in _SAME}, **FORMULAS}.items():
        lowers(name)(partial(_unary, term))


def _unary(term: Term, ctx: Context, x: Value, *more: Any, **kwargs: Any) -> Value:
    """A function of each element."""
    return by_formula(ctx, _only(ctx, x, more, kwargs), term)


def _only(ctx: Context, x: Value, more: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """`x`, or a refusal if an operation of one operand has further arguments."""
    given = [*more, *kwargs.values()]
    if ctx.name == "softplus" and given in ([1], [1, 20]):
        return x
    if given:
        raise ctx.refused(f"with the arguments {', '.join(map(str, given))}")
    return x


@lowers("gelu")
def gelu(ctx: Context, x: Value, *, approximate: str = "none") -> Value:
    """x times the normal distribution's function, exactly or by tanh."""
    return by_formula(ctx, x, _GELU[approximate])


@lowers("leaky_relu")
def leaky_relu(ctx: Context, x: Value, slope: float = 0.01) -> Value:
    """x, or x * slope below 0."""
    return by_formula(ctx, x, ("select", ("ge", "x", 0.0), "x", ("mul", "x", float(slope))))


@lowers("elu")
def elu(ctx: Context, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """x, or alpha * (exp(x) - 1) below 0."""
    low = ("mul", float(alpha), _expm1(("mul", "x", float(input_scale))))
    return by_formula(ctx, x, ("mul", ("select", ("gt", "x", 0.0), "x", low), float(scale)))


_register_formulas()
