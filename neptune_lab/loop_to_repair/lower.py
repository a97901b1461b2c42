"""Lowers algebra to scalar expressions of the loop IR: the form in which a program stores a repair.

The forms are chosen for floats.  A difference of two infinite or large values is taken before anything else, because
2 * r - 2 * r' is inf - inf for a large r, and (r + s) - (r' + s') loses the digits of the smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import sympy

from neptune_lab.errors import RepairError
from neptune_lab.loop_ir.nodes import Const, Expr, Op
from neptune_lab.repair.functions import operation_of
from neptune_lab.scalar_ops import ScalarOp

_MOST_FACTORS = 4  # up to this power, x**n is stored as x*x*…


def lower(expr: sympy.Expr, values: Mapping[sympy.Symbol, Expr], dtype: str) -> Expr:
    """A SymPy expression as a scalar expression of the loop IR.

    Args:
        expr: real-valued, such as h of a repair term.
        values: the expression of each symbol of `expr` in the program.
        dtype: of every constant, such as "float32".

    Raises:
        RepairError: step "derive", with the function that no scalar operation computes.

    >>> r, t = sympy.symbols("r t")
    >>> from neptune_lab.loop_ir.nodes import Var
    >>> lower(t * sympy.exp(-r), {r: Var("r"), t: Var("t")}, "float32")
    Op(name='mul', args=(Var(name='t'), Op(name='exp', args=(Op(name='neg', args=(Var(name='r'),)),))))

    A difference is taken before it is scaled: r / s and r' / s may both be infinite.

    >>> from neptune_lab.loop_ir.render import expression
    >>> s, new = sympy.symbols("s r'")
    >>> expression(lower((r - new) / s, {r: Var("r"), new: Var("new"), s: Var("s")}, "float32"))
    '(r - new) / s'
    >>> expression(lower(sympy.expand((r - new) / s), {r: Var("r"), new: Var("new"), s: Var("s")}, "float32"))
    '(r - new) / s'
    """
    return _Lowering(values, dtype).scalar(expr)


@dataclass(frozen=True, slots=True)
class _Lowering:
    """Lowers expressions over the same symbols; the arguments are those of `lower`."""

    values: Mapping[sympy.Symbol, Expr]
    dtype: str

    def scalar(self, expr: sympy.Basic) -> Expr:
        if isinstance(expr, sympy.Symbol | sympy.Dummy):
            return self.values[expr]
        if isinstance(expr, sympy.Expr) and expr.is_number:
            return self._number(expr)
        if isinstance(expr, sympy.Add):
            return self._sum(expr)
        if isinstance(expr, sympy.Mul):
            factors = cast("list[sympy.Expr]", list(expr.args))
            return Op("neg", (self._product(factors[1:]),)) if factors[0] == -1 else self._product(factors)
        if isinstance(expr, sympy.Pow):
            return self._power(expr)
        if isinstance(expr, sympy.Piecewise):
            return self._choice(expr)
        row = operation_of(type(expr))
        if row is not None:
            return _operation(row, [self.scalar(arg) for arg in expr.args])
        raise RepairError(
            f"the repair term holds {type(expr).__name__}, which has no scalar form",
            step="derive",
            expression=str(expr),
            help="rewrite the stage with exp, log, sqrt, powers, products and sums",
        )

    def _number(self, value: sympy.Expr | int) -> Const:
        return Const(float(value), self.dtype)

    def _sum(self, total: sympy.Add) -> Expr:
        plus = [term for term in total.args if not term.could_extract_minus_sign()]
        minus = [-term for term in total.args if term.could_extract_minus_sign()]
        pairs = _changes(plus, minus)
        differences: list[Expr] = []
        if len(pairs) > 1 or any(_scale_of(now, before)[0] != 1 for now, before in pairs):
            differences = [self._difference(now, before) for now, before in pairs]
            plus = [term for term in plus if all(term is not now for now, _ in pairs)]
            minus = [term for term in minus if all(term is not before for _, before in pairs)]
        if not plus and not differences:
            return Op("neg", (_chain("add", [self.scalar(term) for term in minus]),))
        result = _chain("add", [*(self.scalar(term) for term in plus), *differences])
        for term in minus:
            result = Op("sub", (result, self.scalar(term)))
        return result

    def _difference(self, now: sympy.Expr, before: sympy.Expr) -> Expr:
        """2 * (r - r') for 2 * r and 2 * r', and (r - r') / s for r / s and r' / s."""
        factor, value, other = _scale_of(now, before)
        difference = Op("sub", (self.scalar(value), self.scalar(other)))
        if factor == 1:
            return difference
        above, below = (factor, sympy.S.One) if factor.is_number else factor.as_numer_denom()
        result = difference if above == 1 else Op("mul", (self.scalar(above), difference))
        return result if below == 1 else Op("div", (result, self.scalar(below)))

    def _product(self, factors: Sequence[sympy.Expr]) -> Expr:
        above = [factor for factor in factors if not _is_reciprocal(factor)]
        below = [1 / factor for factor in factors if _is_reciprocal(factor)]
        # (a / b)**2, not a**2 / b**2: each square alone may overflow or underflow.
        ratios = []
        for a, b in [(a, b) for a in above for b in below]:
            (base, power), (other, same) = a.as_base_exp(), b.as_base_exp()
            if power == same and power.is_Integer and power > 1 and a in above and b in below:
                above.remove(a)
                below.remove(b)
                ratios.append(self._integer_power(Op("div", (self.scalar(base), self.scalar(other))), int(power)))
        terms = [*(self.scalar(factor) for factor in above), *ratios]
        result = _chain("mul", terms) if terms else self._number(1)
        return Op("div", (result, _chain("mul", [self.scalar(b) for b in below]))) if below else result

    def _power(self, expr: sympy.Pow) -> Expr:
        base, power = expr.args
        if base == sympy.E:
            return Op("exp", (self.scalar(power),))
        if power == sympy.Rational(1, 2):
            return Op("sqrt", (self.scalar(base),))
        if power.is_Integer and power > 1:
            return self._integer_power(self.scalar(base), int(power))
        if power.could_extract_minus_sign():
            return Op("div", (self._number(1), self.scalar(base**-power)))
        return Op("pow", (self.scalar(base), self.scalar(power)))

    def _integer_power(self, base: Expr, power: int) -> Expr:
        # A product is exact for any sign, and fast; TVM warns of pow with a power of 3 and more.
        if power <= _MOST_FACTORS:
            return _chain("mul", [base] * power)
        return Op("pow", (base, Const(float(power), self.dtype)))

    def _choice(self, expr: sympy.Piecewise) -> Expr:
        *cases, (last, _) = (pair.args for pair in expr.args)
        result = self.scalar(last)
        for value, condition in reversed(cases):
            result = Op("select", (self._truth(condition), self.scalar(value), result))
        return result

    def _truth(self, condition: sympy.Basic) -> Expr:
        row = operation_of(type(condition))
        if row is not None and row.kind == "comparison":
            return Op(row.name, tuple(self.scalar(side) for side in condition.args))
        if row is not None and row.kind == "logic":
            return _operation(row, [self._truth(arg) for arg in condition.args])
        return Const(condition == sympy.true, "bool")


def _operation(row: ScalarOp, args: list[Expr]) -> Expr:
    """The operation on its operands; SymPy gives an associative one any number of them."""
    return _chain(row.name, args) if row.arity == 2 else Op(row.name, tuple(args))


def _chain(op: str, terms: Sequence[Expr]) -> Expr:
    """The terms combined from left to right by a binary operation."""
    result = terms[0]
    for term in terms[1:]:
        result = Op(op, (result, term))
    return result


def _changes(plus: list[sympy.Expr], minus: list[sympy.Expr]) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """Pairs of a term added and a term subtracted that differ only in the time of a producer, r in one and r' in the
    other; none if one of them is in two pairs."""
    pairs = [(a, b) for a in plus for b in minus if str(a).replace("'", "") == str(b).replace("'", "")]
    return pairs if len({id(a) for a, _ in pairs}) == len({id(b) for _, b in pairs}) == len(pairs) else []


def _scale_of(now: sympy.Expr, before: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
    """A factor that two terms have in common, a number or symbols that both have, and what is left of each."""
    moving = now.free_symbols ^ before.free_symbols
    (factor, value), (same, other) = (term.as_independent(*moving, as_Add=False) for term in (now, before))
    return (factor, value, other) if factor == same else (sympy.S.One, now, before)


def _is_reciprocal(factor: sympy.Basic) -> bool:
    if isinstance(factor, sympy.Rational):
        return False
    return isinstance(factor, sympy.Pow) and factor.args[0] != sympy.E and factor.args[1].could_extract_minus_sign()
