"""What an emitted module imports from Gluon, on arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from neptune_lab.gluon_simulator.assembly import inline_asm_elementwise
from neptune_lab.gluon_simulator.shared_copies import fence, wait_for_copies
from neptune_lab.gluon_simulator.steps import current
from neptune_lab.gluon_simulator.threads import Barrier, Crew
from neptune_lab.gluon_simulator.tiles import (
    BFLOAT16,
    E4M3,
    E5M2,
    Memory,
    Pending,
    Tile,
    atomic_add,
    copy_in,
    copy_out,
    load,
    step,
    store,
    tile,
    wait_for_products,
)
from neptune_lab.scalar_ops import NUMPY, rows


def gluon_language(
    crew: Crew, program: Callable[[], int], programs: Callable[[], int], specialize: Callable[..., None]
) -> SimpleNamespace:
    """The names of `triton.experimental.gluon.language` that emitted modules use.

    Args:
        crew: whose threads wait at barriers in shared memory.
        program, programs: the program that runs, and how many there are.
        specialize: runs the partitions of `warp_specialize`.
    """

    def layout(*_: Any) -> None:
        return None

    def allocate(dtype: Any, shape: list[int], _layout: Any) -> Memory:
        if dtype is np.int64:
            return Memory([[Barrier(crew)] for _ in range(shape[0])])
        return Memory(np.full(shape, np.nan, dtype))

    return SimpleNamespace(
        constexpr=lambda value: value,
        static_range=range,
        program_id=lambda axis: program(),
        num_programs=lambda axis: programs(),
        warp_specialize=specialize,
        allocate_shared_memory=allocate,
        NVMMADistributedLayout=layout,
        SliceLayout=layout,
        DotOperandLayout=layout,
        BlockedLayout=layout,
        NVMMASharedLayout=_SharedLayout,
        barrier=lambda: None,
        inline_asm_elementwise=_step(inline_asm_elementwise),
        convert_layout=_step(lambda value, _layout, assert_trivial=False: value),
        full=lambda shape, value, dtype, layout=None: tile(np.full(shape, value, dtype)),
        zeros=lambda shape, dtype, layout=None: tile(np.zeros(shape, dtype)),
        arange=lambda start, stop, layout=None: tile(np.arange(start, stop, dtype=np.int32)),
        reduce=_step(lambda value, axis, combine: tile(functools.reduce(combine, np.moveaxis(value, axis, 0)))),
        sum=_step(lambda value, axis: tile(np.sum(value, axis=axis, dtype=value.dtype))),
        where=_step(lambda condition, a, b: _typed(np.where(condition, a, b), a, b)),
        maximum=_extremum(np.maximum, np.fmax),
        minimum=_extremum(np.minimum, np.fmin),
        **_functions(),
        cast=_step(lambda value, dtype: tile(value).to(dtype)),
        reshape=_step(lambda value, shape: tile(np.reshape(value, shape))),
        permute=_step(lambda value, order: tile(np.transpose(value, order))),
        split=_step(lambda value: tile(value).split()),
        gather=_step(lambda value, index, axis: tile(np.take_along_axis(value, index, axis))),
        load=_step(load),
        store=_step(store),
        atomic_add=atomic_add,
        fma=_step(lambda a, b, c: tile(np.float32(np.float64(a) * np.float64(b) + np.float64(c)))),
        bfloat16=BFLOAT16.type,
        float8e4nv=E4M3.type,
        float8e5=E5M2.type,
        float16=np.float16,
        float32=np.float32,
        int8=np.int8,
        int32=np.int32,
        int64=np.int64,
    )


class _SharedLayout:
    """A layout of shared memory, which numbers do not depend on."""

    def __init__(self, **_: Any) -> None: ...

    @staticmethod
    def get_default_for(*_: Any) -> None: ...


def _functions() -> dict[str, Callable[..., Any]]:
    """The scalar functions of floats, under Triton's names."""

    def function(name: str) -> Callable[..., Any]:
        return _step(lambda *operands: tile(np.float32(NUMPY[name](*map(np.float32, operands)))))

    named = {row.triton.removeprefix("tl."): row.name for row in rows("htile") if row.triton.startswith("tl.")}
    functions = {triton: function(name) for triton, name in named.items() if triton not in ("where", *_EXTREMA)}
    return {**functions, "abs": _step(np.abs)}


_EXTREMA = ("maximum", "minimum")


def hopper() -> dict[str, Any]:
    """The names of Gluon's modules for Hopper, with those of Triton 3.7 for copies."""

    def wait(barrier: Barrier, phase: int, pred: Any = True) -> None:
        if pred:
            barrier.wait(int(phase))

    def init(barrier: Barrier, count: int) -> None:
        barrier.expected = barrier.pending = count

    return {
        "fence_async_shared": fence,
        "warpgroup_mma": lambda a, b, c, use_acc=True, is_async=False: Pending(a, b, c, use_acc),
        "warpgroup_mma_wait": wait_for_products,
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=init,
            wait=wait,
            arrive=lambda barrier, count: barrier.change(arrivals=count, stamp=step("arrive")),
            expect=lambda barrier, size: barrier.change(arrivals=1, size=size, stamp=step("arrive")),
        ),
        "tma": SimpleNamespace(
            async_copy_global_to_shared=copy_in,
            async_copy_shared_to_global=copy_out,
            store_wait=wait_for_copies,
        ),
    }


def _step(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one step, whatever operations are inside of it."""

    def call(*arguments: Any, **named: Any) -> Any:
        group = current()
        if group is None:
            return function(*arguments, **named)
        group.step("compute")
        group.inside = True
        try:
            return function(*arguments, **named)
        finally:
            group.inside = False

    return call


def _extremum(keeping: np.ufunc, dropping: np.ufunc) -> Callable[..., Any]:
    """Of two numbers: `keeping` NaN where that is asked for, as in Triton."""
    return lambda a, b, propagate_nan="none": (keeping if propagate_nan == "all" else dropping)(a, b)


def _typed(value: Any, *operands: Any) -> Tile:
    """A constant takes the dtype of the tile beside it, as in Triton."""
    dtypes = [o.dtype for o in operands if isinstance(o, np.ndarray)]
    return tile(value.astype(dtypes[0]) if dtypes else value)
