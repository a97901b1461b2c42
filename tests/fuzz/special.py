"""Inputs that find mistakes: ordinary numbers, and numbers at which floating point stops being the real line."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Shapes = Mapping[str, Sequence[int]]
Arrays = dict[str, np.ndarray]


def _some_rows(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Which rows (all axes but the last) a change is made in: about half of them, at least one."""
    rows = rng.random(x.shape[:-1]) < 0.5
    if rows.ndim:
        rows.flat[rng.integers(rows.size)] = True
        return rows
    return np.asarray(True)


def _lead(value: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    """The first elements of some rows are `value`, in one row all of them."""

    def change(rng: np.random.Generator, x: np.ndarray) -> None:
        count = int(rng.integers(1, x.shape[-1] + 1))
        rows = _some_rows(rng, x)
        x[..., :count] = np.where(rows[..., None], value, x[..., :count])

    return change


def _scattered(value: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    def change(rng: np.random.Generator, x: np.ndarray) -> None:
        x[rng.random(x.shape) < 0.4] = value

    return change


def _steep(low: float, high: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    """A jump along the last axis, so that a tile's result says nothing of the whole's."""

    def change(rng: np.random.Generator, x: np.ndarray) -> None:
        at = int(rng.integers(0, x.shape[-1] + 1))
        x[..., :at] += low
        x[..., at:] += high

    return change


def _times(factor: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    def change(_: np.random.Generator, x: np.ndarray) -> None:
        x *= factor

    return change


def _of_every_size(rng: np.random.Generator, x: np.ndarray) -> None:
    x *= 10.0 ** rng.uniform(-18, 18, x.shape)


def _equal(rng: np.random.Generator, x: np.ndarray) -> None:
    rows = _some_rows(rng, x)
    x[...] = np.where(rows[..., None], x[..., :1], x)


KINDS: dict[str, Callable[[np.random.Generator, np.ndarray], None]] = {
    "ordinary": lambda rng, x: None,
    "leading -inf": _lead(-np.inf),
    "scattered -inf": _scattered(-np.inf),
    "leading lowest": _lead(float(np.finfo(np.float32).min)),
    "low": _steep(-300.0, -300.0),
    "rising": _steep(-120.0, 0.0),
    "falling": _steep(0.0, -120.0),
    "high": _steep(90.0, 300.0),
    "large": _times(1e3),
    "equal rows": _equal,
    "zero rows": _lead(0.0),
    "zeros": _scattered(0.0),
    "scattered NaN": _scattered(np.nan),
    "leading inf": _lead(np.inf),
    "tiny": _times(1e-30),
    "of every size": _of_every_size,
}


def draw(kind: str, shapes: Shapes, dtype: str, seed: int) -> Arrays:
    """An array per input, all ordinary but for one or two inputs that are of `kind`."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(tuple(shape)) for name, shape in shapes.items()}
    names = [name for name in arrays if arrays[name].ndim]
    if kind != "ordinary" and names:
        chosen = {"x", "s", "q"} & set(names) if rng.random() < 0.6 else set()
        for name in chosen or {names[int(rng.integers(len(names)))]}:
            KINDS[kind](rng, arrays[name])
    if dtype == "float16":
        largest = float(np.finfo(np.float16).max)
        arrays = {n: np.where(np.isinf(a), a, np.clip(a, -largest, largest)) for n, a in arrays.items()}
    return {name: a.astype(dtype) for name, a in arrays.items()}


def some_kinds(rng: random.Random, count: int) -> list[str]:
    """`count` kinds besides "ordinary"."""
    return rng.sample([k for k in KINDS if k != "ordinary"], count)
