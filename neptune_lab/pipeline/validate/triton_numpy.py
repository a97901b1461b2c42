"""An emitted Triton module run in NumPy: no GPU, no Triton, the same numbers.

It supports the part of Triton that the emitter writes; `loads` and `stores` check every address.  Triton's own
interpreter, which `validate="full"` uses, runs the same text about ten times slower, and needs Triton imported for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from types import CodeType, MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from neptune_lab.errors import EmitError
from neptune_lab.htile.rounding import AS_FLOAT32, round_to
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.htile_to_triton.expression_text import TRITON_NAMES
from neptune_lab.operators.strided import with_strides
from neptune_lab.scalar_ops import NUMPY, rows
from neptune_lab.tensor_spec import Strides

Arrays = dict[str, np.ndarray]


class UnknownSpelling(EmitError):
    """The module uses a part of Triton that is not supported here; nothing is known about its numbers."""


class _Dtype:
    """A dtype of `tl` or `torch`: calling it is not possible, `numpy` is what NumPy computes it in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numpy = np.dtype("float32" if name in AS_FLOAT32 else {"int1": "bool"}.get(name, name))

    def convert(self, value: Any) -> np.ndarray:
        array = np.asarray(value).astype(self.numpy)
        return round_to(array, self.name) if self.name in AS_FLOAT32 else array


class _Memory:
    """A tensor's memory, as a kernel sees it, for each set of inputs."""

    def __init__(self, array: np.ndarray, dtype: _Dtype, strides: Strides | None = None) -> None:
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

    def to(self, dtype: _Dtype) -> Tile:
        return _tile(dtype.convert(self))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        """Operators; `out` of `a += b` is left out, since Python then binds what is returned."""
        result = np.asarray(ufunc(*_aligned(inputs)))
        return result.view(Tile) if result.ndim else _tile(result)

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


def _tile(value: Any) -> Tile:
    array = np.asarray(value)
    return (array if array.ndim else array.reshape(1)).view(Tile)


def _aligned(values: Iterable[Any], rank: int = 0) -> list[Any]:
    """Tiles as arrays of one rank, `rank` or more, with axes of length 1 behind that of the sets; numbers as they
    are."""
    values = list(values)
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim > rank:
            rank = value.ndim
    for n, value in enumerate(values):
        if isinstance(value, np.ndarray):
            values[n] = value.view(np.ndarray) if value.ndim == rank else _of_rank(value, rank)
    return values


def _of_rank(value: np.ndarray, rank: int) -> np.ndarray:
    array = value.view(np.ndarray)
    shape = array.shape
    return array if len(shape) == rank else array.reshape(shape[:1] + (1,) * (rank - len(shape)) + shape[1:])


class _Pointer:
    """A tensor and offsets in elements: a number, or a tile."""

    def __init__(self, memory: _Memory, offsets: Any = 0) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, other: Any) -> _Pointer:
        return _Pointer(self.memory, self.offsets + _wide(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Pointer:
        return _Pointer(self.memory, self.offsets - _wide(other))


def _wide(offsets: Any) -> Any:
    return offsets.astype(np.int64) if isinstance(offsets, np.ndarray) else int(offsets)


def _load(pointer: Any, mask: Any = None, other: Any = None, **_: Any) -> Tile:
    memory = pointer.memory
    if mask is None:
        offsets = np.asarray(_tile(pointer.offsets))
        _check(offsets, memory, "load")
        return _tile(_elements(memory, offsets))
    offsets, keep, blank = _aligned((_tile(pointer.offsets), _tile(mask), other))
    if keep.shape != offsets.shape:
        shape = np.broadcast_shapes(keep.shape, offsets.shape)
        keep, offsets = np.broadcast_to(keep, shape), np.broadcast_to(offsets, shape)
    _check(offsets[keep], memory, "load")
    values = _elements(memory, np.where(keep, offsets, 0)) if memory.flat.size else np.zeros(keep.shape)
    kind = memory.flat.dtype
    if blank is None:  # Without `other`, a masked lane may hold anything: NaN shows a result that depends on it.
        blank = np.nan if kind.kind == "f" else 0
    return _tile(np.where(keep, values, np.asarray(blank).astype(kind)))


def _elements(memory: _Memory, offsets: np.ndarray) -> np.ndarray:
    """The elements at offsets, in every set."""
    if len(offsets) == 1:
        return memory.flat[:, offsets[0]]
    return memory.flat[_every(memory, offsets.ndim), offsets]


def _every(memory: _Memory, rank: int) -> np.ndarray:
    """The numbers of the sets, along the first of `rank` axes."""
    return np.arange(len(memory.flat)).reshape([-1, *(1 for _ in range(rank - 1))])


def _store(pointer: Any, value: Any, mask: Any = None, **_: Any) -> None:
    memory = pointer.memory
    given = (_tile(pointer.offsets), _tile(memory.dtype.convert(value)), _tile(True if mask is None else mask))
    offsets, values, keep = _aligned(given)
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


def _atomic_add(pointer: Any, value: int, **_: Any) -> Tile:
    """Adds to one element, and returns what it was."""
    before = _tile(np.array(_load(pointer)))
    _store(pointer, before + value)
    return before


def _check(offsets: np.ndarray, memory: _Memory, what: str) -> None:
    low, high = np.minimum.reduce, np.maximum.reduce  # `min` and `max` of arrays go through several layers of Python
    size = memory.flat.shape[1]
    if offsets.size and (low(offsets, axis=None) < 0 or high(offsets, axis=None) >= size):
        raise IndexError(f"a {what} reaches element {int(offsets.max())} of {size}")


def _dot(a: Any, b: Any, acc: Any = None, input_precision: Any = None, out_dtype: Any = None, **_: Any) -> Tile:
    product = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    return _tile(product if acc is None else product + np.asarray(acc))


def _fold(function: Callable[..., Any]) -> Callable[..., Tile]:
    def call(value: Any, axis: int | None = None, **_: Any) -> Tile:
        array = np.asarray(value)
        kind = np.int32 if array.dtype == bool else array.dtype
        axes = tuple(range(1, array.ndim)) if axis is None else _axis(axis)
        return _tile(np.asarray(function(array.astype(kind, copy=False), axis=axes)).astype(kind, copy=False))

    return call


def _axis(axis: int) -> int:
    """The position of a tile's axis in its array."""
    return axis + 1 if axis >= 0 else axis


def _reduce(value: Any, axis: int, function: Any) -> Tile:
    parts = [_tile(part) for part in np.moveaxis(np.asarray(value), _axis(axis), 0)]
    total = parts[0]
    for part in parts[1:]:
        total = _tile(function(total, part))
    return total


def _where(condition: Any, a: Any, b: Any) -> Tile:
    kinds = [np.asarray(v).dtype for v in (a, b) if isinstance(v, np.ndarray | np.generic)]
    chosen = np.where(*_aligned((condition, a, b)))
    return _tile(
        chosen.astype(np.result_type(*kinds), copy=False)
        if kinds
        else chosen.astype(np.float32)
        if chosen.dtype == np.float64
        else chosen
    )


def _extremum(keeps: Callable[..., Any], drops: Callable[..., Any]) -> Callable[..., Tile]:
    """tl.maximum or tl.minimum: a NaN is dropped, and kept where `propagate_nan` says so."""

    def call(a: Any, b: Any, propagate_nan: Any = None) -> Tile:
        return _tile((drops if propagate_nan is None else keeps)(*_aligned((a, b))))

    return call


def _elementwise(function: Callable[..., Any]) -> Callable[..., Tile]:
    def call(*args: Any, **_: Any) -> Tile:
        # A number is left one: as an array of its own it would make float64 of the tile.
        result = function(*_aligned(args))
        kinds = [arg.dtype for arg in args if isinstance(arg, np.ndarray)]
        return _tile(result.astype(np.result_type(*kinds), copy=False) if kinds else result)

    return call


def _full(shape: Any, value: Any, dtype: _Dtype) -> Tile:
    shape = tuple(shape)
    filled = _of_rank(_tile(dtype.convert(value)), 1 + len(shape))
    return _tile(np.broadcast_to(filled, (len(filled), *shape)).copy())


def _permute(value: Any, *order: Any) -> Tile:
    order = order[0] if len(order) == 1 else order or tuple(reversed(range(np.ndim(value) - 1)))
    return _tile(np.transpose(np.asarray(value), (0, *(_axis(n) for n in order))))


def _broadcast_to(value: Any, shape: Any) -> Tile:
    array = _of_rank(_tile(value), 1 + len(shape))
    return _tile(np.broadcast_to(array, (len(array), *shape)))


def _reshape(value: Any, *shape: Any) -> Tile:
    array = np.asarray(_tile(value))
    return _tile(array.reshape((len(array), *(shape[0] if len(shape) == 1 else shape))))


class _Language:
    """`tl`."""

    def __init__(self) -> None:
        self.instance: tuple[int, ...] = (0, 0, 0)
        for name in ("float16", "bfloat16", "float32", "float64", "int1", "int8", "int16", "int32", "int64", "uint8"):
            setattr(self, name, _Dtype(name))
        for dtype, name in TRITON_NAMES.items():
            setattr(self, name.removeprefix("tl."), _Dtype(dtype))
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
        self.fma = _elementwise(lambda a, b, c: a * b + c)
        self.constexpr = lambda value: value
        self.zeros = lambda shape, dtype: _full(shape, 0, dtype)
        self.cast = lambda value, dtype, **_: _tile(dtype.convert(value))
        self.trans = self.permute = _permute
        self.broadcast_to, self.reshape = _broadcast_to, _reshape
        self.expand_dims = lambda value, axis: _tile(np.expand_dims(np.asarray(value), _axis(axis)))
        self.debug_barrier = lambda: None
        self.atomic_add = _atomic_add
        self.range = lambda *bounds, **_: range(*(int(b) for b in bounds))
        self.arange = lambda start, stop: _tile(np.arange(start, stop, dtype=np.int32)[None])

    def program_id(self, axis: int) -> Any:
        return self.instance[axis]

    def __getattr__(self, name: str) -> Any:
        for row in rows("htile"):
            if row.triton == f"tl.{name}":
                return _elementwise(NUMPY[row.name])
        raise UnknownSpelling(f"tl.{name} is not known to the NumPy form of Triton")


# Helpers that handle floats of 8 bits as bits in Triton's interpreter; here, tiles have their values in float32.
_WITHOUT_BITS: dict[str, Callable[..., Any]] = {
    f"_{what}_{name}": function
    for name, dtype in (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"))
    for what, function in (
        ("from", lambda x, wide: _tile(wide.convert(x))),
        ("to", partial(lambda kind, x: _tile(_Dtype(kind).convert(x)), dtype)),
        ("dot_of", lambda a, b: _dot(a, b)),
    )
}


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


def for_tensors(
    array_of: Callable[[Any], np.ndarray], keep: Callable[[Any, np.ndarray], None] = lambda tensor, array: None
) -> SimpleNamespace:
    """`triton` for a module whose kernels are launched on tensors, such as those of one that is in Gluon in part.

    Args:
        array_of: the values of a tensor, in an array of its shape that shares its memory, if there are such arrays.
        keep: stores an array's values after a launch, if it shares no memory with its tensor.
    """
    language = _Language()

    def jit(function: Callable[..., Any] | None = None, do_not_specialize: Sequence[str] = ()) -> Any:
        return jit if function is None else _OnTensors(function, language, array_of, keep)

    return SimpleNamespace(jit=jit, language=language)


class _OnTensors(_Function):
    """A function whose launches take tensors."""

    def __init__(
        self,
        function: Callable[..., Any],
        language: _Language,
        array_of: Callable[[Any], np.ndarray],
        keep: Callable[[Any, np.ndarray], None],
    ) -> None:
        super().__init__(function, language)
        self.array_of = array_of
        self.keep = keep

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        launched = super().__getitem__(grid)

        def launch(*args: Any, **options: Any) -> None:
            arrays = [None if isinstance(a, int) else self.array_of(a) for a in args]
            pairs = [*zip(args, arrays, strict=True)]
            launched(*(a if array is None else self.memory(a, array) for a, array in pairs), **options)
            for tensor, array in pairs:
                if array is not None:
                    self.keep(tensor, array)

        return launch

    def memory(self, tensor: Any, array: np.ndarray) -> _Memory:
        return _Memory(array[None], _Dtype(str(tensor.dtype).removeprefix("torch.")))


@lru_cache(maxsize=8)
def _code(text: str, name: str) -> CodeType:
    """A module without its imports, compiled once for all kinds of data."""
    lines = ("" if line.startswith(("import ", "from ")) else line for line in text.splitlines())
    return compile("\n".join(lines), name, "exec")


def run(
    source: EmittedModule,
    inputs: Mapping[str, np.ndarray],
    dtypes: Mapping[str, str],
    order: tuple[str, ...],
    strides: Mapping[str, Strides | None] = MappingProxyType({}),
) -> tuple[np.ndarray, ...]:
    """The outputs of the module's entry, a tuple of arrays.

    Args:
        inputs: an array for each input.
        dtypes: the dtype of each input as the program states it.
        order: the inputs in the order of the entry's arguments.
        strides: of the inputs that are not contiguous.

    Raises:
        UnknownSpelling: the module uses what is not known here.
        IndexError: a load or a store outside its tensor.
    """
    return tuple(output[0] for output in run_sets(source, [inputs], dtypes, order, strides))


def run_sets(
    source: EmittedModule,
    sets: Sequence[Mapping[str, np.ndarray]],
    dtypes: Mapping[str, str],
    order: tuple[str, ...],
    strides: Mapping[str, Strides | None] = MappingProxyType({}),
) -> tuple[np.ndarray, ...]:
    """As `run`, for several sets of inputs at once; the first axis of every output is the set.

    Raises:
        UnknownSpelling, IndexError: as `run`.
        SetsDiffer: the kernel does one thing for one set, and another for another.
    """
    language = _Language()
    kinds = {
        name: _Dtype(name) for name in (*AS_FLOAT32, "float16", "float32", "float64", "int8", "int32", "int64", "bool")
    }

    def empty(shape: tuple[int, ...], dtype: _Dtype, device: Any) -> _Memory:
        blank = np.nan if dtype.numpy.kind == "f" else 0
        return _Memory(np.full((len(sets), *shape), blank, dtype.numpy), dtype)

    def empty_strided(shape: tuple[int, ...], strides: Strides, dtype: _Dtype, device: Any) -> _Memory:
        return _Memory(empty(shape, dtype, device).array, dtype, strides)

    def jit(function: Callable[..., Any] | None = None, do_not_specialize: Sequence[str] = ()) -> Any:
        if function is None:
            return jit
        return _Function(_WITHOUT_BITS.get(function.__name__) or function, language)

    scope: dict[str, Any] = {
        "__name__": source.name,
        "torch": SimpleNamespace(empty=empty, empty_strided=empty_strided, **kinds),
        "functools": SimpleNamespace(cache=lambda function: function),
        "triton": SimpleNamespace(
            jit=jit,
            set_allocator=lambda f: None,
            knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=True)),
        ),
        "tl": language,
        "pow": np.power,
    }
    exec(_code(source.text, f"<{source.name}>"), scope)  # the emitter's own text
    scope["_counters"] = lambda device, count: _Memory(np.zeros((len(sets), count), np.int32), kinds["int32"])
    memories = []
    for name in order:
        dtype = kinds[dtypes[name]]
        together = np.stack([np.asarray(inputs[name]) for inputs in sets])
        memories.append(_Memory(np.ascontiguousarray(dtype.convert(together)), dtype, strides.get(name)))
    try:
        with np.errstate(all="ignore"):
            outputs = scope[source.entry](*memories)
    except (AttributeError, NameError, NotImplementedError, TypeError) as error:
        raise UnknownSpelling(f"{source.name} cannot be run in NumPy: {error}") from error
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(np.asarray(o.array) for o in several)
