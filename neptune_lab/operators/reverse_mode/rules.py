"""The rules of reverse mode by name: what each says, and the function that applies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op
from neptune_lab.loop_ir.render import expression
from neptune_lab.operators.reverse_mode import cotangents, derivatives, reductions, transpose
from neptune_lab.operators.reverse_mode.derivatives import Arithmetic

# Of an operation, the letters for its operands.
_OPERANDS = {"select": ("c", "x", "y"), "pow": ("x", "n")}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of reverse mode.

    Args:
        name: an operation of the loop-scalar IR, or one of `WHOLE`.
        says: one derivative per line, or a sentence.
        function: applies it.
    """

    name: str
    says: tuple[str, ...]
    function: Callable[..., Any]


WHOLE: dict[str, tuple[str, Callable[..., Any]]] = {
    "sum of all": ("Every term of a sum gets the sum's cotangent.", cotangents.Reverse._outer),
    "max of all": ("The terms that are equal to the maximum share its cotangent.", reductions.of_extremum),
    "min of all": ("The terms that are equal to the minimum share its cotangent.", reductions.of_extremum),
    "first max": ("The first term that is equal to the maximum gets its cotangent.", reductions.of_first),
    "first min": ("The first term that is equal to the minimum gets its cotangent.", reductions.of_first),
    "prod of all": (
        "A term of a product gets the cotangent times the product of all other terms.",
        reductions.of_product,
    ),
    "weights": (
        "With w = exp(x - lse), the score x gets d_w * w, and lse gets minus the sum of d_w * w over the row.",
        cotangents.Reverse._differentiate_weights,
    ),
    "log-sum-exp": (
        "The derivative of a log-sum-exp with respect to a score x is its weight w.",
        cotangents.Reverse._differentiate_lse,
    ),
    "delta": (
        "The sum of d_w * w over a row is the sum of d_o * o over the columns of o: two sums are exchanged.",
        cotangents.Reverse._differentiate_shift,
    ),
    "transposed read": (
        "An element gets the cotangents of all iterations that read it; the index is inverted to find them.",
        transpose.transposed,
    ),
    "conversion": (
        "A cotangent is rounded to 16 bits before a matrix product with a tensor of 16 bits.",
        cotangents.Reverse._rounded,
    ),
}
"""Rules of reductions, of softmax and of reads: a sentence, and the function."""


def rule(name: str) -> Rule:
    """The rule of a name.

    Args:
        name: a key of `derivatives.RULES` or of `WHOLE`.

    >>> rule("exp").says, rule("mul").says
    (('∂(exp(x))/∂x = exp(x)',), ('∂(x * y)/∂x = y', '∂(x * y)/∂y = x'))
    """
    if name in WHOLE:
        says, function = WHOLE[name]
        return Rule(name, (says,), function)
    return Rule(name, tuple(_derivatives(name)), derivatives.RULES[name])


def _derivatives(name: str) -> list[str]:
    """What an operation's rule gives for operands without indices."""
    letters = _OPERANDS.get(name) or (("x", "y") if name in _TWO else ("x",))
    operands = tuple(Load(letter, ()) for letter in letters)
    whole = Op(name, operands)
    found = []
    for operand in operands[1:] if name == "select" else operands:
        slope = derivatives.partial(whole, operand, Arithmetic("float32", lambda _: "float32"))
        found.append(f"∂({_text(whole)})/∂{operand.buffer} = {'0' if slope is None else _text(slope)}")
    return found


_TWO = frozenset({"add", "sub", "mul", "div", "max", "min"})


def _text(expr: Expr) -> str:
    return expression(expr.arg if isinstance(expr, Cast) else expr).replace("[]", "")


__all__ = ["WHOLE", "Rule", "rule"]
