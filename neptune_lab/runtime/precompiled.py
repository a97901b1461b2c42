"""Launches without Triton's per-launch work: the second launch of a kernel reuses what the first one compiled.

`kernel[grid](*arguments, num_warps=…)` binds and classifies its arguments, builds a cache key and looks the compiled
kernel up, at every call.  A generated module passes the same kinds of arguments at every call, so the result changes
only with the alignment: Triton compiles another version for a pointer that is not a multiple of 16.  So the first
launch keeps its compiled kernel, and later ones check the pointers and call it (Triton's tutorials call a compiled
kernel in the same way).  A launch with another alignment takes Triton's own path.

Once all kernels of a module are compiled, `direct` replaces these launches too, where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from neptune_lab.runtime.direct import Compiled

# Grids of a kernel that are kept: a kernel for all lengths has one for each number of tiles.
_MOST_GRIDS = 1024
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


def compiled_in(launcher: Callable[..., Any]) -> dict[str, Compiled] | None:
    """The kernels of a launcher from `with_precompiled_launches`, by name; None while one of them is not compiled."""
    used = launcher.__code__.co_names if isinstance(launcher, FunctionType) else ()
    found: dict[str, Compiled] = {}
    for name in used:
        kernel = launcher.__globals__.get(name)
        if isinstance(kernel, _Kernel):
            if kernel.compiled is None:
                return None
            found[name] = Compiled(kernel.compiled.kernel, kernel.compiled.options)
    return found


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What the first launch compiled.

    Args:
        pointers: the places of tensors among the arguments.
        options: of the launch.
    """

    kernel: Any
    pointers: tuple[int, ...]
    options: dict[str, Any]


class _Kernel:
    """Replaces a JIT function: `kernel[grid](*arguments, **options)`."""

    __slots__ = ("_grids", "_jit", "compiled")

    def __init__(self, jit: Any) -> None:
        self._jit = jit
        self._grids: dict[Any, _Launch] = {}
        self.compiled: _Compiled | None = None

    def __getitem__(self, grid: tuple[int, ...]) -> _Launch:
        launch = self._grids.get(grid)
        if launch is None:
            if len(self._grids) >= _MOST_GRIDS:
                self._grids.clear()
            launch = self._grids[grid] = _Launch(self, self._jit, grid)
        return launch


class _Launch:
    """One kernel over one grid."""

    __slots__ = ("_grid", "_jit", "_owner", "_run")

    def __init__(self, owner: _Kernel, jit: Any, grid: tuple[int, ...]) -> None:
        self._owner = owner
        self._jit = jit
        self._grid = grid
        self._run: Callable[..., Any] | None = None
        if owner.compiled is not None:
            self._run = self._over_grid(owner.compiled.kernel)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        run, compiled = self._run, self._owner.compiled
        if run is not None and compiled is not None and options == compiled.options:
            bits = 0
            for place in compiled.pointers:
                bits |= arguments[place].data_ptr()
            if not bits & _UNALIGNED:
                run(*arguments)
                return
        made = self._jit[self._grid](*arguments, **options)
        if run is None:
            self._keep(made, arguments, options)

    def _keep(self, compiled: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Keeps the compiled kernel if nothing but alignment can change it."""
        import torch
        from triton.compiler import CompiledKernel

        tensors = [n for n, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)]
        # Triton's and Gluon's are two classes of one name.
        descriptors = sum(type(argument).__name__ == "TensorDescriptor" for argument in arguments)
        # Sizes that are known at the launch; a larger one than 32 bits hold would be of another type.
        sizes = sum(type(a) is int and p.do_not_specialize for a, p in zip(arguments, self._jit.params, strict=False))
        known = len(tensors) + descriptors + sizes == len(arguments) == len(self._jit.params)
        aligned = all(arguments[n].data_ptr() & _UNALIGNED == 0 for n in tensors)
        if not (isinstance(compiled, CompiledKernel) and known and aligned):
            return
        self._owner.compiled = _Compiled(compiled, tuple(tensors), options)
        self._run = self._over_grid(compiled)

    def _over_grid(self, compiled: Any) -> Callable[..., Any]:
        x, y, z = (*self._grid, 1, 1)[:3]
        return compiled[x, y, z]
