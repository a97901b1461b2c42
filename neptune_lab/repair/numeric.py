"""Evaluates expressions in float64 at seeded random points, with IEEE infinities and NaNs as on a GPU.

The numerical checks of this package use it, and not SymPy's simplifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import sympy as sp
from sympy import Expr, Symbol

from neptune_lab.scalar_ops import NUMPY, rows

Array = npt.NDArray[np.float64]
SEED = 20240607


@lru_cache(maxsize=1024)
def _lambdified(exprs: tuple[Expr, ...], args: tuple[Symbol, ...]) -> Callable[..., Any]:
    # SciPy is not a dependency: functions that NumPy lacks come from the table of scalar operations.
    own = {row.sympy: NUMPY[row.name] for row in rows("loop") if row.numpy.startswith("math.")}
    modules = [own, "numpy"]
    return cast("Callable[..., Any]", sp.lambdify(args, exprs, modules=modules, docstring_limit=0))


def compute(expr: Expr, at: Mapping[Symbol, Any]) -> Array:
    """The value of `expr` at points, float64 in their broadcast shape.

    >>> from sympy.abc import x, y
    >>> compute(x / y, {x: 1.0, y: [0.0, 4.0]}).tolist()
    [inf, 0.25]
    """
    return compute_all([expr], at)[0]


def compute_all(exprs: Sequence[Expr], at: Mapping[Symbol, Any]) -> list[Array]:
    """Values of several expressions, compiled together."""
    args = tuple(sorted(at, key=sp.default_sort_key))
    inputs = [np.asarray(at[arg], dtype=np.float64) for arg in args]
    shape = np.broadcast_shapes(*(value.shape for value in inputs))
    # At least one dimension: unlike arrays, NumPy scalars do not divide by 0.
    arrays = [np.atleast_1d(np.broadcast_to(value, shape)).copy() for value in inputs]
    with np.errstate(all="ignore"):
        values = [np.asarray(value) for value in _lambdified(tuple(exprs), args)(*arrays)]
    real = [np.where(np.imag(out) == 0, np.real(out), np.nan) if np.iscomplexobj(out) else out for out in values]
    full = arrays[0].shape if arrays else ()
    return [np.broadcast_to(out.astype(np.float64), full).reshape(shape) for out in real]


def generator() -> np.random.Generator:
    """A fresh generator of the package's fixed seed: every answer is reproducible."""
    return np.random.default_rng(SEED)


def sample(symbol: Symbol, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Random values of a symbol that satisfy its assumptions and are away from 0.

    >>> r = Symbol("r", negative=True)
    >>> bool((sample(r, (3,), generator()) < 0).all())
    True
    """
    shape = tuple(shape)
    size = rng.integers(1, 4, shape).astype(np.float64) if symbol.is_integer else rng.uniform(0.3, 2.0, shape)
    if symbol.is_nonnegative:
        return size
    if symbol.is_nonpositive:
        return -size
    return size * rng.choice([-1.0, 1.0], shape)


def close(found: Array, expected: Array, scale: Array) -> npt.NDArray[np.bool_]:
    """Whether two values agree to float64 rounding, relative to `scale`, the largest number they were computed from."""
    with np.errstate(all="ignore"):
        return np.abs(found - expected) <= 1e-7 * np.maximum(scale, np.maximum(np.abs(found), np.abs(expected)))
