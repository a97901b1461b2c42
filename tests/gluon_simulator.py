"""A GPU for emitted Gluon modules, in NumPy: one thread for each group of warps, barriers that really block.

Numbers, and the order in which warps hand tiles to each other, are simulated; layouts and registers are not (the tests
of `test_compile.py` ask the real compiler).  A product reads its operands when it is waited for, as late as hardware
may, so that a slot released too early gives wrong numbers.  When every thread waits at a barrier, that is a deadlock.
"""

from __future__ import annotations

import builtins
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np


class Deadlock(AssertionError):
    """A group of warps waited for what never came."""


class Tile(np.ndarray):
    """A tile in registers."""

    def to(self, dtype: Any) -> Tile:
        """Converted."""
        return tile(self.astype(dtype))


def tile(value: Any) -> Tile:
    """`value` as a tile."""
    return np.asarray(value).view(Tile)


class Crew:
    """The threads of one launch.  All barriers share its lock, so that it sees when every thread waits."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.working = 1
        self.waits: list[Callable[[], bool]] = []
        self.resting = 0
        self.stuck = False

    def begin(self, threads: int) -> None:
        """From now on so many threads work."""
        with self.condition:
            self.working, self.stuck = threads, False

    def leave(self) -> None:
        """A thread has ended."""
        with self.condition:
            self.working -= 1
            self._look()

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Until `done`, of which a thread with the lock tells by a notice; Deadlock if no thread can do that."""
        with self.condition:
            self.waits.append(done)
            self._look()
            self.condition.wait_for(lambda: self.stuck or done())
            self.waits.remove(done)
            if not done():
                raise Deadlock(what)

    def rest(self) -> None:
        """Until no other thread can go on: what may happen before a thread's next line has happened."""
        with self.condition:
            self.resting += 1
            self._look()
            self.condition.wait_for(lambda: self._blocked() + self.resting >= self.working)
            self.resting -= 1

    def _blocked(self) -> int:
        return sum(not done() for done in self.waits)

    def _look(self) -> None:
        """After a thread has begun to wait or has ended."""
        if self.working and self._blocked() == self.working:
            self.stuck = True
        self.condition.notify_all()


class Barrier:
    """An mbarrier: phases that end when all have arrived and all bytes have come."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.expected = self.pending = self.bytes = 0
        self.phase = 0

    def change(self, arrivals: int = 0, size: int = 0) -> None:
        """Arrivals, or bytes that are expected (positive) or have come (negative)."""
        with self.crew.condition:
            self.pending -= arrivals
            self.bytes += size
            assert self.pending >= 0, "more arrivals than a barrier expects"
            if self.pending == 0 and self.bytes == 0:
                self.phase ^= 1
                self.pending = self.expected
                self.crew.condition.notify_all()

    def wait(self, parity: int) -> None:
        """Until the phase of that parity has ended."""
        self.crew.wait(lambda: self.phase != parity, f"no end of the phase of parity {parity}")


class Named:
    """A barrier of the hardware for two groups."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.arrived = self.generation = 0

    def arrive(self) -> int:
        """One group has come; the generation that it takes part in."""
        with self.crew.condition:
            mine = self.generation
            self.arrived += 1
            if self.arrived == 2:
                self.arrived = 0
                self.generation += 1
                self.crew.condition.notify_all()
            return mine

    def sync(self) -> None:
        """Comes, and waits for the other."""
        mine = self.arrive()
        self.crew.wait(lambda: self.generation > mine, "the other consumer does not come")


class Memory:
    """A buffer in shared memory: an array of slots, or one of them."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def index(self, slot: int) -> Any:
        """One slot."""
        got = self.array[int(slot)]
        return got[0] if isinstance(got, list) else Memory(got)

    def permute(self, order: tuple[int, ...]) -> Memory:
        """A view with dimensions in another order."""
        return Memory(self.array.transpose(order))

    def store(self, value: Tile) -> None:
        """Fills it."""
        assert value.dtype == self.array.dtype, "stored in another dtype"
        self.array[...] = value


class Descriptor:
    """A tensor descriptor: rows and columns of a whole tensor, moved in blocks."""

    def __init__(self, tensor: Any, shape: list[int], strides: list[int], block: list[int], layout: Any) -> None:
        self.array = tensor.numpy().reshape(shape)
        assert strides == [shape[1], 1]
        self.block = block
        self.layout = layout
        self.block_type = SimpleNamespace(nbytes=int(np.prod(block)) * self.array.itemsize)

    def at(self, place: Sequence[int]) -> Any:
        """The block there."""
        row, column = (int(n) for n in place)
        got = self.array[row : row + self.block[0], column : column + self.block[1]]
        assert list(got.shape) == self.block, "a block leaves its tensor"
        return got


class Pointer:
    """Pointers into a tensor."""

    def __init__(self, flat: Any, offset: Any = 0) -> None:
        self.flat = flat
        self.offset = offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.flat, self.offset + offset)


class Pending:
    """A product that is not waited for."""

    def __init__(self, a: Any, b: Memory, c: Tile, use_acc: bool) -> None:
        self.a, self.b, self.c, self.use_acc = a, b, c, use_acc

    def result(self) -> Tile:
        """The product, of what its operands hold now."""
        a = self.a.array if isinstance(self.a, Memory) else self.a
        product = a.astype(np.float32) @ self.b.array.astype(np.float32)
        assert self.c.shape == product.shape
        return tile(product + self.c if self.use_acc else product)


def _wait(running: int, deps: list[Any]) -> Any:
    done = [dep.result() if isinstance(dep, Pending) else dep for dep in deps]
    return done[0] if len(done) == 1 else tuple(done)


def _copy_in(rows: Descriptor, place: Sequence[int], barrier: Barrier, slot: Memory) -> None:
    slot.array[...] = rows.at(place)
    barrier.change(size=-rows.block_type.nbytes)


def _copy_out(rows: Descriptor, place: Sequence[int], source: Memory) -> None:
    rows.at(place)[...] = source.array


def _load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Tile:
    offset = np.where(mask, pointer.offset, 0)
    return tile(np.where(mask, pointer.flat[offset], other).astype(pointer.flat.dtype))


def _store(pointer: Pointer, value: Tile, mask: Any = True) -> None:
    chosen = np.broadcast_to(mask, np.shape(pointer.offset))
    pointer.flat[np.asarray(pointer.offset)[chosen]] = np.asarray(value)[chosen]


class Simulator:
    """Runs one module."""

    def __init__(self, text: str, multiprocessors: int = 5) -> None:
        self.program = self.programs = 0
        self.space: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": self._import}}
        self.named: dict[int, Named] = {}
        self.crew = Crew()
        self.launched = 0
        exec(compile(text, "emitted", "exec"), self.space)
        self.space["_sync"] = lambda barrier: self._named(barrier).sync()
        self.space["_arrive"] = lambda barrier: self._named(barrier).arrive()
        self.space["_meet"] = lambda: None
        self.space["_rest"] = self.crew.rest  # for tests that change the module
        self.space["_multiprocessors"] = lambda device: multiprocessors

    def __call__(self, entry: str, *tensors: Any) -> Any:
        """The module's entry on CPU tensors."""
        with np.errstate(all="ignore"):
            return self.space[entry](*tensors)

    def _named(self, barrier: int) -> Named:
        with self.crew.condition:
            return self.named.setdefault(int(barrier), Named(self.crew))

    def _import(self, name: str, *rest: Any) -> Any:
        if not name.startswith("triton"):
            return builtins.__import__(name, *rest)
        gl, hopper = self._language(), SimpleNamespace(TensorDescriptor=Descriptor, **_hopper())
        nan = SimpleNamespace(PropagateNan=SimpleNamespace(ALL="all", NONE="none"))
        return SimpleNamespace(gluon=SimpleNamespace(jit=self._jit), language=gl, **vars(nan), **vars(hopper))

    def _jit(self, function: Callable[..., Any]) -> Any:
        simulator = self

        class Jit:
            def __call__(self, *arguments: Any, **named: Any) -> Any:
                return function(*arguments, **named)

            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                def launch(*arguments: Any, **options: Any) -> None:
                    flat = [a if isinstance(a, Descriptor) else Pointer(a.numpy().reshape(-1)) for a in arguments]
                    simulator.programs, simulator.launched = grid[0], simulator.launched + 1
                    for program in range(grid[0]):
                        simulator.program = program
                        simulator.named.clear()
                        simulator.crew.begin(1)
                        function(*flat)

                return launch

        return Jit()

    def _specialize(
        self, partitions: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]
    ) -> None:
        assert len(partitions) == len(warps) + 1 == len(registers) + 1

        def run(function: Any, arguments: tuple[Any, ...]) -> None:
            try:
                with np.errstate(all="ignore"):
                    function(*arguments)
            finally:
                self.crew.leave()

        self.crew.begin(len(partitions))
        with ThreadPoolExecutor(len(partitions)) as warps_at_work:
            for group in [warps_at_work.submit(run, *partition) for partition in partitions]:
                group.result()
        self.crew.begin(1)

    def _language(self) -> SimpleNamespace:
        def layout(*_: Any) -> None:
            return None

        def allocate(dtype: Any, shape: list[int], _layout: Any) -> Memory:
            if dtype is np.int64:
                return Memory([[Barrier(self.crew)] for _ in range(shape[0])])
            return Memory(np.full(shape, np.nan, dtype))

        return SimpleNamespace(
            constexpr=lambda value: value,
            static_range=range,
            program_id=lambda axis: self.program,
            num_programs=lambda axis: self.programs,
            warp_specialize=self._specialize,
            allocate_shared_memory=allocate,
            NVMMADistributedLayout=layout,
            SliceLayout=layout,
            DotOperandLayout=layout,
            BlockedLayout=layout,
            NVMMASharedLayout=SimpleNamespace(get_default_for=layout),
            barrier=lambda: None,
            convert_layout=lambda value, _layout, assert_trivial=False: value,
            full=lambda shape, value, dtype, layout=None: tile(np.full(shape, value, dtype)),
            zeros=lambda shape, dtype, layout=None: tile(np.zeros(shape, dtype)),
            arange=lambda start, stop, layout=None: tile(np.arange(start, stop, dtype=np.int32)),
            reduce=lambda value, axis, combine: tile(functools.reduce(combine, np.moveaxis(value, axis, 0))),
            sum=lambda value, axis: tile(np.sum(value, axis=axis, dtype=value.dtype)),
            where=lambda condition, a, b: _typed(np.where(condition, a, b), a, b),
            maximum=_extremum(np.maximum, np.fmax),
            minimum=_extremum(np.minimum, np.fmin),
            exp2=lambda value: tile(np.exp2(np.float32(value))),
            exp=lambda value: tile(np.exp(np.float32(value))),
            log=lambda value: tile(np.log(np.float32(value))),
            log2=lambda value: tile(np.log2(np.float32(value))),
            abs=np.abs,
            cast=lambda value, dtype: tile(value).to(dtype),
            load=_load,
            store=_store,
            float16=np.float16,
            float32=np.float32,
            int32=np.int32,
            int64=np.int64,
        )


def _extremum(keeping: np.ufunc, dropping: np.ufunc) -> Callable[..., Any]:
    """Of two numbers: `keeping` NaN where that is asked for, as in Triton."""
    return lambda a, b, propagate_nan="none": (keeping if propagate_nan == "all" else dropping)(a, b)


def _typed(value: Any, *operands: Any) -> Tile:
    """A constant takes the dtype of the tile beside it, as in Triton."""
    dtypes = [o.dtype for o in operands if isinstance(o, np.ndarray)]
    return tile(value.astype(dtypes[0]) if dtypes else value)


def _hopper() -> dict[str, Any]:
    def wait(barrier: Barrier, phase: int, pred: Any = True) -> None:
        if pred:
            barrier.wait(int(phase))

    def init(barrier: Barrier, count: int) -> None:
        barrier.expected = barrier.pending = count

    return {
        "fence_async_shared": lambda: None,
        "warpgroup_mma": lambda a, b, c, use_acc=True, is_async=False: Pending(a, b, c, use_acc),
        "warpgroup_mma_wait": _wait,
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=init,
            wait=wait,
            arrive=lambda barrier, count: barrier.change(arrivals=count),
            expect=lambda barrier, size: barrier.change(arrivals=1, size=size),
        ),
        "tma": SimpleNamespace(
            async_copy_global_to_shared=_copy_in,
            async_copy_shared_to_global=_copy_out,
            store_wait=lambda count: None,
        ),
    }
