"""Proves Eq. 3 (h takes a term from r to r') and Eq. 4 (h distributes over f); Eqs. 8 and 9 for several producers.

An h that is not proved is refused, even if it may be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import sympy as sp
from sympy import Add, Dummy, Expr, Function, Max, Min, Mul, Pow, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.derive import Derivation
from neptune_lab.repair.domain import SIGNS
from neptune_lab.repair.functions import operation_of, start_of
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import Line, Step, equation, text
from neptune_lab.repair.simplify import is_zero, nicest

_SHOWN = 16  # operations, beyond which a difference tells the reader nothing
_INVERSES = (sp.sinh, sp.asinh, sp.atan)  # also increasing


@dataclass(frozen=True, slots=True)
class Proof:
    """A proven equation.

    Attributes:
        equation: "Eq. 3" or "Eq. 4".
        statement: the equation.
        lines: the steps.
        caveats: conditions under which it holds, if not everywhere (guards cover the other points).
    """

    equation: str
    statement: str
    lines: tuple[Line, ...]
    caveats: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"Prove {self.equation}: {self.statement}"

    @property
    def shown(self) -> Step:
        """The proof and its conditions, ready to show."""
        return Step(self.title, (*self.lines, *(Line(f"wherever {caveat}") for caveat in self.caveats)))

    def replace(self, mapping: Mapping[Symbol, Symbol]) -> Proof:
        """The same proof over other symbols."""
        return replace(self, lines=tuple(line.replace(mapping) for line in self.lines))

    def as_record(self) -> dict[str, Any]:
        """JSON form, expressions as text."""
        return {
            "equation": self.equation,
            "statement": self.statement,
            "ok": True,
            "lines": [line.text for line in self.lines],
            "caveats": list(self.caveats),
        }


def sign_words(expr: Expr) -> dict[str, bool]:
    """What is known of an expression's sign.

    >>> sign_words(sp.exp(Symbol("x", real=True)))["positive"]
    True
    """
    return {word: True for word in SIGNS if getattr(expr, f"is_{word}")}


def check_real(expr: Expr, producers: tuple[Symbol, ...], ignore: tuple[Symbol, ...] = ()) -> None:
    """Formal statement: for every r of the domain, each root and logarithm of r in `expr` is real.

    Those with a symbol of `ignore` (C or t) are defined wherever the term itself is.

    Raises:
        RepairError: step "prove Eq. 3".

    >>> check_real(sp.sqrt(Symbol("r", nonnegative=True)), (Symbol("r", nonnegative=True),))
    >>> check_real(sp.sqrt(Symbol("r", real=True)), (Symbol("r", real=True),))
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: sqrt(r) is not known to be real: r may be negative
      help: say what is known of r, such as assumptions={'r': ['nonnegative']}
    """
    for node in sp.preorder_traversal(expr):
        if isinstance(node, Pow) and node.exp.is_integer is not True:
            inner, good = cast(Expr, node.base), node.base.is_nonnegative
        else:
            row = operation_of(type(node))
            start = None if row is None else start_of(row)
            if start is None:
                continue
            inner = cast(Expr, node.args[0] - start)
            good = inner.is_positive
        symbols = cast("set[Symbol]", inner.free_symbols)
        mine = sorted(text(symbol) for symbol in symbols & set(producers))
        if good or not mine or symbols & set(ignore):
            continue
        raise RepairError(
            f"{text(node)} is not known to be real: {text(inner)} may be negative",
            step="prove Eq. 3",
            expression=text(node),
            help=f"say what is known of {', '.join(sorted(map(text, symbols)))}, such as "
            f"assumptions={{'{mine[0]}': ['nonnegative']}}",
        )


def prove_replaces(g0: Expr, variable: Symbol, derived: Derivation, caveats: tuple[str, ...] = ()) -> Proof:
    """Eq. 3: h(g0(r, C), r, r') = g0(r', C) for all r, r' and C.

    With g(r, c) = g0(r, g_c(c)), which holds by the change of variables, this is h(g(r, c), r, r') = g(r', c).  The
    identity is proved for t = g0(r, C) with C over all reals (or all of its known sign), so no property of the inverse
    is assumed: a wrong branch fails here.

    Args:
        g0: the term over r and C.
        variable: C.
        derived: h.
        caveats: conditions on r under which g0 and h are regular.

    Raises:
        RepairError: step "prove Eq. 3".

    >>> from neptune_lab.repair.derive import derive
    >>> r, q, C, t = sp.symbols("r r' C t", real=True)
    >>> prove_replaces(sp.exp(C - r), C, derive(sp.exp(C - r), C, r + sp.log(t), t, {r: q})).equation
    'Eq. 3'
    """
    current = dict(zip(derived.previous, derived.current, strict=True))
    moved = cast(Expr, derived.h.subs(derived.t, g0))
    wanted = cast(Expr, g0.xreplace(current))
    call = Function("h")(g0, *derived.previous, *derived.current)
    if not is_zero(cast(Expr, moved - wanted)):
        raise RepairError(
            f"h = {text(derived.h)} does not carry g0 = {text(g0)} to r': found {text(moved)}, wanted {text(wanted)}",
            step="prove Eq. 3",
            expression=text(derived.h),
            help=f"{text(variable)} may have several values for one t; say what sign the inputs and producers have",
        )
    same = Line("the difference of the two simplifies to 0, so it is g0 at r'", equation(moved, wanted))
    lines = (
        Line("put t = g0(r, C) into h", equation(call, moved)),
        Line("which is g0 at r'") if moved == wanted else same,
    )
    return Proof("Eq. 3", "h(g(r, c), r, r') = g(r', c)", lines, caveats)


def prove_distributes(reducer: str, derived: Derivation, sign: Mapping[str, bool]) -> Proof:
    """Eq. 4: h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r')) for all x and y that the reduction can hold.

    For sum and prod this is proved by algebra (h is linear in t, or a power of t), for max and min by h being
    non-decreasing in t.

    Args:
        reducer: f.
        derived: h.
        sign: what is known of the sign of terms, which f keeps, such as {"positive": True}.

    Raises:
        RepairError: step "prove Eq. 4".

    >>> from neptune_lab.repair.derive import derive
    >>> r, q, C, t = sp.symbols("r r' C t", real=True)
    >>> shift = derive(C - r, C, t + r, t, {r: q})
    >>> prove_distributes("max", shift, {}).lines[-1].note
    'h is non-decreasing in t, so max passes through it'
    >>> prove_distributes("sum", shift, {})
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: h(t, r, r') = t + r - r' is not additive: h(x + y) - h(x) - h(y) = r' - r, which ...
      help: ...
    """
    if reducer in ("any", "all"):
        return _prove_kept(reducer, derived)
    if reducer in ("max", "min"):
        return _prove_monotone(reducer, derived, sign)
    x, y = (Dummy(name, real=True, **_kept_sign(reducer, sign)) for name in "xy")

    def h(value: Expr) -> Expr:
        return cast(Expr, derived.h.xreplace({derived.t: value}))

    rule = REDUCERS[reducer]
    left, right = h(rule.combine(x, y)), rule.combine(h(x), h(y))
    call = Function("h")
    if not is_zero(cast(Expr, left - right)):
        raise RepairError(
            f"{_signature(derived)} = {text(derived.h)} is not {rule.homomorphism}: {_gap(reducer, left - right)}",
            step="prove Eq. 4",
            expression=text(derived.h),
            help="for a sum, r must act on a term as a factor, as in exp(c - r) or c/r; of other terms, such as c - r, "
            "repair.solve_vector finds those that can be repaired together with a few sums more"
            if reducer == "sum"
            else "for a product, r must act on a term as a power, as in exp(c*r)",
        )
    r = (*derived.previous, *derived.current)
    lines = (
        Line("of both", equation(call(rule.combine(x, y), *r), left)),
        Line("of each", equation(rule.combine(call(x, *r), call(y, *r)), nicest(right) if reducer == "sum" else right)),
        Line(f"they are equal: h is {rule.homomorphism} in t", None),
    )
    return Proof("Eq. 4", "h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r'))", lines)


def _kept_sign(reducer: str, sign: Mapping[str, bool]) -> dict[str, bool]:
    """What is known of a reduction's sign if `sign` is known of its terms."""
    lost = {"sum": () if len(sign) > 1 else ("nonzero",), "prod": ("negative", "nonpositive")}
    return {word: value for word, value in sign.items() if word not in lost.get(reducer, ())}


def _gap(reducer: str, difference: Expr) -> str:
    sums = "h(x + y) - h(x) - h(y)" if reducer == "sum" else "h(x*y) - h(x)*h(y)"
    if difference.count_ops() > _SHOWN:
        return f"{sums} is not 0"
    shown = text(nicest(cast(Expr, sp.expand(difference))))
    return f"{sums} = {shown}, which is not 0" if len(shown) <= 160 else f"{sums} is not 0"


def _signature(derived: Derivation) -> str:
    return text(Function("h")(derived.t, *derived.previous, *derived.current))


def _prove_monotone(reducer: str, derived: Derivation, sign: Mapping[str, bool]) -> Proof:
    value = Dummy(derived.t.name, real=True, **dict(sign))
    h = cast(Expr, derived.h.xreplace({derived.t: value}))
    way = direction(h, value)
    if way not in (0, 1):
        doubt = f": the factor {text(derived.factor)} may be negative" if derived.factor else ", as far as can be shown"
        raise RepairError(
            f"{_signature(derived)} = {text(derived.h)} is not monotone in {text(derived.t)}{doubt}",
            step="prove Eq. 4",
            expression=text(derived.h),
            help=_what_would_make_it_monotone(reducer, h, value, derived),
        )
    why = f"the factor {text(derived.factor)} is not negative" if derived.factor is not None else "each part only grows"
    lines = (
        Line("h in t", equation(Function("h")(derived.t, *derived.previous, *derived.current), derived.h)),
        Line(why),
        Line(f"h is non-decreasing in t, so {reducer} passes through it"),
    )
    return Proof("Eq. 4", "h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r'))", lines)


def _prove_kept(reducer: str, derived: Derivation) -> Proof:
    """Of the four functions of one truth value, only h = t is one-to-one (as Eq. 3 asks wherever g takes both values)
    and distributes over `or` and `and`: `not` turns the one into the other."""
    if derived.h != derived.t:
        raise RepairError(
            f"{_signature(derived)} = {text(derived.h)} is not {text(derived.t)} itself, and nothing else carries a "
            f"truth value through {reducer}",
            step="prove Eq. 4",
            expression=text(derived.h),
            help=f"under {reducer} a term may not change with r",
        )
    call = Function("h")(derived.t, *derived.previous, *derived.current)
    lines = (Line("h in t", equation(call, derived.h)), Line(f"h changes nothing, so {reducer} passes through it"))
    return Proof("Eq. 4", "h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r'))", lines)


def _what_would_make_it_monotone(reducer: str, h: Expr, value: Symbol, derived: Derivation) -> str:
    names = list(dict.fromkeys(symbol.name for symbol in derived.previous))
    better = {s: Dummy(s.name, positive=True) for s in (*derived.previous, *derived.current)}
    if direction(cast(Expr, h.xreplace(better)), value) in (0, 1):
        signs = ", ".join(f"'{name}': ['nonnegative']" for name in names)
        return f"if the producers cannot be negative, say so: assumptions={{{signs}}}"
    return f"under {reducer} h may only grow with t; a factor that can change sign turns {reducer} around"


def direction(expr: Expr, t: Symbol) -> int | None:
    """Whether `expr` is monotone in t over all of t's domain: 1 non-decreasing, -1 non-increasing, 0 constant, None
    unknown.

    Only operations that are monotone and continuous on that domain count, so a pole (1/t over both signs) gives None.

    >>> t, r, p = Symbol("t", real=True), Symbol("r", real=True), Symbol("p", positive=True)
    >>> direction(t*p - r, t), direction(-t/p, t), direction(t*r, t), direction(1/t, t)
    (1, -1, None, None)
    """
    if t not in expr.free_symbols:
        return 0
    if expr == t:
        return 1
    args = [cast(Expr, arg) for arg in expr.args]
    if isinstance(expr, (Add, Max, Min)):
        ways = {direction(arg, t) for arg in args} - {0}
        return ways.pop() if len(ways) == 1 else None
    if isinstance(expr, Mul):
        moving = [arg for arg in args if t in arg.free_symbols]
        still = cast(Expr, Mul(*(arg for arg in args if t not in arg.free_symbols)))
        return _scaled(direction(moving[0], t), still) if len(moving) == 1 else None
    if isinstance(expr, _INVERSES) or _rises(type(expr), args[0]):
        return direction(args[0], t)
    if isinstance(expr, Pow):
        return _power_direction(args[0], args[1], t)
    return None


def _rises(kind: type, operand: Expr) -> bool:
    """Whether a function is continuous and non-decreasing at an operand inside its domain."""
    row = operation_of(kind)
    if row is None or row.arity > 1 or row.exact or not row.rising:
        return False
    start = start_of(row)
    return start is None or bool((operand - start).is_positive)


def _scaled(way: int | None, factor: Expr) -> int | None:
    if way is None:
        return None
    if factor.is_nonnegative:
        return way
    return -way if factor.is_nonpositive else None


def _power_direction(base: Expr, exponent: Expr, t: Symbol) -> int | None:
    if t in exponent.free_symbols:
        grows = base.is_positive and cast(Expr, base - 1).is_nonnegative and t not in base.free_symbols
        return direction(exponent, t) if grows else None
    way = direction(base, t)
    if way is None:
        return None
    if exponent.is_integer and exponent.is_odd and exponent.is_positive:
        return way
    if base.is_nonnegative and exponent.is_nonnegative:
        return way
    if base.is_positive and exponent.is_nonpositive:
        return -way
    return None
