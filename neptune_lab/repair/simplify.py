"""Decide whether an expression is 0, and pick its shortest equal form.

`sympy.simplify` is slow, so the cheap rewrites come first, and a value that is plainly not 0 at random points is
never sent to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import sympy as sp
from sympy import Expr, Symbol

from neptune_lab.repair.numeric import compute, generator, sample

_LARGE = 120  # operations, beyond which sp.simplify takes seconds


def _cancel_inverses(expr: Expr) -> Expr:
    """atanh(tanh(x)) = x and asinh(sinh(x)) = x for real x, which SymPy leaves alone."""
    undone = {sp.atanh: sp.tanh, sp.asinh: sp.sinh}
    pairs = {call: call.args[0].args[0] for call in expr.atoms(*undone) if isinstance(call.args[0], undone[call.func])}
    return cast(Expr, expr.xreplace(pairs))


_REWRITES: tuple[Callable[[Expr], Expr], ...] = (
    lambda e: cast(Expr, sp.expand(e)),
    lambda e: cast(Expr, sp.powsimp(sp.expand(e))),
    lambda e: cast(Expr, sp.powsimp(sp.expand_log(sp.expand_power_base(e)), combine="exp")),
    lambda e: cast(Expr, sp.expand(sp.powdenest(sp.expand_log(e)))),
    lambda e: cast(Expr, sp.cancel(sp.together(sp.powsimp(e)))),
    lambda e: cast(Expr, sp.simplify(e)),
)


def is_zero(expr: Expr) -> bool:
    """Whether `expr` is proven to be 0 for all values of its symbols that their assumptions allow.

    >>> x = Symbol("x", real=True)
    >>> is_zero((x + 1)**2 - x**2 - 2*x - 1), is_zero(sp.sqrt(x**2) - x)
    (True, False)
    """
    if expr == 0:
        return True
    expr = _cancel_inverses(expr)
    if expr == 0:
        return True
    if plainly_nonzero(expr):
        return False
    cheap = expr.count_ops() > _LARGE
    return any(rewrite(expr) == 0 for rewrite in (_REWRITES[:-1] if cheap else _REWRITES))


def plainly_nonzero(expr: Expr) -> bool:
    """Whether `expr` is far from 0 at some random point; never a proof that it is 0 elsewhere.

    >>> plainly_nonzero(Symbol("x") + 1), plainly_nonzero(sp.sin(Symbol("x"))**2 + sp.cos(Symbol("x"))**2 - 1)
    (True, False)
    """
    symbols = sorted(cast("set[Symbol]", expr.free_symbols), key=sp.default_sort_key)
    rng = generator()
    points = {symbol: sample(symbol, (16,), rng) for symbol in symbols}
    values = compute(expr, points)
    terms = sp.Add.make_args(expr)
    scale = np.max([np.abs(compute(cast(Expr, term), points)) for term in terms], axis=0)
    with np.errstate(all="ignore"):
        return bool(np.any(np.isfinite(values) & np.isfinite(scale) & (np.abs(values) > 1e-6 * scale)))


def _forms(expr: Expr) -> Iterator[Expr]:
    yield expr
    yield cast(Expr, sp.powsimp(expr, combine="exp"))
    yield cast(Expr, sp.powdenest(expr))
    yield cast(Expr, sp.powsimp(sp.expand_power_base(expr), combine="exp"))
    yield cast(Expr, sp.expand(expr, power_exp=False, power_base=False, log=False, multinomial=False))
    yield cast(Expr, sp.powsimp(sp.expand_log(sp.expand(expr)), combine="exp"))


def nicest(expr: Expr) -> Expr:
    """The shortest of a few equal forms.

    >>> r, q = sp.symbols("r q", real=True)
    >>> nicest(sp.exp(r) * sp.exp(-q)), nicest(q - (q - r))
    (exp(-q + r), r)
    """
    return min(_forms(expr), key=lambda form: (int(sp.count_ops(form)), len(str(form))))
