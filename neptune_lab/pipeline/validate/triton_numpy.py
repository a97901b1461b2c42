"""An emitted Triton module run in NumPy: no GPU, no Triton, the same numbers.

Only what the emitter writes is known here; `loads` and `stores` check every address.  Triton's own interpreter, which
`validate="full"` uses, runs the same text some ten times slower, and needs Triton imported for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from neptune_lab.errors import EmitError
from neptune_lab.htile.interpret import round_to_bfloat16
from neptune_lab.htile_to_triton import TritonSource

Arrays = dict[str, np.ndarray]


class UnknownSpelling(EmitError):
    """The module uses a part of Triton that is not known here; it says nothing about the numbers."""


class _Dtype:
    """A dtype of `tl` or `torch`: calling it is not possible, `numpy` is what NumPy computes it in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numpy = np.dtype({"bfloat16": "float32", "int1": "bool"}.get(name, name))

    def convert(self, value: Any) -> np.ndarray:
        array = np.asarray(value).astype(self.numpy)
        return round_to_bfloat16(array) if self.name == "bfloat16" else array


class _Memory:
    """A tensor's elements in a row, as a kernel sees them."""

    def __init__(self, array: np.ndarray, dtype: _Dtype) -> None:
        self.array, self.dtype, self.shape = array, dtype, array.shape
        self.flat = array.reshape(-1)
        self.device = "cpu"


class Tile(np.ndarray):
    """A tile: NumPy's array with Triton's methods, its division and its comparison of bool."""

    def to(self, dtype: _Dtype) -> Tile:
        return _tile(dtype.convert(self))

    @property
    def dtype_(self) -> Any:
        return self.dtype


def _tile(value: Any) -> Tile:
    return np.asarray(value).view(Tile)


class _Pointer:
    """A tensor and offsets in elements."""

    def __init__(self, memory: _Memory, offsets: Any = 0) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, other: Any) -> _Pointer:
        return _Pointer(self.memory, self.offsets + np.asarray(other, np.int64))

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Pointer:
        return _Pointer(self.memory, self.offsets - np.asarray(other, np.int64))


def _load(pointer: Any, mask: Any = None, other: Any = None, **_: Any) -> Tile:
    memory, offsets = pointer.memory, np.asarray(pointer.offsets)
    if mask is None:
        _check(offsets, memory, "load")
        return _tile(memory.flat[offsets])
    keep = np.asarray(mask)
    if keep.shape != offsets.shape:
        keep = np.broadcast_to(keep, np.broadcast_shapes(keep.shape, offsets.shape))
        offsets = np.broadcast_to(offsets, keep.shape)
    _check(offsets[keep], memory, "load")
    values = memory.flat[np.where(keep, offsets, 0)] if memory.flat.size else np.zeros(keep.shape)
    kind = memory.flat.dtype
    # Without `other`, what a masked lane holds is anything: NaN shows who uses it.
    blank = other if other is not None else np.nan if kind.kind == "f" else 0
    return _tile(np.where(keep, values, np.asarray(blank).astype(kind)))


def _store(pointer: Any, value: Any, mask: Any = None, **_: Any) -> None:
    memory, offsets = pointer.memory, np.asarray(pointer.offsets)
    if mask is None and np.shape(value) == offsets.shape:
        _check(offsets, memory, "store")
        memory.flat[offsets] = memory.dtype.convert(value)
        return
    keep = np.asarray(True if mask is None else mask)
    shape = np.broadcast_shapes(keep.shape, offsets.shape, np.shape(value) if offsets.ndim else ())
    keep = np.broadcast_to(keep, shape)
    offsets = np.broadcast_to(offsets, shape)
    _check(offsets[keep], memory, "store")
    memory.flat[offsets[keep]] = np.broadcast_to(memory.dtype.convert(value), shape)[keep]


def _check(offsets: np.ndarray, memory: _Memory, what: str) -> None:
    low, high = np.minimum.reduce, np.maximum.reduce  # `min` and `max` of arrays go through several layers of Python
    if offsets.size and (low(offsets, axis=None) < 0 or high(offsets, axis=None) >= memory.flat.size):
        raise IndexError(f"a {what} reaches element {int(offsets.max())} of {memory.flat.size}")


def _dot(a: Any, b: Any, acc: Any = None, input_precision: Any = None, out_dtype: Any = None, **_: Any) -> Tile:
    product = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    return _tile(product if acc is None else product + np.asarray(acc))


def _fold(function: Callable[..., Any]) -> Callable[..., Tile]:
    def call(value: Any, axis: int | None = None, **_: Any) -> Tile:
        array = np.asarray(value)
        kind = np.int32 if array.dtype == bool else array.dtype
        return _tile(np.asarray(function(array.astype(kind, copy=False), axis=axis)).astype(kind, copy=False))

    return call


def _reduce(value: Any, axis: int, function: Any) -> Tile:
    array = np.moveaxis(np.asarray(value), axis, 0)
    total = array[0]
    for part in array[1:]:
        total = np.asarray(function(total, part))
    return _tile(total)


def _where(condition: Any, a: Any, b: Any) -> Tile:
    kinds = [np.asarray(v).dtype for v in (a, b) if isinstance(v, np.ndarray | np.generic)]
    found = np.where(np.asarray(condition), np.asarray(a), np.asarray(b))
    return _tile(
        found.astype(np.result_type(*kinds), copy=False)
        if kinds
        else found.astype(np.float32)
        if found.dtype == np.float64
        else found
    )


def _extremum(keeps: Callable[..., Any], drops: Callable[..., Any]) -> Callable[..., Tile]:
    """tl.maximum or tl.minimum: a NaN is dropped, and kept where `propagate_nan` says so."""

    def call(a: Any, b: Any, propagate_nan: Any = None) -> Tile:
        # A number is left one: as an array of its own it would make float64 of the tile.
        a, b = (np.asarray(x) if isinstance(x, np.ndarray) else x for x in (a, b))
        return _tile((drops if propagate_nan is None else keeps)(a, b))

    return call


def _elementwise(function: Callable[..., Any]) -> Callable[..., Tile]:
    def call(*args: Any, **_: Any) -> Tile:
        return _tile(function(*(np.asarray(a) if isinstance(a, np.ndarray) else a for a in args)))

    return call


def _full(shape: Any, value: Any, dtype: _Dtype) -> Tile:
    return _tile(np.full(tuple(shape), dtype.convert(value)))


class _Language:
    """`tl`."""

    def __init__(self) -> None:
        self.instance: tuple[int, ...] = (0, 0, 0)
        for name in ("float16", "bfloat16", "float32", "float64", "int1", "int8", "int16", "int32", "int64", "uint8"):
            setattr(self, name, _Dtype(name))
        self.load, self.store, self.dot, self.where, self.full, self.reduce = (
            _load,
            _store,
            _dot,
            _where,
            _full,
            _reduce,
        )
        self.sum, self.max, self.min = _fold(np.sum), _fold(np.fmax.reduce), _fold(np.fmin.reduce)
        self.maximum, self.minimum = _extremum(np.maximum, np.fmax), _extremum(np.minimum, np.fmin)
        self.PropagateNan = SimpleNamespace(ALL="all", NONE=None)
        for name, function in _NUMPY.items():
            setattr(self, name, _elementwise(function))
        self.constexpr = lambda value: value
        self.zeros = lambda shape, dtype: _full(shape, 0, dtype)
        self.cast = lambda value, dtype, **_: _tile(dtype.convert(value))
        self.trans = lambda value, *order: _tile(np.transpose(np.asarray(value), order or None))
        self.permute = lambda value, *order: _tile(
            np.transpose(np.asarray(value), order[0] if len(order) == 1 else order)
        )
        self.broadcast_to = lambda value, shape: _tile(np.broadcast_to(np.asarray(value), tuple(shape)))
        self.expand_dims = lambda value, axis: _tile(np.expand_dims(np.asarray(value), axis))
        self.reshape = lambda value, *shape: _tile(
            np.reshape(np.asarray(value), shape[0] if len(shape) == 1 else shape)
        )
        self.debug_barrier = lambda: None
        self.range = lambda *bounds, **_: range(*(int(b) for b in bounds))
        self.arange = lambda start, stop: _tile(np.arange(start, stop, dtype=np.int32))

    def program_id(self, axis: int) -> Any:
        return self.instance[axis]

    def __getattr__(self, name: str) -> Any:
        raise UnknownSpelling(f"tl.{name} is not known to the NumPy form of Triton")


_NUMPY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "sqrt_rn": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype), "sin": np.sin, "cos": np.cos, "abs": np.abs, "floor": np.floor,
    "ceil": np.ceil,
    "sigmoid": lambda x: (1 / (1 + np.exp(-x))).astype(x.dtype), "div_rn": np.divide,
    "fma": lambda a, b, c: a * b + c,
}  # fmt: skip
_NUMPY["erf"] = lambda x: np.vectorize(__import__("math").erf, otypes=[float])(x).astype(x.dtype)


class _Function:
    """A `@triton.jit` function: called, or launched over a grid."""

    def __init__(self, function: Callable[..., Any], language: _Language) -> None:
        self.function, self.language = function, language

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int = 4, num_stages: int = 1, **_: Any) -> None:
            given = [_Pointer(a) if isinstance(a, _Memory) else a for a in args]
            for instance in itertools.product(*(range(n) for n in grid)):
                self.language.instance = (*instance, 0, 0)[:3]
                self.function(*given)

        return launch


@lru_cache(maxsize=8)
def _code(text: str, name: str) -> CodeType:
    """A module without its imports, compiled once for all kinds of data."""
    lines = ("" if line.startswith(("import ", "from ")) else line for line in text.splitlines())
    return compile("\n".join(lines), name, "exec")


def run(
    source: TritonSource, inputs: Mapping[str, np.ndarray], dtypes: Mapping[str, str], order: tuple[str, ...]
) -> Any:
    """The outputs of the module's entry, a tuple of arrays.

    Args:
        inputs: an array for each input.
        dtypes: the dtype of each input as the program states it.
        order: the inputs in the order of the entry's arguments.

    Raises:
        UnknownSpelling: the module uses what is not known here.
        IndexError: a load or a store outside its tensor.
    """
    language = _Language()
    kinds = {
        name: _Dtype(name) for name in ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "bool")
    }

    def empty(shape: tuple[int, ...], dtype: _Dtype, device: Any) -> _Memory:
        blank = np.nan if dtype.numpy.kind == "f" else 0
        return _Memory(np.full(shape, blank, dtype.numpy), dtype)

    scope: dict[str, Any] = {
        "__name__": source.name,
        "torch": SimpleNamespace(empty=empty, **kinds),
        "triton": SimpleNamespace(
            jit=lambda f: _Function(f, language),
            set_allocator=lambda f: None,
            knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=True)),
        ),
        "tl": language,
        "pow": np.power,
    }
    exec(_code(source.text, f"<{source.name}>"), scope)  # the emitter's own text
    memories = []
    for name in order:
        dtype = kinds[dtypes[name]]
        memories.append(_Memory(np.ascontiguousarray(dtype.convert(inputs[name])), dtype))
    try:
        with np.errstate(all="ignore"):
            outputs = scope[source.entry](*memories)
    except (AttributeError, NameError, NotImplementedError, TypeError) as error:
        raise UnknownSpelling(f"{source.name} cannot be run in NumPy: {error}") from error
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(np.asarray(o.array) for o in several)
