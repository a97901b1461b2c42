"""An emitted Triton module run in NumPy: no GPU, no Triton, the same numbers.

It supports the part of Triton that the emitter writes; its tiles and memory are in `numpy_tiles`. Triton's own
interpreter, which `validate="full"` uses, runs the same text about ten times slower, and needs Triton imported for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import CodeType, MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from neptune_lab.errors import EmitError
from neptune_lab.htile.rounding import AS_FLOAT32
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.htile_to_triton.expression_text import TRITON_NAMES
from neptune_lab.pipeline.validate.numpy_tiles import (
    Dtype,
    Memory,
    Pointer,
    Tile,
    aligned,
    atomic_add,
    load,
    of_rank,
    store,
    tile,
)
from neptune_lab.scalar_ops import NUMPY, rows
from neptune_lab.strict.dtypes import INTEGERS
from neptune_lab.tensor_spec import Strides


class UnknownSpelling(EmitError):
    """The module uses a part of Triton that is not supported here; nothing is known about its numbers."""


def _dot(a: Any, b: Any, acc: Any = None, input_precision: Any = None, out_dtype: Any = None, **_: Any) -> Tile:
    product = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    return tile(product if acc is None else product + np.asarray(acc))


def _fold(function: Callable[..., Any]) -> Callable[..., Tile]:
    def call(value: Any, axis: int | None = None, **_: Any) -> Tile:
        array = np.asarray(value)
        kind = np.int32 if array.dtype == bool else array.dtype
        axes = tuple(range(1, array.ndim)) if axis is None else _axis(axis)
        return tile(np.asarray(function(array.astype(kind, copy=False), axis=axes)).astype(kind, copy=False))

    return call


def _axis(axis: int) -> int:
    """The position of a tile's axis in its array."""
    return axis + 1 if axis >= 0 else axis


def _reduce(value: Any, axis: int, function: Any) -> Tile:
    parts = [tile(part) for part in np.moveaxis(np.asarray(value), _axis(axis), 0)]
    total = parts[0]
    for part in parts[1:]:
        total = tile(function(total, part))
    return total


def _where(condition: Any, a: Any, b: Any) -> Tile:
    kinds = [np.asarray(v).dtype for v in (a, b) if isinstance(v, np.ndarray | np.generic)]
    chosen = np.where(*aligned((condition, a, b)))
    kind = np.result_type(*kinds) if kinds else _kind_of_numbers(chosen, a, b)
    return tile(chosen.astype(kind, copy=False))


def _kind_of_numbers(chosen: np.ndarray, *numbers: Any) -> np.dtype:
    """The dtype in which Triton computes with one of these numbers of Python: 32 bits, unless an integer needs more."""
    if chosen.dtype == np.float64:
        return np.dtype(np.float32)
    small = chosen.dtype == np.int64 and all(-(2**31) <= number < 2**31 for number in numbers)
    return np.dtype(np.int32) if small else chosen.dtype


def _extremum(keeps: Callable[..., Any], drops: Callable[..., Any]) -> Callable[..., Tile]:
    """tl.maximum or tl.minimum: a NaN is dropped, and kept where `propagate_nan` says so."""

    def call(a: Any, b: Any, propagate_nan: Any = None) -> Tile:
        return tile((drops if propagate_nan is None else keeps)(*aligned((a, b))))

    return call


def _elementwise(function: Callable[..., Any]) -> Callable[..., Tile]:
    def call(*args: Any, **_: Any) -> Tile:
        # A number is left one: as an array of its own it would make float64 of the tile.
        result = function(*aligned(args))
        kinds = [arg.dtype for arg in args if isinstance(arg, np.ndarray)]
        return tile(result.astype(np.result_type(*kinds), copy=False) if kinds else result)

    return call


def _full(shape: Any, value: Any, dtype: Dtype) -> Tile:
    shape = tuple(shape)
    filled = of_rank(tile(dtype.convert(value)), 1 + len(shape))
    return tile(np.broadcast_to(filled, (len(filled), *shape)).copy())


def _permute(value: Any, *order: Any) -> Tile:
    order = order[0] if len(order) == 1 else order or tuple(reversed(range(np.ndim(value) - 1)))
    return tile(np.transpose(np.asarray(value), (0, *(_axis(n) for n in order))))


def _broadcast_to(value: Any, shape: Any) -> Tile:
    array = of_rank(tile(value), 1 + len(shape))
    return tile(np.broadcast_to(array, (len(array), *shape)))


def _reshape(value: Any, *shape: Any) -> Tile:
    array = np.asarray(tile(value))
    return tile(array.reshape((len(array), *(shape[0] if len(shape) == 1 else shape))))


class _Language:
    """`tl`."""

    def __init__(self) -> None:
        self.instance: tuple[int, ...] = (0, 0, 0)
        self.grid: tuple[int, ...] = (1, 1, 1)
        self.pointer_type = lambda dtype: dtype
        for name in ("float16", "bfloat16", "float32", "float64", "int1", "int8", "int16", "int32", "int64", "uint8"):
            setattr(self, name, Dtype(name))
        for dtype, name in TRITON_NAMES.items():
            setattr(self, name.removeprefix("tl."), Dtype(dtype))
        self.load, self.store, self.dot, self.where, self.full, self.reduce = (
            load,
            store,
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
        self.cast = lambda value, dtype, **_: tile(dtype.convert(value))
        self.trans = self.permute = _permute
        self.broadcast_to, self.reshape = _broadcast_to, _reshape
        self.expand_dims = lambda value, axis: tile(np.expand_dims(np.asarray(value), _axis(axis)))
        self.debug_barrier = lambda: None
        self.atomic_add = atomic_add
        self.range = lambda *bounds, **_: range(*(int(b) for b in bounds))
        self.arange = lambda start, stop: tile(np.arange(start, stop, dtype=np.int32)[None])

    def program_id(self, axis: int) -> Any:
        return self.instance[axis]

    def num_programs(self, axis: int) -> Any:
        return self.grid[axis]

    def __getattr__(self, name: str) -> Any:
        for row in rows("htile"):
            if row.triton == f"tl.{name}":
                return _elementwise(NUMPY[row.name])
        raise UnknownSpelling(f"tl.{name} is not known to the NumPy form of Triton")


# Helpers that handle numbers as bits in Triton: floats of 8 bits, which tiles here have in float32, and numbers that
# are passed on in words with a mark.
_WITHOUT_BITS: dict[str, Callable[..., Any]] = {
    "_give": lambda word, value, mark: store(word, value),
    "_ask": lambda words: None,
    "_take": lambda asked, words, mark: tile(np.asarray(load(words), np.float32)),
}
_WITHOUT_BITS |= {
    f"_{what}_{name}": function
    for name, dtype in (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"))
    for what, function in (
        ("from", lambda x, wide: tile(wide.convert(x))),
        ("to", partial(lambda kind, x: tile(Dtype(kind).convert(x)), dtype)),
        ("dot_of", lambda a, b: _dot(a, b)),
    )
}


def _two_rows_each(device: Any, parts: int, rows: int, resident: int) -> int:
    """The groups of programs that share rows: each has two, whose words do not overlap."""
    return -(-rows // 2)


GROUPS_OF_ROWS = _two_rows_each


class _Function:
    """A `@triton.jit` function: called, or launched over a grid."""

    def __init__(self, function: Callable[..., Any], language: _Language) -> None:
        self.function, self.language = function, language

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int = 4, num_stages: int = 1, **_: Any) -> None:
            given = [Pointer(a) if isinstance(a, Memory) else a for a in args]
            self.language.grid = (*grid, 1, 1)[:3]
            for instance in itertools.product(*(range(n) for n in grid)):
                self.language.instance = (*instance, 0, 0)[:3]
                self.function(*given)

        return launch


# As in Triton's interpreter.
_KNOBS = SimpleNamespace(runtime=SimpleNamespace(interpret=True))


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
        if function is None:
            return jit
        return _OnTensors(_WITHOUT_BITS.get(function.__name__) or function, language, array_of, keep)

    return SimpleNamespace(jit=jit, language=language, knobs=_KNOBS)


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

    def memory(self, tensor: Any, array: np.ndarray) -> Memory:
        return Memory(array[None], Dtype(str(tensor.dtype).removeprefix("torch.")))


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


# torch's dtypes by name.
_DTYPES = {name: Dtype(name) for name in (*AS_FLOAT32, "float16", "float32", "float64", *INTEGERS, "bool")}


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
    scope = _scope_of(source, len(sets))
    memories = []
    for name in order:
        dtype = _DTYPES[dtypes[name]]
        together = np.stack([np.asarray(inputs[name]) for inputs in sets])
        memories.append(Memory(np.ascontiguousarray(dtype.convert(together)), dtype, strides.get(name)))
    try:
        with np.errstate(all="ignore"):
            outputs = scope[source.entry](*memories)
    except (AttributeError, NameError, NotImplementedError, TypeError) as error:
        raise UnknownSpelling(f"{source.name} cannot be run in NumPy: {error}") from error
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(np.asarray(o.array) for o in several)


def _scope_of(source: EmittedModule, count: int) -> dict[str, Any]:
    """The names of a module after its text has run, with NumPy in place of torch and Triton.

    Args:
        count: the number of sets of inputs.
    """
    language = _Language()

    def empty(shape: tuple[int, ...], dtype: Dtype, device: Any) -> Memory:
        blank = np.nan if dtype.numpy.kind == "f" else 0
        return Memory(np.full((count, *shape), blank, dtype.numpy), dtype)

    def empty_strided(shape: tuple[int, ...], strides: Strides, dtype: Dtype, device: Any) -> Memory:
        return Memory(empty(shape, dtype, device).array, dtype, strides)

    def jit(function: Callable[..., Any] | None = None, do_not_specialize: Sequence[str] = ()) -> Any:
        if function is None:
            return jit
        return _Function(_WITHOUT_BITS.get(function.__name__) or function, language)

    scope: dict[str, Any] = {
        "__name__": source.name,
        "torch": SimpleNamespace(empty=empty, empty_strided=empty_strided, **_DTYPES),
        "functools": SimpleNamespace(cache=lambda function: function),
        "triton": SimpleNamespace(jit=jit, set_allocator=lambda f: None, knobs=_KNOBS),
        "tl": language,
        "pow": np.power,
    }
    exec(_code(source.text, f"<{source.name}>"), scope)  # the emitter's own text
    scope["_counters"] = lambda device, number: Memory(np.zeros((count, number)), _DTYPES["float64"])
    scope["_groups"] = GROUPS_OF_ROWS
    scope["_kept"] = scope.get("_made")
    return scope
