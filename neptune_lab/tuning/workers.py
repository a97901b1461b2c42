"""Workers that measure candidates: here the local GPUs; `dask_workers` has the workers of a dask scheduler.

Both are `Workers`, whose `measure` may be called from `size` threads at once, so that the next candidate of each GPU is
compiled in advance.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from neptune_lab.errors import MeasureError
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.gpu_worker import GpuWorker, gpu_count
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.task import Task
from neptune_lab.tuning.arguments import check_gpus


class WorkersLost(MeasureError):
    """No worker is left: all are lost, or the scheduler does not answer."""


class Workers(Protocol):
    """Measures candidates, several at a time; a candidate's failure is a measurement with its reason, not an error."""

    @property
    def size(self) -> int:
        """The number of threads that may call `measure` at once."""
        ...

    def facts(self) -> DeviceFacts:
        """The device, which all workers must share; MeasureError if they do not, or if there is none."""
        ...

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """Compiles, checks and times one kernel; MeasureError if it was not measured (a worker lost, `drain`).

        WorkersLost if later calls would fail too.
        """
        ...

    def drain(self) -> None:
        """Gives up candidates that are not on a GPU yet: `measure` raises MeasureError for them, and for later ones."""
        ...

    def kill(self) -> None:
        """Ends everything, measurements too; `measure` and `remeasure` raise MeasureError soon after."""
        ...

    def remeasure(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """Times kernels in turns on one GPU; MeasureError if that fails."""
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
        """The number of threads that keep all compiling processes and GPUs busy."""
        return sum(s.size for s in self._workers)

    def facts(self) -> DeviceFacts:
        """The device of the first worker; MeasureError if another worker has another device."""
        with ThreadPoolExecutor(len(self._workers)) as pool:
            return same_device(list(pool.map(GpuWorker.facts, self._workers)))

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """On the next worker with a free slot."""
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
    """Workers on this machine's GPUs, all of them by default; cores are divided among them for compiling.

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
            help="measure on another machine: nl.tune(op, scheduler='tcp://...'), `neptune-lab tune --scheduler`, or "
            "`neptune-lab bundle`",
        )
    # One core is left for this process and its emitters, and one for each measuring process.
    compilers = max(1, ((os.cpu_count() or 2) - 1) // len(chosen) - 1)
    return LocalWorkers([GpuWorker(gpu, compilers) for gpu in chosen])
