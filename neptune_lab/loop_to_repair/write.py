"""Algebra to scalar expressions of the loop IR: a repair as a program stores it."""

from __future__ import annotations

import sympy

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.repair.functions import operation_of

_MULTIPLIED = 4  # up to this power, x**n is written x*x*…


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
        pairs = [(a, b) for a in plus for b in minus if str(a).replace("'", "") == str(b).replace("'", "")]
        return pairs if len({id(a) for a, _ in pairs}) == len({id(b) for _, b in pairs}) == len(pairs) else []

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
