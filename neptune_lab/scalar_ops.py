"""The scalar operations of both IRs: one row per operation, for evaluators, printers, bridges, mods and analyses.

A row holds names and facts, and imports nothing: each reader looks the name up in its own library at the first use.
An operation for which a library has no name is computed by the row's formula.  A new function is one row, for example:

    _function(
        "sinh", triton="", formula=("div", ("sub", ("exp", "x"), ("exp", ("neg", "x"))), 2), zero=True, rising=True,
        absolute_error=True,
    )

SymPy derives: a derivative needs no column.  A function without a name there is derived through its formula.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")
Kind: TypeAlias = Literal["number", "integer", "bits", "float", "comparison", "logic", "choice"]
# An operand ("x", "y" or "z"), a number, or an operation's name and its operands.
Formula: TypeAlias = str | int | float | tuple[Any, ...]

# Precedences of the operators of printed programs; an atom never needs brackets.
OR, AND, NOT, COMPARE, ADD, MUL, NEGATE, ATOM = 1, 2, 3, 4, 5, 6, 7, 9


@dataclass(frozen=True, slots=True, eq=False)
class ScalarOp:
    """One operation.

    Args:
        name: in the loop-scalar IR, and in HTile IR unless `htile` is given.
        arity: number of operands.
        kind: its operands. "number", "float", "integer": operands of one such dtype, which the result has too;
            "bits": the same for integers, in no `Arith`; "comparison": operands of one dtype, to a condition;
            "logic": conditions; "choice": the first operand decides between the others.
        symbol, level: in printed programs, infix (prefix for one operand), and its precedence. "": a call.
        htile: name in HTile IR, if it is another.
        ir: the IR that it belongs to.
        python: in Python's module `operator`.
        numpy, torch, sympy, tvm: in the library. "math.f": in Python's module `math`, element by element, in float64.
            SymPy's name is for functions that are finite inside their domain; give one with poles (tan) a formula.
        triton: in emitted modules: an infix symbol, "tl.f", or "_f", a function of `htile_to_triton.helpers`.
        gluon: whether Gluon has it under Triton's name; otherwise its formula is emitted there.
        ieee: the HTile operation that is rounded as IEEE 754 says, if a GPU's own is not.
        formula: the operation by others, for readers whose library has no name for it.
        exact: the result is not rounded.
        zero: it is 0 if all operands are 0, and finite if they are finite.
        rising: it is monotonic: it never falls as an operand grows.
        start: the lower end of the domain; below, the result is NaN.
        within: the least and the greatest value.
        costly: it is worth a tile of its own if two stores need it.
        absolute_error: kernels compute it with an absolute error, and not a relative one.
    """

    name: str
    arity: int
    kind: Kind
    symbol: str = ""
    level: int = ATOM
    htile: str = ""
    ir: Literal["both", "loop", "htile"] = "both"
    python: str = ""
    numpy: str = ""
    torch: str = ""
    sympy: str = ""
    tvm: str = ""
    triton: str = ""
    gluon: bool = True
    ieee: str = ""
    formula: Formula | None = None
    exact: bool = False
    zero: bool = False
    rising: bool = False
    start: float = -inf
    within: tuple[float, float] = (-inf, inf)
    costly: bool = False
    absolute_error: bool = False

    @property
    def bounded(self) -> bool:
        """Whether no operand makes it infinite."""
        return all(map(math.isfinite, self.within))

    @property
    def jumps(self) -> bool:
        """Whether the rounding of an operand can change it by a whole step."""
        return self.kind == "comparison" or (self.exact and self.kind in ("float", "integer", "bits"))


def _function(name: str, **own: Any) -> ScalarOp:
    """A function of one float with the same name in every library."""
    names = {"numpy": name, "torch": name, "sympy": name, "tvm": name, "triton": f"tl.{name}"}
    return ScalarOp(name, 1, "float", **{"costly": True, **names, **own})


def _rounding(name: str, **own: Any) -> ScalarOp:
    """A function to whole numbers, which stay floats."""
    return _function(name, costly=False, exact=True, zero=True, rising=True, **own)


def _comparison(name: str, symbol: str, numpy: str, tvm: str) -> ScalarOp:
    names: dict[str, Any] = {
        "python": name,
        "numpy": numpy,
        "torch": name,
        "sympy": name.title(),
        "tvm": tvm,
        "triton": symbol,
    }
    return ScalarOp(name, 2, "comparison", symbol, COMPARE, exact=True, within=(0.0, 1.0), **names)


def _logic(name: str, arity: int, level: int, **own: Any) -> ScalarOp:
    names: dict[str, Any] = {
        "numpy": f"logical_{name}",
        "torch": f"logical_{name}",
        "sympy": name.title(),
        "tvm": name.title(),
    }
    symbol = name if arity == 2 else f"{name} "
    return ScalarOp(name, arity, "logic", symbol, level, exact=True, within=(0.0, 1.0), **names, **own)


def _bits(name: str, python: str, numpy: str, tvm: str, symbol: str, torch: str = "") -> ScalarOp:
    """An operation on the bits of two integers of one dtype, in two's complement."""
    names: dict[str, Any] = {"python": python, "numpy": numpy, "torch": torch or numpy, "tvm": tvm, "triton": symbol}
    return ScalarOp(name, 2, "bits", exact=True, zero=True, **names)


_ROWS = (
    ScalarOp(
        "add", 2, "number", "+", ADD, python="add", numpy="add", torch="add", tvm="Add", triton="+", zero=True,
        rising=True,
    ),
    ScalarOp(
        "sub", 2, "number", "-", ADD, python="sub", numpy="subtract", torch="sub", tvm="Sub", triton="-", zero=True
    ),
    ScalarOp(
        "mul", 2, "number", "*", MUL, python="mul", numpy="multiply", torch="mul", tvm="Mul", triton="*", zero=True
    ),
    ScalarOp(
        "div", 2, "float", "/", MUL, python="truediv", numpy="divide", torch="true_divide", tvm="Div", triton="/",
        ieee="div_rn", costly=True,
    ),
    ScalarOp("div_rn", 2, "float", ir="htile", numpy="divide", triton="tl.div_rn"),
    ScalarOp(  # the operand, of which Triton knows no earlier use
        "again", 1, "number", ir="htile", numpy="positive", torch="positive", triton="_again", gluon=False, formula="x",
        exact=True, zero=True, rising=True,
    ),
    ScalarOp(
        "floordiv", 2, "integer", "//", MUL, python="floordiv", numpy="floor_divide", torch="floor_divide",
        tvm="FloorDiv", triton="//", exact=True,
    ),
    ScalarOp(
        "floormod", 2, "integer", "%", MUL, python="mod", numpy="remainder", torch="remainder", tvm="FloorMod",
        triton="%", exact=True,
    ),
    _bits("bitand", "and_", "bitwise_and", "BitwiseAnd", "&"),
    _bits("bitor", "or_", "bitwise_or", "BitwiseOr", "|"),
    _bits("bitxor", "xor", "bitwise_xor", "BitwiseXor", "^"),
    # By 0 or more, and less than the dtype's width: elsewhere machines differ, so mods keep to it (`operators.bits`).
    _bits("shl", "lshift", "left_shift", "LShift", "<<", "bitwise_left_shift"),
    _bits("shr", "rshift", "right_shift", "RShift", ">>", "bitwise_right_shift"),
    # NaN if an operand is; the emitters spell that out for floats, for which tl.maximum drops NaN.
    ScalarOp(
        "max", 2, "number", numpy="maximum", torch="maximum", sympy="Max", tvm="Max", triton="tl.maximum", exact=True,
        zero=True, rising=True,
    ),
    ScalarOp(
        "min", 2, "number", numpy="minimum", torch="minimum", sympy="Min", tvm="Min", triton="tl.minimum", exact=True,
        zero=True, rising=True,
    ),
    _comparison("lt", "<", "less", "LT"),
    _comparison("le", "<=", "less_equal", "LE"),
    _comparison("gt", ">", "greater", "GT"),
    _comparison("ge", ">=", "greater_equal", "GE"),
    _comparison("eq", "==", "equal", "EQ"),
    _comparison("ne", "!=", "not_equal", "NE"),
    _logic("and", 2, AND, triton="&"),
    _logic("or", 2, OR, triton="|"),
    _logic("not", 1, NOT, python="not_", triton="=="),
    ScalarOp(
        "neg", 1, "number", "-", NEGATE, python="neg", numpy="negative", torch="neg", triton="-",
        formula=("mul", "x", -1), exact=True, zero=True,
    ),
    ScalarOp(
        "select", 3, "choice", htile="where", numpy="where", torch="where", tvm="if_then_else", triton="tl.where",
        exact=True, costly=True,
    ),
    # x, and z where x sits at the singular point y (`repair.guard` says why that is right).
    ScalarOp("guard", 3, "choice", ir="loop", exact=True, formula=("select", ("eq", "x", "y"), "z", "x")),
    # x, as a constant for derivatives (`loop_ir.gradient_marks`).
    ScalarOp(
        "stop_gradient", 1, "number", ir="loop", numpy="positive", torch="positive", exact=True, formula="x", zero=True,
        rising=True,
    ),
    _function("exp", rising=True, within=(0.0, inf)),
    _function("exp2", sympy="", formula=("pow", 2, "x"), rising=True, within=(0.0, inf)),
    _function("log", rising=True, start=0.0),
    _function("log2", sympy="", formula=("div", ("log", "x"), ("log", 2)), rising=True, start=0.0),
    _function("sqrt", ieee="sqrt_rn", zero=True, rising=True, start=0.0, within=(0.0, inf)),
    ScalarOp(
        "sqrt_rn", 1, "float", ir="htile", numpy="sqrt", triton="tl.sqrt_rn", rising=True, start=0.0, within=(0.0, inf)
    ),
    _function("rsqrt", numpy="", sympy="", formula=("div", 1, ("sqrt", "x")), start=0.0),
    _function("tanh", triton="_tanh", zero=True, rising=True, within=(-1.0, 1.0), absolute_error=True),
    _function(
        "sigmoid", numpy="", sympy="", gluon=False, formula=("div", 1, ("add", 1, ("exp", ("neg", "x")))), rising=True,
        within=(0.0, 1.0), absolute_error=True,
    ),
    _function("sin", zero=True, within=(-1.0, 1.0)),
    _function("cos", within=(-1.0, 1.0)),
    _function("atan", numpy="arctan", triton="_arctan", zero=True, rising=True, within=(-math.pi / 2, math.pi / 2)),
    _function("erf", numpy="math.erf", zero=True, rising=True, within=(-1.0, 1.0)),
    _rounding("floor"),
    _rounding("ceil", sympy="ceiling"),
    _rounding("round", numpy="rint", sympy="", triton="_round"),  # ties to even
    ScalarOp(
        "abs", 1, "number", python="abs", numpy="abs", torch="abs", sympy="Abs", tvm="abs", triton="tl.abs", exact=True,
        zero=True, within=(0.0, inf),
    ),
    ScalarOp(
        "pow", 2, "float", numpy="power", torch="pow", sympy="Pow", tvm="pow", triton="_power"
    ),
)  # fmt: skip
OPERATIONS: dict[str, ScalarOp] = {name: row for row in _ROWS for name in (row.name, row.htile or row.name)}
"""The row of each name of either IR.  Readers look here, and keep no list."""

# The same comparison with its operands exchanged.
EXCHANGED = {"eq": "eq", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
# The negation of each comparison, for numbers other than NaN.
NEGATION = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def rows(ir: Literal["loop", "htile"]) -> Iterator[ScalarOp]:
    """The operations of an IR, in the table's order."""
    return (row for row in dict.fromkeys(OPERATIONS.values()) if row.ir in ("both", ir))


def in_loops(name: str) -> ScalarOp | None:
    """The row of an operation of the loop-scalar IR; None if it has none of that name."""
    row = OPERATIONS.get(name)
    return row if row is not None and row.ir != "htile" and row.name == name else None


def in_htile(name: str) -> ScalarOp | None:
    """The row of an operation of HTile IR; None if it has none of that name."""
    row = OPERATIONS.get(name)
    return row if row is not None and row.ir != "loop" and (row.htile or row.name) == name else None


def symbol(name: str) -> tuple[str, int]:
    """An operation's symbol in printed programs, and its precedence; "": it is printed as a call."""
    row = OPERATIONS.get(name)
    return ("", ATOM) if row is None else (row.symbol, row.level)


def compose(
    formula: Formula, operands: Sequence[T], apply: Callable[[str, list[T]], T], constant: Callable[[float], T]
) -> T:
    """The value of a formula.

    Args:
        operands: what x, y and z stand for.
        apply: computes one operation, by name, on operands.
        constant: makes an operand of a number.

    >>> compose(("div", 1, ("sqrt", "x")), ["a"], lambda name, args: f"{name}({', '.join(args)})", str)
    'div(1, sqrt(a))'
    """

    # By itself, not by a function inside: that would be garbage in a cycle after each of a hundred thousand calls.
    if isinstance(formula, str):
        return operands["xyz".index(formula)]
    if isinstance(formula, tuple):
        return apply(formula[0], [compose(part, operands, apply, constant) for part in formula[1:]])
    return constant(formula)


def operations_in(formula: Formula) -> set[str]:
    """The operations that a formula is made of.

    >>> sorted(operations_in(("div", 1, ("sqrt", "x"))))
    ['div', 'sqrt']
    """
    if not isinstance(formula, tuple):
        return set()
    return {formula[0]}.union(*map(operations_in, formula[1:]))


class Functions(dict[str, Any]):
    """The operations as functions of one library, by name, made at the first use.

    Args:
        named: the library's own function for a row; None leaves it to the row's formula.
        constant: makes an operand of a number in a formula.
        own: functions in place of the table's.

    Raises:
        KeyError: there is no such operation, or no way to compute it.
    """

    def __init__(
        self,
        named: Callable[[ScalarOp], Callable[..., Any] | None],
        constant: Callable[[float], Any] = lambda value: value,
        own: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__(own or {})
        self._named, self._constant = named, constant

    def __missing__(self, name: str) -> Callable[..., Any]:
        row = OPERATIONS[name]
        function = self._named(row) or self._composed(row)
        self[name] = function
        return function

    def _composed(self, row: ScalarOp) -> Callable[..., Any]:
        formula = row.formula
        if formula is None:
            raise KeyError(row.name)
        apply, constant = self._apply, self._constant
        return lambda *args: compose(formula, args, apply, constant)

    def _apply(self, name: str, parts: list[Any]) -> Any:
        return self[name](*parts)


def python_operator(row: ScalarOp) -> Callable[..., Any] | None:
    """Python's operator for it, if it has one."""
    return getattr(operator, row.python) if row.python else None


def _of_numpy(row: ScalarOp) -> Callable[..., Any] | None:
    import numpy as np

    if row.numpy.startswith("math."):
        return np.vectorize(getattr(math, row.numpy.removeprefix("math.")), otypes=[np.float64])
    return getattr(np, row.numpy) if row.numpy else None


NUMPY = Functions(_of_numpy)
"""The operations in NumPy.  The dtype is the operands'; what `math` computes element by element is float64, which the
evaluators convert back."""


__all__ = [
    "ATOM", "COMPARE", "NUMPY", "OPERATIONS", "Functions", "ScalarOp", "compose", "in_htile", "in_loops",
    "operations_in", "python_operator", "rows", "symbol",
]  # fmt: skip
