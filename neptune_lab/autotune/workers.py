"""Where candidates are measured: here the GPUs of this machine; `dask_workers` has those that a dask scheduler knows.

Both are `Workers`, whose `measure` may be called from `size` threads at once, so that each GPU finds its next candidate
compiled.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from neptune_lab.autotune.arguments import check_gpus
from neptune_lab.errors import MeasureError
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.gpu_worker import GpuWorker, gpu_count
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.task import Task


class WorkersLost(MeasureError):
    """There is nobody left who could measure: every worker is gone, or the scheduler does not answer."""


class Workers(Protocol):
    """Measures candidates, several at a time; a candidate's failure is a measurement with its reason, not an error."""

    @property
    def size(self) -> int:
        """How many threads may call `measure` at once."""
        ...

    def facts(self) -> DeviceFacts:
        """The device, which is the same everywhere; MeasureError where it is not, or where there is none."""
        ...

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """Compiles, checks and times one kernel; MeasureError where it never came to that (a worker lost, `drain`).

        WorkersLost where no later call could be answered either.
        """
        ...

    def drain(self) -> None:
        """Gives up candidates that are not on a GPU yet: `measure` raises MeasureError for them, and for later ones."""
        ...

    def kill(self) -> None:
        """Ends everything, what is being measured too; `measure` and `remeasure` raise MeasureError soon after."""
        ...

    def remeasure(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """Times kernels in turns on one GPU; MeasureError where that fails."""
        ...

    def close(self) -> None:
        """Ends every process that was started."""
        ...


class LocalWorkers:
    """One worker for each GPU of this machine.

    Args:
        workers: at least one; close ends them.
    """

    def __init__(self, workers: Sequence[GpuWorker]) -> None:
        self._workers = tuple(workers)
        for worker in self._workers:
            worker.start()
        self._free: queue.SimpleQueue[GpuWorker] = queue.SimpleQueue()
        for worker in self._workers:
            for _ in range(worker.size):
                self._free.put(worker)

    @property
    def size(self) -> int:
        """Threads that keep all compiling processes and GPUs at work."""
        return sum(s.size for s in self._workers)

    def facts(self) -> DeviceFacts:
        """The device of the first worker; MeasureError where another has another device."""
        with ThreadPoolExecutor(len(self._workers)) as pool:
            return same_device(list(pool.map(GpuWorker.facts, self._workers)))

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """On the next worker that has a place free."""
        worker = self._free.get()
        try:
            return worker.measure(task, spec)
        finally:
            self._free.put(worker)

    def drain(self) -> None:
        """Gives up what is not being measured yet."""
        for worker in self._workers:
            worker.drain()

    def kill(self) -> None:
        """Ends the processes of all workers."""
        for worker in self._workers:
            worker.kill()

    def remeasure(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """On the first worker."""
        return self._workers[0].remeasure(task, specs)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.close()


def same_device(devices: Sequence[DeviceFacts]) -> DeviceFacts:
    """The one device that all of these are; MeasureError names two that differ."""
    for other in devices:
        if (other.name, other.triton, other.torch) != (devices[0].name, devices[0].triton, devices[0].torch):
            raise MeasureError(
                f"the workers differ: {devices[0].name} with Triton {devices[0].triton} and torch {devices[0].torch}, "
                f"{other.name} with Triton {other.triton} and torch {other.torch}",
                help="tune one kind of GPU at a time, with one environment",
            )
    return devices[0]


def local(gpus: Sequence[int] | None = None) -> LocalWorkers:
    """Workers on this machine's GPUs, all of them by default; cores are shared out among them for compiling.

    Raises:
        MeasureError: there is no GPU.
    """
    check_gpus(gpus)
    count = gpu_count()
    chosen = list(range(count)) if gpus is None else list(gpus)
    if not chosen or max(chosen) >= count:
        raise MeasureError(
            f"GPUs {chosen} were asked for, and there are {count} here"
            if gpus
            else "no GPU here: nothing can be timed",
            help="measure on another machine: scheduler='tcp://...', or `neptune-lab bundle`",
        )
    # One core is left for this process and its emitters, and one for each measuring process.
    compilers = max(1, ((os.cpu_count() or 2) - 1) // len(chosen) - 1)
    return LocalWorkers([GpuWorker(gpu, compilers) for gpu in chosen])
