"""Scalar expressions of the loop IR to algebra: the terms that `repair` derives a repair for.

A read becomes a symbol; two reads are the same symbol only where buffer and indices are equal, never because their
printed names are.  Casts between floats are dropped: the algebra is over the reals (paper, section 4.2, on
Theorem 4.1).  A comparison or a select without a reduction result inside becomes one opaque input symbol.  With one in
its branches, a select is a mask of 0 and 1 times them; with one in its condition, or a masked score of -inf, it becomes
a `Piecewise`, which `repair.condition` frees of the result or refuses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Program, Var, walk
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.sign import range_of
from neptune_lab.repair.condition import nonneg
from neptune_lab.repair.functions import SYMPY, is_arithmetic, start_of
from neptune_lab.scalar_ops import OPERATIONS


def _is_condition(name: str) -> bool:
    return OPERATIONS[name].kind in ("comparison", "logic")


@dataclass(frozen=True, slots=True)
class Reading:
    """A term as algebra: `term` in symbols; `reads` says which expression each symbol stands for."""

    term: sympy.Expr
    reads: tuple[tuple[sympy.Symbol, Expr], ...]


def read_term(expr: Expr, producers: dict[Expr, str]) -> Reading:
    """The SymPy form of `expr`; the reads in `producers` get the symbols named there.

    Raises:
        RepairError: step "read", where a reduction result stands inside something that is not arithmetic.
    """
    symbols: dict[Expr, sympy.Symbol] = {}
    taken = set(producers.values())

    def symbol(node: Expr, name: str) -> sympy.Symbol:
        if node not in symbols:
            free = unique(name, taken, "_")
            taken.add(free)
            symbols[node] = sympy.Symbol(free, real=True)
        return symbols[node]

    def depends(node: Expr) -> bool:
        return any(inner in producers for inner in walk(node))

    def truth(node: Expr) -> sympy.Basic:
        match node:
            case Op(name, args) if _is_condition(name):
                of = convert if OPERATIONS[name].kind == "comparison" else truth
                return SYMPY[name](*(of(a) for a in args))
        return sympy.Ne(convert(node), 0)

    def convert(node: Expr) -> sympy.Expr:
        if node in producers:
            if node not in symbols:
                symbols[node] = sympy.Symbol(producers[node], real=True)
            return symbols[node]
        match node:
            case Const(value):
                return (
                    sympy.nsimplify(value, rational=True)
                    if math.isfinite(value)
                    else sympy.oo * (1 if value > 0 else -1)
                )
            case Load(name, _) | Var(name):
                return symbol(node, name)
            case Cast(dtype, arg) if "float" in dtype:
                return convert(arg)
            case Op("guard", (arg, _, _)):
                return convert(arg)
            case Op("pow", (base, exponent)) if depends(base):
                power = convert(exponent)
                return SYMPY["pow"](convert(base) if power.is_integer is True else nonneg(convert(base)), power)
            case Op(name, args) if is_arithmetic(OPERATIONS[name]):
                operands = [convert(a) for a in args]
                start = start_of(OPERATIONS[name])
                if start is not None and depends(args[0]):
                    operands[0] = nonneg(operands[0] - start) + start
                return SYMPY[name](*operands)
        if depends(node):
            match node:
                case Op("select", (condition, yes, no)) if not (depends(condition) or _infinite(yes) or _infinite(no)):
                    # A mask is an input like any other: 1 where the condition holds, and 0 elsewhere.
                    taken_yes = Op("select", (condition, Const(1.0, "float32"), Const(0.0, "float32")))
                    mask = symbol(taken_yes, "mask")
                    return mask * convert(yes) + (1 - mask) * convert(no)
                case Op("select", (condition, yes, no)):
                    return sympy.Piecewise((convert(yes), truth(condition)), (convert(no), True))
                case Op(name, _) if _is_condition(name):
                    return sympy.Piecewise((sympy.Integer(1), truth(node)), (sympy.Integer(0), True))
            raise RepairError(
                f"the term uses a reduction result inside {type(node).__name__.lower()} {expression(node)}",
                step="read",
                expression=expression(node),
                help="only arithmetic and the usual functions may depend on a reduction result; "
                "move the condition or index to the inputs",
            )
        return symbol(node, "input")

    term = convert(expr)
    return Reading(sympy.sympify(term), tuple((s, e) for e, s in symbols.items()))


def _infinite(expr: Expr) -> bool:
    match expr:
        case Const(value):
            return math.isinf(value)
        case Cast(_, arg):
            return _infinite(arg)
    return False


def assumptions(program: Program, reading: Reading) -> dict[str, tuple[str, ...]]:
    """What the solver may assume of each symbol of a reading, by the symbol's name: the strongest word for its sign."""
    told = {str(symbol): range_of(program, expr).words for symbol, expr in reading.reads}
    return {name: words for name, words in told.items() if words}
