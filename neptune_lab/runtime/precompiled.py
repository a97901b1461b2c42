"""Launches without Triton's per-launch work: the second launch of a kernel reuses what the first one compiled.

`kernel[grid](*arguments, num_warps=…)` binds and classifies its arguments, builds a cache key and looks the compiled
kernel up, at every call.  A generated module passes the same kinds of arguments at every call, so the result changes
only with the alignment: Triton compiles another version for a pointer that is not a multiple of 16.  So the first
launch keeps its compiled kernel, and later ones check the pointers and call it (Triton's tutorials call a compiled
kernel in the same way).  A launch with another alignment takes Triton's own path.

Measured with scripts/launch_overhead.py (torch 2.11, Triton 3.6; the host's part, without the driver's): calling a
module of one kernel takes 6.8 us by Triton's launches, 4.3 us by these, 6.4 us with all arguments checked; of two
kernels with three intermediates 17.8, 12.3 and 14.6 us.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

# Bits of a pointer that are 0 if Triton treats it as aligned.
_UNALIGNED = 15


def with_precompiled_launches(function: FunctionType, module: ModuleType) -> Callable[..., Any]:
    """`function` of a generated module, launching the module's kernels without Triton's per-launch work.

    For one device: the compiled kernels are that device's.  `function` itself, and the module, stay as they are;
    it is returned if it launches no kernel, or on a GPU whose kernels depend on more than alignment (AMD's).
    """
    import torch
    from triton.runtime.jit import JITFunction

    if torch.version.hip is not None:
        return function
    used = {name: getattr(module, name, None) for name in function.__code__.co_names}
    kernels = {name: _Kernel(value) for name, value in used.items() if isinstance(value, JITFunction)}
    if not kernels:
        return function
    names = {**function.__globals__, **kernels}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Kernel:
    """Replaces a JIT function: `kernel[grid](*arguments, **options)`."""

    __slots__ = ("_grids", "_jit")

    def __init__(self, jit: Any) -> None:
        self._jit = jit
        self._grids: dict[Any, _Launch] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> _Launch:
        launch = self._grids.get(grid)
        if launch is None:
            launch = self._grids[grid] = _Launch(self._jit, grid)
        return launch


class _Launch:
    """One kernel over one grid."""

    __slots__ = ("_grid", "_jit", "_options", "_pointers", "_run")

    def __init__(self, jit: Any, grid: tuple[int, ...]) -> None:
        self._jit = jit
        self._grid = grid
        self._run: Callable[..., Any] | None = None
        self._pointers: tuple[int, ...] = ()
        self._options: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **options: Any) -> None:
        run = self._run
        if run is not None and options == self._options:
            bits = 0
            for place in self._pointers:
                bits |= arguments[place].data_ptr()
            if not bits & _UNALIGNED:
                run(*arguments)
                return
        compiled = self._jit[self._grid](*arguments, **options)
        if run is None:
            self._keep(compiled, arguments, options)

    def _keep(self, compiled: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Keeps the compiled kernel if nothing but alignment can change it."""
        import torch
        from triton.compiler import CompiledKernel

        tensors = [n for n, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)]
        # Triton's and Gluon's are two classes of one name.
        descriptors = sum(type(argument).__name__ == "TensorDescriptor" for argument in arguments)
        only_pointers = len(tensors) + descriptors == len(arguments) == len(self._jit.params)
        aligned = all(arguments[n].data_ptr() & _UNALIGNED == 0 for n in tensors)
        if not (isinstance(compiled, CompiledKernel) and only_pointers and aligned):
            return
        x, y, z = (*self._grid, 1, 1)[:3]
        self._pointers = tuple(tensors)
        self._options = options
        self._run = compiled[x, y, z]
