"""Tiles, pointers and memory in NumPy, as a kernel in Triton uses them, for several sets of inputs at once.

`load` and `store` check every address.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from neptune_lab.htile.rounding import AS_FLOAT32, round_to
from neptune_lab.operators.strided import with_strides
from neptune_lab.tensor_spec import Strides


class Dtype:
    """A dtype of `tl` or `torch`: calling it is not possible, `numpy` is what NumPy computes it in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numpy = np.dtype("float32" if name in AS_FLOAT32 else {"int1": "bool"}.get(name, name))

    def __eq__(self, other: object) -> bool:
        """Also with a tile's dtype, which is NumPy's: helpers compare `x.dtype == tl.float64`."""
        return self.name == other.name if isinstance(other, Dtype) else self.name == str(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def convert(self, value: Any) -> np.ndarray:
        array = np.asarray(value).astype(self.numpy)
        return round_to(array, self.name) if self.name in AS_FLOAT32 else array


class Memory:
    """A tensor's memory, as a kernel sees it, for each set of inputs."""

    def __init__(self, array: np.ndarray, dtype: Dtype, strides: Strides | None = None) -> None:
        self.array, self.dtype, self.shape = array, dtype, array.shape[1:]
        self.device = "cpu"
        if strides is None:
            self.flat = array.reshape(len(array), prod(self.shape))
        else:
            self.array, self.flat = with_strides(array, strides)


class SetsDiffer(Exception):
    """A number that decides what a kernel does next is not the same in all sets of inputs."""


class Tile(np.ndarray):
    """A tile: NumPy's array with Triton's methods and indices.

    Its first axis is the set of inputs; it is 1 for a tile that is the same in all of them. A scalar that was loaded
    or computed from loads is a tile without further axes.
    """

    def to(self, dtype: Dtype) -> Tile:
        return tile(dtype.convert(self))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        """Operators; `out` of `a += b` is left out, since Python then binds what is returned."""
        result = np.asarray(ufunc(*aligned(inputs)))
        return result.view(Tile) if result.ndim else tile(result)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__((slice(None), *(key if isinstance(key, tuple) else (key,))))

    def _number(self) -> Any:
        values = np.asarray(self).reshape(-1)
        if self.ndim > 1 or (values != values[0]).any():
            raise SetsDiffer
        return values[0]

    def __index__(self) -> int:
        return int(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __bool__(self) -> bool:
        return bool(self._number())


def tile(value: Any) -> Tile:
    """A value as a tile, whose first dimension is that of the sets of inputs."""
    array = np.asarray(value)
    return (array if array.ndim else array.reshape(1)).view(Tile)


def aligned(values: Iterable[Any], rank: int = 0) -> list[Any]:
    """Tiles as arrays of one rank, `rank` or more, with axes of length 1 behind that of the sets; numbers as they
    are."""
    values = list(values)
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim > rank:
            rank = value.ndim
    for n, value in enumerate(values):
        if isinstance(value, np.ndarray):
            values[n] = value.view(np.ndarray) if value.ndim == rank else of_rank(value, rank)
    return values


def of_rank(value: np.ndarray, rank: int) -> np.ndarray:
    """A tile with further dimensions of one element behind that of the sets."""
    array = value.view(np.ndarray)
    shape = array.shape
    return array if len(shape) == rank else array.reshape(shape[:1] + (1,) * (rank - len(shape)) + shape[1:])


class Pointer:
    """A tensor and offsets in elements: a number, or a tile."""

    def __init__(self, memory: Memory, offsets: Any = 0) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offsets + _wide(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offsets - _wide(other))

    def to(self, _: Any) -> Pointer:
        """The same memory in words of 64 bits, of which a number here has one."""
        return self


def _wide(offsets: Any) -> Any:
    return offsets.astype(np.int64) if isinstance(offsets, np.ndarray) else int(offsets)


def load(pointer: Any, mask: Any = None, other: Any = None, **_: Any) -> Tile:
    """`tl.load`; elements that the mask hides are `other`, else NaN.

    Raises:
        IndexError: it reads outside of the tensor.
    """
    memory = pointer.memory
    if mask is None:
        offsets = np.asarray(tile(pointer.offsets))
        _check(offsets, memory, "load")
        return tile(_elements(memory, offsets))
    offsets, keep, blank = aligned((tile(pointer.offsets), tile(mask), other))
    if keep.shape != offsets.shape:
        shape = np.broadcast_shapes(keep.shape, offsets.shape)
        keep, offsets = np.broadcast_to(keep, shape), np.broadcast_to(offsets, shape)
    _check(offsets[keep], memory, "load")
    values = _elements(memory, np.where(keep, offsets, 0)) if memory.flat.size else np.zeros(keep.shape)
    kind = memory.flat.dtype
    if blank is None:  # Without `other`, a masked lane may hold anything: NaN shows a result that depends on it.
        blank = np.nan if kind.kind == "f" else 0
    return tile(np.where(keep, values, np.asarray(blank).astype(kind)))


def _elements(memory: Memory, offsets: np.ndarray) -> np.ndarray:
    """The elements at offsets, in every set."""
    if len(offsets) == 1:
        return memory.flat[:, offsets[0]]
    return memory.flat[_every(memory, offsets.ndim), offsets]


def _every(memory: Memory, rank: int) -> np.ndarray:
    """The numbers of the sets, along the first of `rank` axes."""
    return np.arange(len(memory.flat)).reshape([-1, *(1 for _ in range(rank - 1))])


def store(pointer: Any, value: Any, mask: Any = None, **_: Any) -> None:
    """`tl.store`.

    Raises:
        IndexError: it writes outside of the tensor.
    """
    memory = pointer.memory
    given = (tile(pointer.offsets), tile(memory.dtype.convert(value)), tile(True if mask is None else mask))
    offsets, values, keep = aligned(given)
    shape = np.broadcast_shapes(offsets.shape[1:], values.shape[1:], keep.shape[1:])
    if len(offsets) == len(keep) == 1:  # one place for all sets
        offsets, keep = np.broadcast_to(offsets[0], shape), np.broadcast_to(keep[0], shape)
        places = offsets[keep]
        _check(places, memory, "store")
        memory.flat[:, places] = np.broadcast_to(values, (len(values), *shape))[:, keep]
        return
    shape = (len(memory.flat), *shape)
    offsets, keep = np.broadcast_to(offsets, shape), np.broadcast_to(keep, shape)
    _check(offsets[keep], memory, "store")
    every = np.broadcast_to(_every(memory, len(shape)), shape)
    memory.flat[every[keep], offsets[keep]] = np.broadcast_to(values, shape)[keep]


def atomic_add(pointer: Any, value: int, **_: Any) -> Tile:
    """Adds to one element, and returns what it was."""
    before = tile(np.array(load(pointer)))
    store(pointer, before + value)
    return before


def _check(offsets: np.ndarray, memory: Memory, what: str) -> None:
    low, high = np.minimum.reduce, np.maximum.reduce  # `min` and `max` of arrays go through several layers of Python
    size = memory.flat.shape[1]
    if offsets.size and (low(offsets, axis=None) < 0 or high(offsets, axis=None) >= size):
        raise IndexError(f"a {what} reaches element {int(offsets.max())} of {size}")
