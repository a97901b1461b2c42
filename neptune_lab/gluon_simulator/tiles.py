"""Tiles in registers and in shared memory, tensors in global memory, and the copies and products between them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from neptune_lab.gluon_simulator.shared_copies import (
    check_fence,
    copy_later,
    has_stored,
    land,
    started,
    wait_for_copies,
)
from neptune_lab.gluon_simulator.steps import START, Kind, Stamp, current
from neptune_lab.gluon_simulator.threads import Barrier, Deadlock

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
# Dtypes that NumPy lacks, by torch's name, and torch's of the integers that have their bits.
_BY_BITS = {
    "torch.bfloat16": (BFLOAT16, "int16"),
    "torch.float8_e4m3fn": (E4M3, "uint8"),
    "torch.float8_e5m2": (E5M2, "uint8"),
}


_ADDING = threading.Lock()


class Tile(np.ndarray):
    """A tile in registers; each operation on it is a step of the group that does it."""

    type = SimpleNamespace(layout=None)

    def permute(self, order: Sequence[int]) -> Tile:
        """Its dimensions in another order."""
        return self.transpose(order)

    def split(self) -> tuple[Tile, Tile]:
        """The two tiles that its last dimension, of two elements, has."""
        first, second = (tile(np.ascontiguousarray(self[..., n])) for n in range(2))
        return first, second

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """The operation on plain arrays, and its step."""
        group = current()
        if group is not None and method == "__call__":
            group.step("compute")
        plain = (x.view(np.ndarray) if isinstance(x, Tile) else x for x in map(arrived, inputs))
        made = getattr(ufunc, method)(*plain, **options)
        return made.view(Tile) if isinstance(made, np.ndarray) else made

    def to(self, dtype: Any, bitcast: bool = False) -> Tile:
        """Converted; to floats of 8 bits as a GPU does it, where the largest stands for all above it."""
        if bitcast:
            return tile(np.asarray(self).view(dtype))
        if dtype in (E4M3, E5M2):
            largest = np.float32(ml_dtypes.finfo(dtype).max)
            return tile(np.clip(self, -largest, largest).astype(dtype))
        return tile(self.astype(dtype))


def tile(value: Any) -> Tile:
    """`value` as a tile."""
    return np.asarray(value).view(Tile)


class Memory:
    """A buffer in shared memory: an array of slots, or one of them."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def index(self, slot: int) -> Any:
        """One slot."""
        got = self.array[int(slot)]
        return got[0] if isinstance(got, list) else Memory(got)

    def reshape(self, shape: list[int]) -> Memory:
        """The same elements in another shape."""
        return Memory(self.array.reshape(shape))

    def slice(self, start: int, length: int, dim: int) -> Memory:
        """A part of one dimension."""
        return Memory(self.array[(slice(None),) * dim + (slice(start, start + length),)])

    def permute(self, order: tuple[int, ...]) -> Memory:
        """A view with dimensions in another order."""
        return Memory(self.array.transpose(order))

    @property
    def dtype(self) -> Any:
        """Of its elements."""
        return self.array.dtype

    def load(self, _layout: Any) -> Loading:
        """Its elements."""
        step("compute")
        return Loading(self.array)

    def store(self, value: Tile | Loading) -> None:
        """Fills it."""
        assert value.dtype == self.array.dtype, "stored in another dtype"
        step("compute")
        self.array[...] = value
        has_stored(self.array)


class Loading(np.lib.mixins.NDArrayOperatorsMixin):
    """A load from shared memory, whose values arrive as late as hardware may: when the first of them is used."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self._read = started(array)
        self._arrived: Tile | None = None

    @property
    def value(self) -> Tile:
        """The elements."""
        if self._arrived is None:
            self._arrived = tile(self._read())
        return self._arrived

    @property
    def dtype(self) -> Any:
        """Of the elements."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tile."""
        return self.array.shape

    def __getitem__(self, place: Any) -> Loading:
        return _Seen(self, place)

    def __array__(self, *arguments: Any, **named: Any) -> np.ndarray:
        return np.asarray(self.value, *arguments, **named)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(arrived, inputs), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)


class _Seen(Loading):
    """A load in another shape, which uses no value."""

    def __init__(self, loading: Loading, place: Any) -> None:
        super().__init__(loading.array[place])
        self._loading, self._place = loading, place

    @property
    def value(self) -> Tile:
        """The elements."""
        return tile(self._loading.value[self._place])


def arrived(value: Any) -> Any:
    """An operand, with its values if it is a load."""
    return value.value if isinstance(value, Loading) else value


def array_of(tensor: Any) -> Any:
    """A CPU tensor's values as an array that shares its memory."""
    if str(tensor.dtype) not in _BY_BITS:
        return tensor.numpy()
    dtype, integer = _BY_BITS[str(tensor.dtype)]
    return tensor.view(getattr(sys.modules["torch"], integer)).numpy().view(dtype)


def memory_of(tensor: Any) -> Any:
    """The memory of a CPU tensor, from its first element to its last, as an array of one dimension."""
    array = array_of(tensor)
    steps = [stride // array.itemsize for stride in array.strides]
    elements = 1 + sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True))
    return _strided(array, (elements,), (array.itemsize,))


def _strided(array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A view with another shape; NumPy makes none of every dtype that it lacks, but of their bits."""
    if array.dtype == E5M2:
        return np.lib.stride_tricks.as_strided(array.view(np.uint8), shape, strides).view(E5M2)
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def step(kind: Kind) -> Stamp:
    """Takes a step in the group that this thread is, if that is recorded."""
    group = current()
    return START if group is None else group.step(kind)


class Descriptor:
    """A tensor descriptor: rows and columns of a whole tensor, or of several matrices in it, moved in blocks."""

    def __init__(self, tensor: Any, shape: list[int], strides: list[int], block: list[int], layout: Any) -> None:
        memory = memory_of(tensor)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        assert last < len(memory), "it leaves the tensor's memory"
        self.array = _strided(memory, shape, [stride * memory.itemsize for stride in strides])
        self.block = block
        self.layout = layout
        self.block_type = SimpleNamespace(shape=block, nbytes=int(np.prod(block)) * self.array.itemsize)

    def at(self, place: Sequence[int]) -> Any:
        """The block there."""
        got = self.array[tuple(slice(int(n), int(n) + size) for n, size in zip(place, self.block, strict=True))]
        if len(self.block) == 3:
            # Rows and columns past the end of a matrix are read as 0.
            got = np.pad(got, [(0, 0), *((0, size - n) for n, size in zip(got.shape[1:], self.block[1:], strict=True))])
        elif len(self.block) == 1:
            got = np.pad(got, (0, self.block[0] - len(got)))
        assert list(got.shape) == self.block, "a block leaves its tensor"
        return got

    def put(self, place: Sequence[int], block: Any) -> None:
        """Stores a block there; of several matrices, what is past the end of one is dropped."""
        there = self.array[tuple(slice(int(n), int(n) + size) for n, size in zip(place, self.block, strict=True))]
        assert len(self.block) == 3 or list(there.shape) == self.block, "a block leaves its tensor"
        there[...] = block[tuple(slice(0, size) for size in there.shape)]

    def add(self, place: Sequence[int], block: Any) -> None:
        """Adds a block there; of several matrices, what is past the end of one is dropped."""
        there = self.array[tuple(slice(int(n), int(n) + size) for n, size in zip(place, self.block, strict=True))]
        assert len(self.block) == 3 or list(there.shape) == self.block, "a block leaves its tensor"
        there += block[tuple(slice(0, size) for size in there.shape)]


class Pointer:
    """Pointers into a tensor."""

    def __init__(self, flat: Any, offset: Any = 0) -> None:
        self.flat = flat
        self.offset = offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.flat, self.offset + offset)

    def __sub__(self, offset: Any) -> Pointer:
        return Pointer(self.flat, self.offset - offset)

    def __getitem__(self, place: Any) -> Pointer:
        return Pointer(self.flat, self.offset[place])


# How many products each group of warps has issued.
_issued = threading.local()


class Pending:
    """A product that is not waited for; `c` may be another one, whose sum it continues."""

    def __init__(self, a: Any, b: Memory, c: Tile | Pending, use_acc: bool) -> None:
        self.a, self.b, self.c, self.use_acc = arrived(a), b, c, use_acc
        self.operands = [_operand(self.a), _operand(b)]
        self.number = _issued.count = getattr(_issued, "count", 0) + 1
        group = current()
        self.end = START if group is None else group.fly("product")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """What any operation on its value calls."""
        raise AssertionError("a product is read that may still run")

    def result(self) -> Tile:
        """The product of its operands."""
        a, b = (read() for read in self.operands)
        product = a.astype(np.float32) @ b.astype(np.float32)
        c = self.c.result() if isinstance(self.c, Pending) else self.c
        assert c.shape == product.shape
        return tile(product + c if self.use_acc else product)


def _operand(value: Tile | Memory) -> Callable[[], Any]:
    """How an operand is read, from now on."""
    if not isinstance(value, Memory):
        return lambda: value
    check_fence(value.array)
    return started(value.array)


def wait_for_products(running: int, deps: list[Any]) -> Any:
    """The values of `deps`, once all products have ended but the `running` that were issued last; one of these is
    given back as it is, to be added to."""
    group = current()
    count = getattr(_issued, "count", 0) - running
    ended = [dep for dep in deps if isinstance(dep, Pending) and dep.number <= count]
    if group is not None:
        group.until(max((dep.end for dep in ended), default=START))
    done = [dep.result() if any(dep is one for one in ended) else dep for dep in deps]
    return done[0] if len(done) == 1 else tuple(done)


def copy_in(rows: Descriptor, place: Sequence[int], barrier: Barrier, slot: Memory) -> None:
    """Copies a block to shared memory, and tells a barrier of it."""
    land()
    assert list(slot.array.shape) == rows.block, "a block has another shape than the slot that it is copied to"
    slot.array[...] = rows.at(place)
    group = current()
    stamp = START if group is None else group.fly("copy")
    barrier.change(size=-rows.block_type.nbytes, stamp=stamp)


def copy_out(rows: Descriptor, place: Sequence[int], source: Memory) -> None:
    """Copies a tile from shared memory to its block."""
    copy_later(lambda block: rows.put(place, block), source.array)


def add_out(rows: Descriptor, place: Sequence[int], source: Memory) -> None:
    """Adds a tile in shared memory to its block, each element in one operation."""

    def add(block: Any) -> None:
        with _ADDING:
            rows.add(place, block)

    copy_later(add, source.array)


def atomic_add(pointer: Pointer, value: int) -> int:
    """Adds to an element, and gives what it was."""
    with _ADDING:
        before = int(pointer.flat[pointer.offset])
        pointer.flat[pointer.offset] += value
    return before


def tell(pointer: Pointer, number: int) -> None:
    """Stores a number for other programs, once what the group's copies have added is there."""
    wait_for_copies(0)
    with _ADDING:
        pointer.flat[pointer.offset] = number


def await_number(pointer: Pointer, number: int) -> None:
    """Waits for other programs; they run one after the other here, so those that are waited for have ended, and the
    one that told last is the one to wait for."""
    found = int(pointer.flat[pointer.offset])
    if found != number:
        raise Deadlock(
            f"a program waits for the number {number}, and the programs before it have told {found}",
            help="compare what each program waits for with what the others tell",
        )


def load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Tile:
    """The elements that pointers name; `other` where the mask is false."""
    offset = np.where(mask, pointer.offset, 0)
    return tile(np.where(mask, pointer.flat[offset], other).astype(pointer.flat.dtype))


def store(pointer: Pointer, value: Tile, mask: Any = True) -> None:
    """Writes elements where the mask is true."""
    chosen = np.broadcast_to(mask, np.shape(pointer.offset))
    pointer.flat[np.asarray(pointer.offset)[chosen]] = np.asarray(value)[chosen]
