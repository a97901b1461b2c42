"""Launches by a function in C (launch.c), which encodes tensor descriptors on the way.

Triton's launch function gets every number as an argument, and a descriptor is encoded by a call of its own before.  The
function of this module has the constants of a launch already, so the launcher calls

    attention_kernel[(n // 64,)](TensorDescriptor(q, [16, n, 128], [n*128, 128, 1], [1, 64, 128], _SHARED), n)

as

    _launch(n // 64, 1, 1, _s, _p_q, n, n * 128)

A C compiler and Python's headers are there where Triton launches kernels, since it needs them for its own functions.
The function is compiled once per machine and version, and is kept in Triton's cache.
"""

from __future__ import annotations

import ast
import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from subprocess import SubprocessError
from types import ModuleType
from typing import Any

from neptune_lab.runtime.kept_launches import encoding, fills_with_zeros
from neptune_lab.strict.forks import ReentrantLock

_SOURCE = Path(__file__).with_name("launch.c")
# In the order in which `bind` of launch.c takes their addresses.
FUNCTIONS = (
    "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRetain",
    "cuGetErrorString",
    "cuDriverGetVersion",
)
# The kinds of arguments, as in launch.c.
_INT32, _INT64, _MAP = range(3)
_THREADS = 32  # of a warp
_compiling = ReentrantLock()


def built() -> ModuleType:
    """The module of launch.c, compiled unless Triton's cache has it; its functions of the driver are not bound."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_module_from_src

    headers = Path(driver.__file__).with_name("include")
    return compile_module_from_src(_SOURCE.read_text(), "neptune_launch", include_dirs=[str(headers)])


def native() -> ModuleType | None:
    """The module of launch.c, ready to launch; None, with a line in the log, if it cannot be had.  Compiles it once,
    whichever threads ask for it."""
    with _compiling:
        return _native()


@cache
def _native() -> ModuleType | None:
    try:
        module = built()
        library = ctypes.CDLL("libcuda.so.1")
        module.bind(*(ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in FUNCTIONS))
    except (
        AttributeError,
        ImportError,
        OSError,
        RuntimeError,
        SubprocessError,
    ) as error:  # no compiler, another driver
        logging.getLogger(__name__).info("launches go through Triton's functions: %s", error)
        return None
    return module


def begin() -> None:
    """Starts to compile launch.c beside what the caller does; `native` then waits for it."""
    threading.Thread(target=native, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a launch.

    Args:
        text: the variable of a size, or of an address.
        maker: of a descriptor of the tensor at the address: what makes it of `parts`; None: it is no descriptor.
        parts: its shape and strides, and what does not depend on sizes.
    """

    text: str
    maker: Any = None
    parts: Sequence[ast.expr] = ()


class _Other(Exception):
    """A launch has an argument that launch.c does not pass."""


@dataclass(slots=True)
class _Values:
    """The numbers of a launch: texts that a call gives, and constants, which follow them."""

    given: dict[str, int] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)

    def place(self, value: ast.expr) -> tuple[bool, int]:
        """Whether a number is a constant, and its place among those of its sort."""
        match value:
            case ast.Constant(int(number)) if not isinstance(number, bool):
                return True, self.constants.setdefault(number, len(self.constants))
        return False, self.given.setdefault(ast.unparse(value), len(self.given))

    def number(self, place: tuple[bool, int]) -> int:
        """The number of a place among all, once all are known."""
        constant, index = place
        return index + constant * len(self.given)


def native_launch(
    kernel: Any, run: Any, metas: Sequence[Any] | None, device: int, arguments: Sequence[Argument]
) -> tuple[Any, list[str]] | None:
    """A function that launches a kernel over a grid and on a stream, and the texts of the numbers that it takes after
    these; None if launch.c cannot launch it.

    Args:
        kernel: Triton's compiled kernel; `run`: its launcher.
        metas: what its descriptors are encoded from, in order.
        device: the index of the GPU.
    """
    try:
        signature = [*kernel.src.signature.values()]
        warps, blocks, shared = kernel.packed_metadata
    except (AttributeError, TypeError, ValueError):
        return None
    if blocks != 1 or run.launch_cooperative_grid or len(signature) != len(arguments):
        return None
    values = _Values()
    try:
        slots = _slots(signature, metas or (), arguments, values)
    except _Other:
        return None
    module = native()
    if module is None:
        return None
    numbered = tuple((kind, what(values.number)) for kind, what in slots)
    fixed = warps * _THREADS, shared, bool(run.launch_pdl), device, len(values.given), tuple(values.constants)
    try:
        return module.make(kernel.function, *fixed, numbered), [*values.given]
    except (OverflowError, ValueError):  # more arguments than it has room for
        return None


def _slots(
    signature: Sequence[Any], metas: Sequence[Any], arguments: Sequence[Argument], values: _Values
) -> list[tuple[int, Callable[[Callable[..., int]], Any]]]:
    """For each parameter of the kernel, its kind, and a function of `_Values.number` for what it is made of."""
    found: list[tuple[int, Callable[[Callable[..., int]], Any]]] = []

    def add(kind: int, place: tuple[bool, int]) -> None:
        found.append((kind, lambda number: number(place)))

    kinds = iter(metas)
    for kind, argument in zip(signature, arguments, strict=True):
        own = values.place(ast.parse(argument.text, mode="eval").body)
        if argument.maker is None:
            if not isinstance(kind, str) or not (kind in ("i32", "i64") or kind.startswith("*")):
                raise _Other
            add(_INT32 if kind == "i32" else _INT64, own)
            continue
        match argument.parts:
            case [ast.List(shape), ast.List(strides), _, *layout] if len(layout) <= 1:
                encoded = encoding(next(kinds, None))
            case _:
                raise _Other
        fits = str(kind).startswith("tensordesc") and fills_with_zeros(argument.maker)
        if encoded is None or not fits or not len(shape) == len(strides) == len(encoded[4]):
            raise _Other
        found.append((_MAP, _map_of(encoded, own, *([*map(values.place, part)] for part in (shape, strides)))))
        for places, of_part in ((shape, _INT32), (strides, _INT64)):
            for element in places:
                add(of_part, values.place(element))
    return found


def _map_of(
    encoded: tuple[Any, int, int, int, Any],
    address: tuple[bool, int],
    shape: list[tuple[bool, int]],
    strides: list[tuple[bool, int]],
) -> Callable[[Callable[..., int]], Any]:
    """The parts of a descriptor, as `read_map` of launch.c takes them."""
    _, swizzle, size, kind, block = encoded
    fixed = swizzle, size, kind, tuple(block)
    return lambda number: (*fixed, number(address), tuple(map(number, shape)), tuple(map(number, strides)))


__all__ = ["FUNCTIONS", "Argument", "begin", "built", "native", "native_launch"]
