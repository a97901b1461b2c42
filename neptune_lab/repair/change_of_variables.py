"""Change of variables: find C = g_c(c) with g(r, c) = g0(r, C)  (section 4.2, "Support for Non-Invertible Functions").

Two splits do most of the work: A(c) + B(r), and A(c) * B(r).  Operations around them whose other operands are free of
r are peeled off, so that exp(r - relu(c)**2) gives C = relu(c)**2 and g0 = exp(r - C).  Producers and inputs are sets,
so the same rules hold for vectors r and c (Eq. 8).  Each rule is an identity on the stated domain, so g0(r, g_c(c)) is
equal to g; `check.py` also compares the two numerically.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import cast

import sympy as sp
from sympy import Add, Dummy, Expr, Function, Max, Min, Mul, S, Symbol

from neptune_lab.errors import RepairError
from neptune_lab.repair.render import Line, equation, text
from neptune_lab.repair.splitting import Roles, Split, args_of, split_product, split_sum


@dataclass(frozen=True, slots=True)
class Separation:
    """g(r, c) = g0(r, C) with C = g_c(c).

    Attributes:
        g: the caller's term.
        g0: the term over r and C.
        variable: C.
        g_c: C in terms of the inputs.
        inputs: the symbols in C.
        producers: r, the results of other reductions.
        constants: the other symbols of g0; each must have one value for the whole reduction, because h reads them.
        note: by which rule C was chosen.
    """

    g: Expr
    g0: Expr
    variable: Symbol
    g_c: Expr
    producers: tuple[Symbol, ...]
    inputs: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]
    note: str

    title = "Separate: find C = g_c(c) with g(r, c) = g0(r, C)"

    @property
    def lines(self) -> tuple[Line, ...]:
        """The step line by line, for display."""
        inner = Function("g")(*self.producers, *self.inputs)
        lines = [
            Line("the term", equation(inner, self.g)),
            Line(self.note, equation(self.variable, self.g_c)),
            Line("so the term is", equation(Function("g0")(*self.producers, self.variable), self.g0)),
        ]
        lines += [Line(f"{s.name} must have one value for the whole reduction: h reads it") for s in self.constants]
        return tuple(lines)

    def replace(self, mapping: Mapping[Symbol, Expr]) -> Separation:
        """The same separation over other symbols."""
        return Separation(
            g=cast(Expr, self.g.xreplace(dict(mapping))),
            g0=cast(Expr, self.g0.xreplace(dict(mapping))),
            variable=self.variable,
            g_c=cast(Expr, self.g_c.xreplace(dict(mapping))),
            producers=tuple(cast(Symbol, mapping.get(symbol, symbol)) for symbol in self.producers),
            inputs=self.inputs,
            constants=self.constants,
            note=self.note,
        )

    def with_calls(self, calls: Mapping[Symbol, Expr], symbols: Sequence[Symbol]) -> Separation:
        """The separation with calls such as f(c) in place of the symbols for them.

        Args:
            calls: symbol -> call.
            symbols: the inputs and constants of g.
        """
        shown = self.replace(calls)
        return replace(shown, inputs=tuple(symbol for symbol in symbols if symbol not in self.constants))


def _peel(expr: Expr, variable: Symbol, roles: Roles) -> tuple[Expr, Expr] | None:
    """(g0, g_c), going inwards through operations that have all inputs in one operand."""
    if not roles.has_r(expr):
        return variable, expr
    if isinstance(expr, (Add, Max, Min)):
        part = split_sum(expr, roles)
        if part:
            return _as_sum(part, variable)
    holders = [arg for arg in args_of(expr) if roles.has_c(arg)]
    alone = holders[0] if len(holders) == 1 else None
    if not (isinstance(expr, Mul) and alone is not None):
        # A lone factor is peeled first: exp(c - r)/s gives C = c, as in the paper, and not C = exp(c).
        part = split_product(expr, roles) if not isinstance(expr, sp.exp) else None
        if part:
            return cast(Expr, variable * part[1]), part[0]
    if alone is None:
        return None
    inner = _peel(alone, variable, roles)
    if inner is None:
        return None
    around = [inner[0] if arg is alone else arg for arg in args_of(expr)]
    return cast(Expr, expr.func(*around)), inner[1]


def _as_sum(part: Split, variable: Symbol) -> tuple[Expr, Expr]:
    """C + B(r), or B(r) - C if C has no minus sign then: r - relu(c)**2 has C = relu(c)**2."""
    a, b = part
    if not isinstance(a, Add) and a.could_extract_minus_sign():
        return cast(Expr, b - variable), cast(Expr, -a)
    return cast(Expr, variable + b), a


def _by_atoms(expr: Expr, variable: Symbol, roles: Roles) -> tuple[Expr, Expr] | None:
    """C = the only maximal r-free part of g (it may occur several times), or the only input."""
    parts: set[Expr] = set()

    def collect(node: Expr) -> None:
        if not roles.has_c(node):
            return
        if not roles.has_r(node):
            parts.add(node)
            return
        for arg in args_of(node):
            collect(arg)

    collect(expr)
    if len(parts) == 1:
        (only,) = parts
        return cast(Expr, expr.xreplace({only: variable})), only
    present = [symbol for symbol in roles.inputs if symbol in expr.free_symbols]
    if len(present) == 1:
        return cast(Expr, expr.xreplace({present[0]: variable})), present[0]
    return None


def change_variables(
    g: Expr,
    producers: Sequence[Symbol],
    *,
    reducer: str = "sum",
    constants: Sequence[Symbol] | None = None,
    variable: Symbol | None = None,
) -> Separation:
    """Find C = g_c(c) with g(r, c) = g0(r, C).

    Every symbol that is neither a producer nor one of `constants` is an input.  Without `constants`, and only if g
    does not separate otherwise, inputs about which something is assumed (such as eps > 0) are tried as constants.

    >>> c, d, r, eps = (Symbol(n, real=True) for n in ("c", "d", "r", "eps"))
    >>> C = Symbol("C", real=True)
    >>> s = change_variables(sp.exp(r - Max(c, 0)**2), [r], variable=C)
    >>> s.g_c, s.g0
    (Max(0, c)**2, exp(-C + r))
    >>> s = change_variables(sp.exp(c - r) * d, [r], variable=C)
    >>> s.g_c, s.g0
    (d*exp(c), C*exp(-r))
    >>> change_variables(c*r + d, [r])
    Traceback (most recent call last):
    ...
    neptune_lab.errors.RepairError: g = c*r + d does not separate: c and d meet r in different ways, so no single C ...
      help: ...
    """
    symbols = sorted(cast("set[Symbol]", g.free_symbols) - set(producers), key=sp.default_sort_key)
    fixed = tuple(symbol for symbol in symbols if symbol in (constants or ()))
    free = [symbol for symbol in symbols if symbol not in fixed]
    variable = variable if variable is not None else Dummy("C", real=True)
    if not free:
        return _without_inputs(g, producers, fixed, reducer, variable)
    for chosen in _choices(free, fixed, constants is None):
        roles = Roles.of(producers, set(free) - set(chosen))
        separated = _peel(g, variable, roles) or _by_atoms(g, variable, roles)
        if separated is None:
            continue
        g0, g_c = separated
        named = _with_known_sign(variable, g_c)
        g0 = cast(Expr, g0.xreplace({variable: named}))
        held = tuple(symbol for symbol in symbols if symbol in g0.free_symbols)
        inputs = tuple(symbol for symbol in symbols if symbol not in held)
        note = "all inputs together are" if g_c != named and not g_c.is_Symbol else "the only r-free part is"
        return Separation(g, g0, named, g_c, tuple(producers), inputs, held, note)
    names = [text(symbol) for symbol in free]
    listed = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    raise RepairError(
        f"g = {text(g)} does not separate: {listed} meet {', '.join(map(text, producers))} in different ways, "
        f"so no single C = g_c({', '.join(names)}) carries them",
        step="separate",
        expression=text(g),
        help="inputs may occur in one expression without r only, as in exp(c1 - r)*c2 with C = exp(c1)*c2; "
        + _declare(_enough(g, producers, free, variable)),
    )


def _enough(g: Expr, producers: Sequence[Symbol], free: list[Symbol], variable: Symbol) -> list[str]:
    """One input, else two, with which g separates if they are constants, best so that C can be recovered; or none."""
    found: list[tuple[bool, list[str]]] = []
    for chosen in (c for size in (1, 2) for c in combinations(reversed(free), size) if size < len(free)):
        roles = Roles.of(producers, set(free) - set(chosen))
        if not (found and len(chosen) > 1) and (made := _peel(g, variable, roles) or _by_atoms(g, variable, roles)):
            lost = any(variable in part.free_symbols for part in made[0].atoms(sp.Max, sp.Min))
            found.append((lost, sorted(map(text, chosen))))
    return min(found, key=lambda pair: pair[0], default=(False, []))[1]


def _declare(names: list[str]) -> str:
    """How to declare constants, as the end of a help."""
    if not names:
        return "declare inputs that have one value for the whole reduction as constants, or sum the parts apart"
    have, them = ("has", "it") if len(names) == 1 else ("have", "them")
    return f"if {' and '.join(names)} {have} one value for the whole reduction, declare {them}: constants={names}"


def _choices(free: list[Symbol], fixed: tuple[Symbol, ...], infer: bool) -> list[tuple[Symbol, ...]]:
    """Sets of inputs to take as constants: none first, then few, among those that the caller assumed something of."""
    if not infer or fixed:
        return [()]
    assumed = [s for s in free if s.is_nonzero or s.is_nonnegative or s.is_nonpositive or s.is_integer]
    return [
        chosen
        for size in range(min(len(assumed), 3) + 1)
        for chosen in combinations(assumed, size)
        if len(chosen) < len(free)
    ]


def _with_known_sign(variable: Symbol, g_c: Expr) -> Symbol:
    """C with the sign that g_c is known to have: C = c**2 is not negative, so its square root is unique."""
    words = ("positive", "nonnegative", "negative", "nonpositive", "nonzero")
    known = {word: True for word in words if getattr(g_c, f"is_{word}")}
    if not known or g_c.is_number:
        return variable
    make = Dummy if isinstance(variable, Dummy) else Symbol
    return make(variable.name, real=True, **known)


def _without_inputs(
    g: Expr, producers: Sequence[Symbol], fixed: tuple[Symbol, ...], reducer: str, variable: Symbol
) -> Separation:
    """The separation of g(r), which has no input: all terms are equal.

    For a sum t = n*g(r), so g0 = C*g(r) with C = 1 gives h = t*g(r')/g(r).  For max and min t = g(r), so
    g0 = g(r) + C with C = 0 gives h = t + g(r') - g(r), which is monotone whatever the sign of g.
    """
    held = tuple(symbol for symbol in fixed if symbol in g.free_symbols)
    if not set(producers) & g.free_symbols:
        return Separation(g, variable, variable, g, tuple(producers), (), held, "g is the same for every r: it is")
    if reducer in ("max", "min"):
        g0, g_c = cast(Expr, g + variable), S.Zero
    else:
        g0, g_c = cast(Expr, g * variable), S.One
    return Separation(g, g0, variable, g_c, tuple(producers), (), held, "g has no input; C stands for each term")
