"""Scalar expressions of the loop IR to SymPy and back.

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
from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Var, walk
from neptune_lab.loop_ir.render import expression
from neptune_lab.repair.condition import nonneg
from neptune_lab.repair.functions import SYMPY, is_arithmetic, operation_of, start_of
from neptune_lab.scalar_ops import OPERATIONS

_MULTIPLIED = 4  # up to this power, x**n is written x*x*…


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


def write(expr: sympy.Expr, values: dict[sympy.Symbol, Expr], dtype: str) -> Expr:
    """A SymPy expression as a loop-IR expression over `values`."""

    def number(x: sympy.Expr) -> Const:
        return Const(float(x), dtype)

    def product(factors: list[sympy.Expr]) -> Expr:
        above = [f for f in factors if not _reciprocal(f)]
        below = [1 / f for f in factors if _reciprocal(f)]
        # (a / b)**2, not a**2 / b**2: the squares alone may overflow, or vanish.
        powers = []
        for a, b in [(a, b) for a in above for b in below]:
            (base, power), (other, same) = a.as_base_exp(), b.as_base_exp()
            if power == same and power.is_Integer and power > 1 and a in above and b in below:
                above.remove(a)
                below.remove(b)
                powers.append(integer_power(Op("div", (convert(base), convert(other))), int(power)))
        found = [*(convert(f) for f in above), *powers]
        result = chain("mul", found) if found else number(sympy.Integer(1))
        return Op("div", (result, chain("mul", [convert(f) for f in below]))) if below else result

    def integer_power(x: Expr, power: int) -> Expr:
        # A product is exact for any sign, and fast; TVM warns of pow with a power of 3 and more.
        return chain("mul", [x] * power) if power <= _MULTIPLIED else Op("pow", (x, Const(float(power), dtype)))

    def chain(op: str, terms: list[Expr]) -> Expr:
        result = terms[0]
        for term in terms[1:]:
            result = Op(op, (result, term))
        return result

    def paired(plus: list[sympy.Expr], minus: list[sympy.Expr]) -> list[tuple[sympy.Expr, sympy.Expr]]:
        """Summands that differ in the moment of a producer alone, r in one and r' in the other."""
        found = [(a, b) for a in plus for b in minus if str(a).replace("'", "") == str(b).replace("'", "")]
        return found if len({id(a) for a, _ in found}) == len({id(b) for _, b in found}) == len(found) else []

    def difference(a: sympy.Expr, b: sympy.Expr) -> Expr:
        """2 * (r - r'), not 2 * r - 2 * r', which is inf - inf for a large r."""
        factor, read = a.as_coeff_Mul()
        same, other = b.as_coeff_Mul()
        if factor == 1 or factor != same:
            return Op("sub", (convert(a), convert(b)))
        return Op("mul", (number(factor), Op("sub", (convert(read), convert(other)))))

    def truth(e: sympy.Basic) -> Expr:
        row = operation_of(type(e))
        if row is not None and row.kind == "comparison":
            return Op(row.name, tuple(convert(side) for side in e.args))
        if row is not None and row.kind == "logic":
            args = [truth(a) for a in e.args]
            return chain(row.name, args) if row.arity == 2 else Op(row.name, tuple(args))
        return Const(e == sympy.true, "bool")

    def convert(e: sympy.Basic) -> Expr:
        if isinstance(e, sympy.Symbol | sympy.Dummy):
            return values[e]
        if isinstance(e, sympy.Expr) and e.is_number:
            return number(e)
        if isinstance(e, sympy.Add):
            plus = [a for a in e.args if not a.could_extract_minus_sign()]
            minus = [-a for a in e.args if a.could_extract_minus_sign()]
            moves = paired(plus, minus)
            if len(moves) > 1 or any(a.as_coeff_Mul()[0] != 1 for a, _ in moves):
                # (r - r') + (s - s'): summed first, r and s would lose the digits of the smaller one.
                differences = [difference(a, b) for a, b in moves]
                if len(moves) == len(plus) == len(minus) == 1:
                    return differences[0]
                plus = [p for p in plus if all(p is not a for a, _ in moves)]
                minus = [m for m in minus if all(m is not b for _, b in moves)]
                result = chain("add", [*(convert(p) for p in plus), *differences])
                for m in minus:
                    result = Op("sub", (result, convert(m)))
                return result
            if not plus:
                return Op("neg", (chain("add", [convert(m) for m in minus]),))
            result = chain("add", [convert(p) for p in plus])
            for m in minus:
                result = Op("sub", (result, convert(m)))
            return result
        if isinstance(e, sympy.Mul):
            factors = list(e.args)
            if factors[0] == -1:
                return Op("neg", (product(factors[1:]),))
            return product(factors)
        if isinstance(e, sympy.Pow):
            base, power = e.args
            if base == sympy.E:
                return Op("exp", (convert(power),))
            if power == sympy.Rational(1, 2):
                return Op("sqrt", (convert(base),))
            if power.is_Integer and power > 1:
                return integer_power(convert(base), int(power))
            if power.could_extract_minus_sign():
                return Op("div", (number(sympy.Integer(1)), convert(base**-power)))
            return Op("pow", (convert(base), convert(power)))
        if isinstance(e, sympy.Piecewise):
            *cases, (last, _) = (pair.args for pair in e.args)
            result = convert(last)
            for value, condition in reversed(cases):
                result = Op("select", (truth(condition), convert(value), result))
            return result
        row = operation_of(type(e))
        if row is not None:
            args = [convert(a) for a in e.args]
            return chain(row.name, args) if row.arity == 2 else Op(row.name, tuple(args))
        raise RepairError(
            f"the repair term holds {type(e).__name__}, which has no scalar form",
            step="derive",
            expression=str(e),
            help="rewrite the stage with exp, log, sqrt, powers, products and sums",
        )

    return convert(expr)


def _reciprocal(factor: sympy.Expr) -> bool:
    if isinstance(factor, sympy.Rational):
        return False
    return isinstance(factor, sympy.Pow) and factor.args[0] != sympy.E and factor.args[1].could_extract_minus_sign()
