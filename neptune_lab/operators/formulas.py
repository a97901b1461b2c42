"""Functions of one float by the scalar operations: what `from_torch` and mods have beyond the table `scalar_ops`."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from neptune_lab.operators.special_formulas import SPECIAL

# "x", a number, or an operation's name and its operands; ("number", condition) is 1 or 0.
Term: TypeAlias = str | float | tuple[Any, ...]


def log1p(x: Term) -> Term:
    """log(1 + x) to the last digits also for small x: the logarithm of the rounded sum u, times x / (u - 1) (Kahan)."""
    u: Term = ("add", 1.0, x)
    exact: Term = ("eq", ("sub", u, 1.0), x)
    corrected: Term = ("mul", ("log", u), ("div", x, ("sub", u, 1.0)))
    return ("select", ("eq", u, 1.0), x, ("select", exact, ("log", u), corrected))


def expm1(x: Term) -> Term:
    """exp(x) - 1 to the last digits also for small x: u - 1 for the rounded power u, times x / log(u) (Kahan)."""
    u: Term = ("exp", x)
    less: Term = ("sub", u, 1.0)
    corrected: Term = ("mul", less, ("div", x, ("log", u)))
    far: Term = ("or", ("eq", less, -1.0), ("eq", u, math.inf))
    return ("select", ("eq", u, 1.0), x, ("select", far, less, corrected))


def softplus(x: Term) -> Term:
    """log(1 + exp(x)), which does not overflow."""
    return ("add", ("max", x, 0.0), log1p(("exp", ("neg", ("abs", x)))))


def _odd(of_size: Term) -> Term:
    """An odd function of x by its values for |x|."""
    return ("mul", ("select", ("lt", "x", 0.0), -1.0, 1.0), of_size)


def _log_beyond_one(x: Term) -> Term:
    """log(1 + x) as `log1p`, for x from 0 to 1e17."""
    u: Term = ("add", 1.0, x)
    return ("select", ("eq", u, 1.0), x, ("mul", ("log", u), ("div", x, ("sub", u, 1.0))))


def _grown(size: Term, small: Term) -> Term:
    """An inverse of a hyperbolic function: log(2 x) where x * x would lose digits or overflow, else log(1 + small)."""
    return ("select", ("gt", size, 1e8), ("add", ("log", size), math.log(2)), _log_beyond_one(small))


def _half_exp(half: float) -> Term:
    """exp(x) / 2 for 0.5 and exp(-x) / 2 for -0.5, as a square: exp(x) overflows where its half is finite."""
    root: Term = ("exp", ("mul", "x", half))
    return ("mul", ("mul", 0.5, root), root)


# |x|, whose derivative at 0 is 1 and not 0: that of an odd function of x by `_odd` is the slope on the right.
_SIZE: Term = ("select", ("lt", "x", 0.0), ("neg", "x"), "x")
_ROOT: Term = ("sqrt", ("add", ("mul", "x", "x"), 1.0))
_BESIDE_ONE: Term = ("sqrt", ("mul", ("sub", "x", 1.0), ("add", "x", 1.0)))
_SMALL_SINH: Term = ("mul", 0.5, ("add", expm1("x"), ("div", expm1("x"), ("add", 1.0, expm1("x")))))

# Functions of a maximum or minimum with a derivative of 0 at its limit.
FLAT_AT_LIMITS = frozenset({"relu", "relu6", "hardsigmoid"})
# Functions of one float x by the operations of the IR; numbers have the dtype of x.
FORMULAS: dict[str, Term] = {
    **SPECIAL,
    "square": ("mul", "x", "x"),
    "reciprocal": ("div", 1.0, "x"),
    "relu": ("max", "x", 0.0),
    "relu6": ("min", ("max", "x", 0.0), 6.0),
    "silu": ("mul", "x", ("sigmoid", "x")),
    "log10": ("mul", ("log2", "x"), math.log10(2)),
    "tan": ("div", ("sin", "x"), ("cos", "x")),
    "sign": ("sub", ("number", ("gt", "x", 0.0)), ("number", ("lt", "x", 0.0))),
    # At NaN, the first has the derivative 0, and the second 1.
    "hardsigmoid": (
        "select",
        ("ne", "x", "x"),
        math.nan,
        ("div", ("min", ("max", ("add", "x", 3.0), 0.0), 6.0), 6.0),
    ),
    "hardswish": (
        "select",
        ("le", "x", -3.0),
        ("mul", "x", 0.0),
        ("select", ("lt", "x", 3.0), ("div", ("mul", "x", ("add", "x", 3.0)), 6.0), "x"),
    ),
    "trunc": ("select", ("lt", "x", 0.0), ("ceil", "x"), ("floor", "x")),
    "frac": ("sub", "x", ("select", ("lt", "x", 0.0), ("ceil", "x"), ("floor", "x"))),
    "softplus": softplus("x"),
    "log_sigmoid": ("sub", ("min", "x", 0.0), log1p(("exp", ("neg", ("abs", "x"))))),
    "log1p": log1p("x"),
    "expm1": expm1("x"),
    "cosh": ("add", _half_exp(0.5), _half_exp(-0.5)),
    "sinh": ("select", ("gt", ("abs", "x"), 1.0), ("sub", _half_exp(0.5), _half_exp(-0.5)), _SMALL_SINH),
    "asin": ("atan", ("div", "x", ("sqrt", ("mul", ("sub", 1.0, "x"), ("add", 1.0, "x"))))),
    "acos": ("mul", 2.0, ("atan", ("sqrt", ("div", ("sub", 1.0, "x"), ("add", 1.0, "x"))))),
    "asinh": _odd(_grown(_SIZE, ("add", _SIZE, ("div", ("mul", "x", "x"), ("add", 1.0, _ROOT))))),
    "acosh": (
        "select",
        ("lt", "x", 1.0),
        ("sqrt", ("sub", "x", 1.0)),
        _grown("x", ("add", ("sub", "x", 1.0), _BESIDE_ONE)),
    ),
    "atanh": _odd(("mul", 0.5, log1p(("div", ("mul", 2.0, _SIZE), ("sub", 1.0, _SIZE))))),
    "sinc": ("select", ("eq", "x", 0.0), 1.0, ("div", ("sin", ("mul", math.pi, "x")), ("mul", math.pi, "x"))),
    "deg2rad": ("mul", "x", math.pi / 180),
    "rad2deg": ("mul", "x", 180 / math.pi),
    "special_ndtr": ("mul", 0.5, ("add", 1.0, ("erf", ("mul", "x", math.sqrt(0.5))))),
    "special_entr": (
        "select",
        ("lt", "x", 0.0),
        -math.inf,
        # The derivative at 0 is infinite, as the root's.
        ("select", ("eq", "x", 0.0), ("sqrt", "x"), ("mul", ("neg", "x"), ("log", "x"))),
    ),
}
