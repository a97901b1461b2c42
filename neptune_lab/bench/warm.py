"""Compiles every contestant in advance, in processes of their own, so that measuring finds it in the caches.

torch.compile takes 8 to 20 s per shape.  Its caches, and Triton's, are on disk: a process loads what another has
compiled.  A contestant that crashes or hangs does so here, without harm to the measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from neptune_lab.bench.ablation import Variant
from neptune_lab.bench.contestants import attempt, contestants, launchable, repeats
from neptune_lab.bench.kernels import Compiled, Directory, Kernels, compiled, target_of
from neptune_lab.bench.measured import DEFAULT
from neptune_lab.bench.setups import Setup
from neptune_lab.bench.tensors import device_memory, make_tensors
from neptune_lab.bench.workers import Lost, run_apart

TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Source:
    """The origin of our kernels, in a form that can be sent to another process.

    Args:
        directory: written by `kernels.export`; None: they are compiled when they are needed.
        device: the GPU whose tuning records are used; None: the local GPU.
    """

    directory: Path | None = None
    device: str | None = None

    def check(self) -> None:
        """Raise MeasureError if the directory has no exported kernels, or the device is not known."""
        if self.device is not None:
            target_of(self.device)
        self.kernels()

    def kernels(self) -> Kernels:
        """The kernels as a function."""
        if self.directory is not None:
            return Directory(self.directory)
        return lambda setup, variant: compiled(setup, variant, self.device)


@dataclass(frozen=True)
class WarmupTask:
    """One contestant of one setup."""

    setup: Setup
    name: str
    source: Source
    autotuned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Warm:
    """The result of a task: the kernel if it is ours, and if it failed, why this run must not try it again.

    Args:
        refusal: empty if it ran.
        compiled: our kernel.
        fatal: the process cannot use the GPU any more.
        lost: its process ended or took too long; a resumed run may try it again.
    """

    refusal: str = ""
    compiled: Compiled | None = None
    fatal: bool = False
    lost: bool = False


def warm(task: WarmupTask) -> Warm:
    """Compiles a contestant and calls it once, in this process."""
    torch.compiler.reset()
    by_name = {c.name: c for c in contestants(task.setup, task.source.kernels(), task.autotuned)}
    chosen = by_name[task.name]
    memory = device_memory()
    if chosen.refuses(task.setup, memory):
        return Warm()
    tensors = make_tensors(task.setup.op)
    made: Compiled | None = None
    if chosen.variant is not None:
        made = task.source.kernels()(task.setup, chosen.variant)
        kernel = made
        is_change = made.spec is not None and chosen.kind == "ablation"
        if is_change and repeats({DEFAULT: _usual(task.setup, task.source), task.name: made}):
            return Warm(compiled=made)
        chosen = replace(chosen, make=lambda setup, tensors, quick: launchable(kernel, tensors))
    tried = attempt(chosen, task.setup, tensors, None, _once, memory)
    del tensors
    if torch.cuda.is_available() and not tried.fatal:
        torch.cuda.empty_cache()
    # Several processes share the memory here; the measuring process has all of it.
    failed = tried.entry.status == "failed" and not tried.entry.note.startswith("OutOfMemoryError")
    return Warm(tried.entry.note if failed else "", made, tried.fatal)


@lru_cache(maxsize=1)  # (a process gets several ablations of a setup, one after another)
def _usual(setup: Setup, source: Source) -> Compiled:
    """The setup's kernel with default options."""
    return source.kernels()(setup, Variant(DEFAULT))


def _once(call: Callable[[], Any]) -> float:
    """Compiles by calling; timing follows when the GPU is idle."""
    call()
    return 0.0


def warm_all(
    setups: Sequence[Setup],
    source: Source,
    autotuned: tuple[str, ...],
    workers: int,
    environment: dict[str, str],
    progress: Callable[[str], None],
    gpus: Sequence[str] = (),
    until: float = math.inf,
) -> dict[tuple[str, str], Warm]:
    """`warm` for every contestant of these setups, by names of setup and contestant.

    Contestants that time their own candidates are last, one at a time on each GPU, with all of the machine's cores.

    Args:
        gpus, until: as for `run_apart`; what is not started in time is not in the result.
    """
    began = time.monotonic()
    every = [(s, c) for s in setups for c in contestants(s, source.kernels(), autotuned)]
    results: dict[tuple[str, str], Warm] = {}
    for quiet in (False, True):
        tasks = [WarmupTask(s, c.name, source, autotuned) for s, c in every if c.quiet is quiet]
        threads = {} if quiet else {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        answers = run_apart(
            warm,
            tasks,
            workers=max(1, len(gpus)) if quiet else workers,
            timeout_s=TIMEOUT_S,
            environment=environment | threads,
            gpus=gpus,
            until=until,
        )
        for done, (task, answer) in enumerate(answers, 1):
            results[task.setup.name, task.name] = Warm(answer.reason, lost=True) if isinstance(answer, Lost) else answer
            took = f"{time.monotonic() - began:.0f} s"
            progress(f"compiled {done} of {len(tasks)} after {took}: {task.setup.name}, {task.name}")
    return results
