"""Compiles a module's kernels before their first launch, each in a thread of its own, while the caller does other work.

Triton releases Python's lock in LLVM and ptxas, where most of its time goes.  Its front end is Python: the caller goes
on after it, since two threads of Python would take turns, and the compilation is what takes longer.  The launcher runs
on tensors without memory (torch's "meta" device), which have the shapes and alignment of the usual arguments; a launch
with others compiles again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from neptune_lab.runtime import native_launch
from neptune_lab.runtime.load import LoadedKernel, load
from neptune_lab.runtime.spec import KernelSpec

if TYPE_CHECKING:
    import torch


# Functions of Triton that run without Python's lock for most of their time.
_UNLOCKED = frozenset({"make_llir", "make_ptx", "make_cubin"})
# The caller goes on after so many seconds in any case; it looks as often as the second number says.
_LONGEST, _STEP = 5.0, 0.002
_COMPILER = "triton.compiler.compiler"


@contextmanager
def compiling(spec: KernelSpec, device: torch.device) -> Iterator[None]:
    """Compiles the kernels of `spec` for a GPU during the block, which starts after Triton's front end, and waits for
    them at its end.

    A kernel that cannot be compiled is left to the launch, which says why; so is every kernel in Triton's interpreter,
    and one for all sizes.

    Args:
        device: the GPU.
    """
    threads = _threads(spec, device)
    threads += _after_front_end(threads)
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def begun(spec: KernelSpec, device: torch.device) -> Callable[[], None]:
    """Starts to compile the kernels of `spec` for a GPU, as `compiling` does, and does not wait for the front end.

    Args:
        device: the GPU.

    Returns:
        A function that waits for them.  A launch before that would compile them again.
    """
    threads = _threads(spec, device)

    def wait() -> None:
        for thread in threads:
            thread.join()

    return wait


def _threads(spec: KernelSpec, device: torch.device) -> list[threading.Thread]:
    """A thread for each kernel that can be compiled before its launch, started."""
    if device.type != "cuda":
        return []
    kernel = load(spec)
    if not kernel.interpreter:
        native_launch.begin()
    return [] if spec.ranges else _begun(kernel, device)


def _begun(kernel: LoadedKernel, device: torch.device) -> list[threading.Thread]:
    import torch

    if kernel.interpreter:
        return []

    def compiled(task: Callable[[], Any]) -> None:
        with suppress(Exception), torch.cuda.device(device):
            task()

    threads = [threading.Thread(target=compiled, args=(task,), daemon=True) for task in launches(kernel)]
    for thread in threads:
        thread.start()
    return threads


def _after_front_end(threads: list[threading.Thread]) -> list[threading.Thread]:
    """Waits until no thread runs Triton's front end.

    Returns:
        Threads that build what launches each kernel: Triton 3.6 compiles it in C, at the first launch unless it is in
        Triton's cache by then.
    """
    end = time.monotonic() + _LONGEST
    builders: dict[threading.Thread, threading.Thread] = {}
    while True:
        frames = {thread: _frames(thread) for thread in threads if thread.is_alive()}
        behind = [thread for thread, stack in frames.items() if any(f.f_code.co_name in _UNLOCKED for f in stack)]
        for thread in behind:
            if thread not in builders:
                builders[thread] = threading.Thread(target=_build_launcher, args=(frames[thread],), daemon=True)
                builders[thread].start()
        if len(behind) == len(frames) or time.monotonic() >= end:
            return list(builders.values())
        time.sleep(_STEP)


def _frames(thread: threading.Thread) -> list[FrameType]:
    """The frames of a thread, the innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    found: list[FrameType] = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _build_launcher(stack: list[FrameType]) -> None:
    """Leaves in Triton's cache what launches the kernel that a thread compiles, whose signature is in its frames."""
    from triton.runtime import driver

    with suppress(Exception):
        compile = next(f for f in stack if f.f_globals.get("__name__") == _COMPILER and f.f_code.co_name == "compile")
        # (Of the metadata, only what descriptors become is needed for it, which the front end says.)
        active: Any = driver.active
        active.launcher_cls(compile.f_locals["src"], SimpleNamespace(**compile.f_locals["metadata"]))


def launches(kernel: LoadedKernel) -> list[Callable[[], Any]]:
    """For each kernel of a module, a function that compiles it for its first launch; none if the launcher fails."""
    import torch
    from triton.runtime.jit import JITFunction

    entry: FunctionType = getattr(kernel.module, kernel.spec.entry)
    found: dict[str, Callable[[], Any]] = {}
    made: FunctionType | None = getattr(kernel.module, "_made", None)  # (what is kept, `helpers.KEPT`)
    functions = [entry] if made is None else [entry, made]
    used = {name: getattr(kernel.module, name, None) for own in functions for name in own.__code__.co_names}
    kernels = {name: _Recording(name, jit, found) for name, jit in used.items() if isinstance(jit, JITFunction)}
    names: dict[str, Any] = {**entry.__globals__, **kernels}
    if made is not None:
        names["_kept"] = FunctionType(made.__code__, names, made.__name__)
    launcher = FunctionType(entry.__code__, names, entry.__name__)
    tensors = (
        torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta")
        if t.strides is None
        else torch.empty_strided(t.shape, t.strides, dtype=getattr(torch, t.dtype), device="meta")
        for t in kernel.spec.inputs
    )
    with suppress(Exception):
        launcher(*tensors)
    return list(found.values())


class _Recording:
    """Takes the place of a JIT function: notes its first launch instead of doing it."""

    def __init__(self, name: str, jit: Any, found: dict[str, Callable[[], Any]]) -> None:
        self._name, self._jit, self._found = name, jit, found

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            run = self._jit.run
            self._found.setdefault(self._name, lambda: run(*arguments, grid=grid, warmup=True, **options))

        return launch


__all__ = ["begun", "compiling", "launches"]
