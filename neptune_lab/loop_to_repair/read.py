"""Reads scalar expressions of the loop IR as algebra: the terms that `repair` derives a repair for.

A read becomes a symbol.  Two reads become the same symbol only if buffer and indices are equal, never because their
printed names are.  Casts between floats are dropped: the algebra is over the reals (paper, section 4.2, on
Theorem 4.1).  A comparison or a select without a reduction result inside becomes one opaque input symbol.  With one in
its branches, a select is a mask of 0 and 1 times them; with one in its condition, or with a branch of -inf, it becomes
a `Piecewise`, from which `repair.condition` removes the result, or refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Program, Var
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.loop_ir.walks import walk
from neptune_lab.repair.condition import nonneg
from neptune_lab.repair.functions import SYMPY, is_arithmetic, start_of
from neptune_lab.scalar_ops import OPERATIONS, ScalarOp


@dataclass(frozen=True, slots=True)
class Reading:
    """A term as algebra: `term` in symbols; `reads` says which expression each symbol stands for."""

    term: sympy.Expr
    reads: tuple[tuple[sympy.Symbol, Expr], ...]

    def in_extrema(self) -> frozenset[sympy.Basic]:
        """The symbols that a maximum or a minimum of the term reads."""
        return frozenset(name for e in self.term.atoms(sympy.Max, sympy.Min) for name in e.free_symbols)


def read_term(expr: Expr, producers: Mapping[Expr, str]) -> Reading:
    """The SymPy form of a scalar expression.

    Args:
        expr: the term g of a reduction.
        producers: the reads of reduction results, and the name of each one's symbol.

    Raises:
        RepairError: step "read", if a reduction result is inside something that is not arithmetic.

    >>> read_term(Op("exp", (Op("sub", (Load("x", ()), Load("m", ()))),)), {Load("m", ()): "r"}).term
    exp(-r + x)
    """
    reader = _Reader(producers)
    term = reader.term(expr)
    return Reading(sympy.sympify(term), tuple((symbol, node) for node, symbol in reader.symbols.items()))


class _Reader:
    """Reads one term; `symbols` has the symbol of each expression that is a read or an opaque input."""

    def __init__(self, producers: Mapping[Expr, str]) -> None:
        self.symbols: dict[Expr, sympy.Symbol] = {}
        self._producers = producers
        self._taken = set(producers.values())

    def term(self, node: Expr) -> sympy.Expr:
        if node in self._producers:
            if node not in self.symbols:
                self.symbols[node] = sympy.Symbol(self._producers[node], real=True)
            return self.symbols[node]
        match node:
            case Const(value):
                return _number(value)
            case Load(name, _) | Var(name):
                return self._symbol(node, name)
            case Cast(dtype, arg) if "float" in dtype:
                return self.term(arg)
            case Op("guard", (arg, _, _)):
                return self.term(arg)
            case Op("pow", (base, exponent)) if self._reads_producer(base):
                power = self.term(exponent)
                root = self.term(base)
                return SYMPY["pow"](root if power.is_integer is True else nonneg(root), power)
            case Op(name, args) if is_arithmetic(OPERATIONS[name]):
                return self._arithmetic(OPERATIONS[name], args)
        return self._chosen(node) if self._reads_producer(node) else self._symbol(node, "input")

    def _symbol(self, node: Expr, name: str) -> sympy.Symbol:
        """The symbol of a read or an opaque input, with a name of its own like `name`."""
        if node not in self.symbols:
            free = unique(name, self._taken, "_")
            self._taken.add(free)
            self.symbols[node] = sympy.Symbol(free, real=True)
        return self.symbols[node]

    def _reads_producer(self, node: Expr) -> bool:
        return any(inner in self._producers for inner in walk(node))

    def _arithmetic(self, row: ScalarOp, args: tuple[Expr, ...]) -> sympy.Expr:
        operands = [self.term(arg) for arg in args]
        start = start_of(row)
        if start is not None and self._reads_producer(args[0]):
            operands[0] = nonneg(operands[0] - start) + start
        return SYMPY[row.name](*operands)

    def _chosen(self, node: Expr) -> sympy.Expr:
        """A select or a condition that reads a producer."""
        match node:
            case Op("select", (condition, yes, no)) if not (
                self._reads_producer(condition) or _is_infinite(yes) or _is_infinite(no)
            ):
                # A mask is an input like any other: 1 where the condition holds, and 0 elsewhere.
                ones = Op("select", (condition, Const(1.0, "float32"), Const(0.0, "float32")))
                mask = self._symbol(ones, "mask")
                return mask * self.term(yes) + (1 - mask) * self.term(no)
            case Op("select", (condition, yes, no)):
                return sympy.Piecewise((self.term(yes), self._truth(condition)), (self.term(no), True))
            case Op(name, _) if _is_condition(name):
                return sympy.Piecewise((sympy.Integer(1), self._truth(node)), (sympy.Integer(0), True))
        raise RepairError(
            f"the term uses a reduction result inside {type(node).__name__.lower()} {expression(node)}",
            step="read",
            expression=expression(node),
            help="only arithmetic and the usual functions may depend on a reduction result; "
            "move the condition or index to the inputs",
        )

    def _truth(self, node: Expr) -> sympy.Basic:
        match node:
            case Op(name, args) if _is_condition(name):
                operand = self.term if OPERATIONS[name].kind == "comparison" else self._truth
                return SYMPY[name](*(operand(arg) for arg in args))
        return sympy.Ne(self.term(node), 0)


def _is_condition(name: str) -> bool:
    return OPERATIONS[name].kind in ("comparison", "logic")


def _number(value: float | int | bool) -> sympy.Expr:
    if math.isfinite(value):
        return sympy.nsimplify(value, rational=True)
    return sympy.oo * (1 if value > 0 else -1)


def _is_infinite(expr: Expr) -> bool:
    match expr:
        case Const(value):
            return math.isinf(value)
        case Cast(_, arg):
            return _is_infinite(arg)
    return False


def assumptions(program: Program, reading: Reading) -> dict[str, tuple[str, ...]]:
    """What the solver may assume of the symbols of a reading.

    Args:
        program: the loop program that the term is in; the ranges of its values are computed from it.

    Returns:
        Symbol's name -> the strongest word for its sign, such as ("nonnegative",); only those with a known sign.
    """
    words = {str(symbol): range_of(program, node).words for symbol, node in reading.reads}
    return {name: of for name, of in words.items() if of}
