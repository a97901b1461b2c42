"""A term as text: what is read is arithmetic and the known functions, and nothing is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NoReturn, cast

import sympy as sp
from sympy import Expr, Integer, Max, Rational, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.functions import SYMPY, is_arithmetic
from neptune_lab.scalar_ops import rows

_OWN: dict[str, tuple[int | None, Callable[..., Expr]]] = {
    "abs": (1, SYMPY["abs"]),
    "relu": (1, lambda x: cast(Expr, Max(x, 0))),
    "sinh": (1, lambda x: sp.sinh(x)),
    "cosh": (1, lambda x: sp.cosh(x)),
    "max": (None, lambda *xs: cast(Expr, Max(*xs))),
    "min": (None, lambda *xs: cast(Expr, sp.Min(*xs))),
    "pow": (2, lambda x, y: _power(x, y)),
}


def functions() -> dict[str, tuple[int | None, Callable[..., Expr]]]:
    """Functions that text may call: how many arguments (None: one or more) and what they build."""
    smooth = (row for row in rows("loop") if row.arity == 1 and row.kind == "float" and not row.exact)
    return {**{row.name: (1, SYMPY[row.name]) for row in smooth if is_arithmetic(row)}, **_OWN}


_LONGEST_TEXT = 2000
_DEEPEST_TEXT = 60
_MOST_BITS = 4096


def refuse(message: str, expression: str, help: str | None = None) -> NoReturn:
    """Raise RepairError, step "read"."""
    raise RepairError(message, step="read", expression=expression, help=help)


def parse(source: str, what: str = "g") -> Expr:
    """Parse text into a SymPy expression, which messages call `what`; integers and decimals are exact.

    >>> parse("exp(c - r) + 0.5*relu(c)**2")
    exp(c - r) + Max(0, c)**2/2
    >>> parse("__import__('os')")
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: g calls '__import__', which is not a known function
      help: known: abs, ..., tanh
    """
    if len(source) > _LONGEST_TEXT:
        refuse(f"{what} is {len(source)} characters long; at most {_LONGEST_TEXT} are read", source[:40] + "...")
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error  # without a file and a line that there are not
        refuse(f"{what} = {source!r} is not an expression: {why}", source, "write it as in Python: exp(c - r)*v")
    return _build(tree.body, source, what, 0)


def _build(node: ast.expr, source: str, what: str, depth: int) -> Expr:
    """The expression of a node of Python's syntax tree.

    Args:
        source: the whole text, for messages.
        what: what the text is, for messages.
        depth: of the node in the tree.
    """
    if depth > _DEEPEST_TEXT:
        refuse(f"{what} nests deeper than {_DEEPEST_TEXT} levels", source)

    def build(child: ast.expr) -> Expr:
        return _build(child, source, what, depth + 1)

    match node:
        case ast.Name(id=name):
            return Symbol(name)
        case ast.Constant(value=bool() | str() | bytes() | complex() | None):
            refuse(f"{what} holds {node.value!r}, which is not a real number", source)
        case ast.Constant(value=int() as value):
            return Integer(value)
        case ast.Constant(value=float() as value):
            return exact(value, source, what)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return cast(Expr, -build(operand))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return build(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(build(left), op, build(right), source, what)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            known = functions()
            if name not in known:
                names = ", ".join(sorted(known))
                refuse(f"{what} calls {name!r}, which is not a known function", source, f"known: {names}")
            arity, make = known[name]
            if not args or (arity is not None and len(args) != arity):
                refuse(f"{name} takes {arity or 'one or more'} argument(s), found {len(args)}", source)
            return make(*(build(arg) for arg in args))
        case _:
            part = ast.get_source_segment(source.strip(), node) or type(node).__name__
            refuse(f"{what} holds {part!r}, which is neither arithmetic nor a known function", source)


def _binary(left: Expr, op: ast.operator, right: Expr, source: str, what: str) -> Expr:
    match op:
        case ast.Add():
            return cast(Expr, left + right)
        case ast.Sub():
            return cast(Expr, left - right)
        case ast.Mult():
            return cast(Expr, left * right)
        case ast.Div():
            if right.is_zero:
                refuse(f"{what} divides by 0", source)
            return cast(Expr, left / right)
        case ast.Pow():
            return _power(left, right)
        case _:
            refuse(f"{what} uses the operator {type(op).__name__}", source, "use + - * / **; a power is **")


def _power(base: Expr, exponent: Expr) -> Expr:
    if isinstance(base, Rational) and isinstance(exponent, Rational):
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())
        if abs(exponent) * bits > _MOST_BITS:
            refuse(f"the number {base}**{exponent} is too large to write out", f"{base}**{exponent}")
    return cast(Expr, base**exponent)


def exact(value: float, source: str, what: str = "g") -> Expr:
    """The rational number that a float is written as.

    Raises:
        RepairError: it is not finite.
    """
    if value != value or value in (float("inf"), float("-inf")):
        refuse(f"{what} holds {value}, which is not a finite number", source)
    return Rational(repr(value))


def names_in(source: str) -> frozenset[str]:
    """All names in a text, also those that cancel out of the expression."""
    return frozenset(node.id for node in ast.walk(ast.parse(source.strip(), mode="eval")) if isinstance(node, ast.Name))
