"""Decides whether an expression is 0, and finds its shortest equal form.

`sympy.simplify` is slow, so cheaper rewrites are tried first, and an expression that is not about 0 at random points is
not simplified at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, cast

import sympy as sp
from sympy import Expr, Symbol

from neptune_lab.repair.column import largest, total
from neptune_lab.repair.numeric import compute_all
from neptune_lab.repair.points import Generator, sample

MOST_TERMS = 256  # of an expression that is expanded to see whether it is shorter
LARGE = 120  # operations, beyond which sp.simplify takes seconds
LARGEST_EXPONENT = 2**12  # of a number that SymPy may raise to it
LARGEST_POWER = 16  # a polynomial in exp(x/q) with exp(p*x/q) has degree p, and SymPy stores every coefficient


def _cancel_inverses(expr: Expr) -> Expr:
    """atanh(tanh(x)) = x and asinh(sinh(x)) = x for real x, which SymPy leaves alone."""
    undone = {sp.atanh: sp.tanh, sp.asinh: sp.sinh}
    pairs = {call: call.args[0].args[0] for call in expr.atoms(*undone) if isinstance(call.args[0], undone[call.func])}
    return cast(Expr, expr.xreplace(pairs))


def as_polynomial(rewrite: Callable[[Expr], Any], expr: Expr) -> Expr:
    """`rewrite(expr)`, which sees symbols for the numbers in exponents that would make polynomials of a large degree.

    For exp(0.176776695*x), a rational number of 15 digits, SymPy's polynomials take exp(x/q) as their variable, to a
    power of 15 digits.  What holds for any number in its place holds for that number; numbers whose ratio is simple
    become multiples of one symbol.

    >>> c, r, s, v = sp.symbols("c r s v", real=True)
    >>> k = sp.Rational(50000000000000, 282842712474619)
    >>> as_polynomial(sp.factor, v * sp.exp(k * c - r) / s + v * sp.exp(2 * k * c - r))
    v*(s*exp(50000000000000*c/282842712474619) + 1)*exp(50000000000000*c/282842712474619)*exp(-r)/s
    """
    exponentials = {p for p in expr.atoms(sp.Pow) if p.base.is_Rational and not p.exp.is_number}
    return _with_symbols(rewrite, expr, {*expr.atoms(sp.exp), *exponentials, *_powers_of_numbers(expr)})


def powsimp(expr: Expr, **options: Any) -> Expr:
    """`sympy.powsimp`, which sees symbols for the numbers of `_powers_of_numbers`.

    >>> x = Symbol("x", real=True)
    >>> powsimp(2 ** (432808512266689 / (x + 1)) * 2**x)
    2**(x + 432808512266689/(x + 1))
    """
    return _with_symbols(lambda e: sp.powsimp(e, **options), expr, _powers_of_numbers(expr))


def _powers_of_numbers(expr: Expr) -> set[Expr]:
    """Powers that SymPy would write out: 2**(n/(x + 1)) for a number n of 15 digits as (2**n)**(1/(x + 1)), and so
    n*log(2)/(x + 1).  Nothing interrupts that, and no memory holds it."""
    powers = {p for p in expr.atoms(sp.Pow) if p.base.is_Rational and _is_large(p.exp)}
    products = expr.atoms(sp.Mul)
    logarithms = {
        m for m in products if _is_large(m) and any(f.func == sp.log and f.args[0].is_Rational for f in m.args)
    }
    return {*powers, *logarithms}


def _is_large(product: Expr) -> bool:
    return bool(abs(product.as_coeff_Mul(rational=True)[0]) > LARGEST_EXPONENT)


def _with_symbols(rewrite: Callable[[Expr], Any], expr: Expr, parts: set[Any]) -> Expr:
    """`rewrite(expr)`, which sees symbols for the numbers in some parts of `expr` that are not simple."""
    symbols: dict[Expr, Symbol] = {}
    numbers: dict[Expr, Expr] = {}
    exponentials = sorted(parts, key=sp.default_sort_key)
    for number in (n for e in exponentials for n in sorted(e.atoms(sp.Rational), key=sp.default_sort_key)):
        if _is_simple(number) or number in numbers:
            continue
        base = next((b for b in symbols if _is_simple(cast(sp.Rational, number / b))), number)
        symbol = symbols.setdefault(base, sp.Dummy("k", real=True, positive=base.is_positive, nonzero=True))
        numbers[number] = cast(Expr, number / base * symbol)
    if not numbers:
        return rewrite(expr)
    hidden = expr.xreplace({e: e.xreplace(numbers) for e in exponentials})
    return cast(Expr, rewrite(cast(Expr, hidden)).xreplace({symbol: base for base, symbol in symbols.items()}))


def _is_simple(number: sp.Rational) -> bool:
    return max(abs(number.p), number.q) <= LARGEST_POWER


_REWRITES: tuple[Callable[[Expr], Expr], ...] = (
    lambda e: cast(Expr, sp.expand(e)),
    lambda e: powsimp(cast(Expr, sp.expand(e))),
    lambda e: powsimp(cast(Expr, sp.expand_log(sp.expand_power_base(e))), combine="exp"),
    lambda e: cast(Expr, sp.expand(sp.powdenest(sp.expand_log(e)))),
    lambda e: as_polynomial(lambda inner: cast(Expr, sp.cancel(sp.together(sp.powsimp(inner)))), e),
    # (every number: sp.simplify multiplies them, and raises what is in a logarithm to their products)
    lambda e: _with_symbols(lambda inner: cast(Expr, sp.simplify(inner)), e, {e}),
)


def is_zero(expr: Expr) -> bool:
    """Whether `expr` is proved to be 0 for all values of its symbols that their assumptions allow.

    >>> x = Symbol("x", real=True)
    >>> is_zero((x + 1)**2 - x**2 - 2*x - 1), is_zero(sp.sqrt(x**2) - x)
    (True, False)
    """
    if expr == 0:
        return True
    expr = _cancel_inverses(expr)
    if expr == 0:
        return True
    seems = seems_zero(expr)
    if seems is False:
        return False
    if seems is None:
        worth = _REWRITES[:2]
    else:
        worth = _REWRITES if expr.count_ops() <= LARGE else _REWRITES[:-1]
    return any(rewrite(expr) == 0 for rewrite in worth)


def seems_zero(expr: Expr) -> bool | None:
    """Whether `expr` is about 0 at random points; None if it is finite at too few of them.

    >>> x = Symbol("x")
    >>> seems_zero(x + 1), seems_zero(sp.sin(x)**2 + sp.cos(x)**2 - 1), seems_zero(sp.log(-x**2))
    (False, True, None)
    """
    symbols = sorted(cast("set[Symbol]", expr.free_symbols), key=sp.default_sort_key)
    draw = Generator()
    points = {symbol: sample(symbol, 16, draw) for symbol in symbols}
    terms = compute_all(sp.Add.make_args(expr), points)
    values, scale = total(terms), largest([abs(term) for term in terms])
    finite = [at for at, x, y in zip(range(len(values)), values.finite, scale.finite, strict=True) if x and y]
    if any(abs(values[at]) > 1e-6 * scale[at] for at in finite):
        return False
    return True if len(finite) >= 4 else None


def _forms(expr: Expr) -> Iterator[Expr]:
    yield expr
    yield cast(Expr, sp.powsimp(expr, combine="exp"))
    yield cast(Expr, sp.powdenest(expr))
    yield cast(Expr, sp.powsimp(sp.expand_power_base(expr), combine="exp"))
    if terms_of(expr) > MOST_TERMS:
        return  # (not the shortest: the time and the size double with each factor of a product of sums)
    yield cast(Expr, sp.expand(expr, power_exp=False, power_base=False, log=False, multinomial=False))
    yield cast(Expr, sp.powsimp(sp.expand_log(sp.expand(expr)), combine="exp"))


def terms_of(expr: Expr) -> int:
    """The most summands that an expression has once it is expanded, with each power taken for a square.

    What takes long is sums in one another; a large power of one sum is left to the time limit.

    >>> a, b, c = sp.symbols("a b c")
    >>> terms_of((a + b) ** 3 * (a + c)), terms_of(sp.exp((a + b) * (a + c)) / (a + b)), terms_of(a * b)
    (8, 8, 1)
    """
    parts = [terms_of(cast(Expr, arg)) for arg in expr.args]
    match expr:
        case sp.Add():
            return sum(parts)
        case sp.Pow(exp=sp.Integer() as exponent):
            return parts[0] ** min(abs(int(exponent)), 2)
        case sp.Mul():
            return prod(parts)
    return max(parts, default=1)


def nicest(expr: Expr) -> Expr:
    """The shortest of a few equal forms.

    >>> r, q = sp.symbols("r q", real=True)
    >>> nicest(sp.exp(r) * sp.exp(-q)), nicest(q - (q - r))
    (exp(-q + r), r)
    """
    sizes = {form: int(sp.count_ops(form)) for form in dict.fromkeys(_forms(expr))}
    least = min(sizes.values())
    shortest = [form for form, size in sizes.items() if size == least]
    return shortest[0] if len(shortest) == 1 else min(shortest, key=lambda form: len(str(form)))
