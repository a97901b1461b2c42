"""Compute expressions in float64 at seeded random points, with IEEE infinities and NaNs as on a GPU.

This is the side of the package that does not trust SymPy's simplifier.
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
    # SciPy is not a dependency: what NumPy lacks is computed by the table.
    own = {row.sympy: NUMPY[row.name] for row in rows("loop") if row.numpy.startswith("math.")}
    modules = [own, "numpy"]
    return cast("Callable[..., Any]", sp.lambdify(args, exprs, modules=modules, docstring_limit=0))


def compute(expr: Expr, at: Mapping[Symbol, Any]) -> Array:
    """Value of `expr` at the given points, broadcast to their shape.

    >>> from sympy.abc import x, y
    >>> compute(x / y, {x: 1.0, y: [0.0, 4.0]}).tolist()
    [inf, 0.25]
    """
    return compute_all([expr], at)[0]


def compute_all(exprs: Sequence[Expr], at: Mapping[Symbol, Any]) -> list[Array]:
    """Values of several expressions, compiled together."""
    args = tuple(sorted(at, key=sp.default_sort_key))
    values = [np.asarray(at[arg], dtype=np.float64) for arg in args]
    shape = np.broadcast_shapes(*(value.shape for value in values))
    # At least one dimension: NumPy scalars would not divide by 0 as arrays do.
    arrays = [np.atleast_1d(np.broadcast_to(value, shape)).copy() for value in values]
    with np.errstate(all="ignore"):
        found = [np.asarray(value) for value in _lambdified(tuple(exprs), args)(*arrays)]
    real = [np.where(np.imag(out) == 0, np.real(out), np.nan) if np.iscomplexobj(out) else out for out in found]
    full = arrays[0].shape if arrays else ()
    return [np.broadcast_to(out.astype(np.float64), full).reshape(shape) for out in real]


def generator() -> np.random.Generator:
    """A fresh generator of the package's fixed seed: every answer is reproducible."""
    return np.random.default_rng(SEED)


def sample(symbol: Symbol, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Random values of a symbol that keep to its assumptions and away from 0.

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
    """Whether two values agree to float64 rounding, relative to the largest number that went into them."""
    with np.errstate(all="ignore"):
        return np.abs(found - expected) <= 1e-7 * np.maximum(scale, np.maximum(np.abs(found), np.abs(expected)))
