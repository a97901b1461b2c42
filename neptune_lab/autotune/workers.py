"""Where candidates are measured: the GPUs of this machine, or those that a dask scheduler knows.

Both ways give `Workers`, whose `measure` may be called from `size` threads at once, so that each GPU finds its next
candidate compiled.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from neptune_lab.errors import MeasureError
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.station import RUNNER, Station, gpu_count
from neptune_lab.runtime.task import Task
from neptune_lab.runtime.trial import Measurement

CONNECT_SECONDS = 20.0


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
        """Compiles, checks and times one kernel; MeasureError where it never came to that (a worker lost, `drain`)."""
        ...

    def drain(self) -> None:
        """Gives up candidates that are not on a GPU yet: `measure` raises MeasureError for them, and for later ones."""
        ...

    def measure_again(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """Times kernels in turns on one GPU; MeasureError where that fails."""
        ...

    def close(self) -> None:
        """Ends every process that was started."""
        ...


class LocalWorkers:
    """One station for each GPU of this machine.

    Args:
        stations: at least one; close ends them.
    """

    def __init__(self, stations: Sequence[Station]) -> None:
        self._stations = tuple(stations)
        for station in self._stations:
            station.start()
        self._free: queue.SimpleQueue[Station] = queue.SimpleQueue()
        for station in self._stations:
            for _ in range(station.size):
                self._free.put(station)

    @property
    def size(self) -> int:
        """Threads that keep all compiling processes and GPUs at work."""
        return sum(s.size for s in self._stations)

    def facts(self) -> DeviceFacts:
        """The device of the first station; MeasureError where another has another device."""
        with ThreadPoolExecutor(len(self._stations)) as pool:
            return same_device(list(pool.map(Station.facts, self._stations)))

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """On the next station that has a place free."""
        station = self._free.get()
        try:
            return station.measure(task, spec)
        finally:
            self._free.put(station)

    def drain(self) -> None:
        """Gives up what is not being measured yet."""
        for station in self._stations:
            station.drain()

    def measure_again(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """On the first station."""
        return self._stations[0].measure_again(task, specs)

    def close(self) -> None:
        """Ends all stations."""
        for station in self._stations:
            station.close()


def same_device(found: Sequence[DeviceFacts]) -> DeviceFacts:
    """The one device that all of these are; MeasureError names two that differ."""
    for other in found:
        if (other.name, other.triton, other.torch) != (found[0].name, found[0].triton, found[0].torch):
            raise MeasureError(
                f"the workers differ: {found[0].name} with Triton {found[0].triton} and torch {found[0].torch}, "
                f"{other.name} with Triton {other.triton} and torch {other.torch}",
                help="tune one kind of GPU at a time, with one environment",
            )
    return found[0]


def local(gpus: Sequence[int] | None = None) -> LocalWorkers:
    """Workers on this machine's GPUs, all of them by default; cores are shared out among them for compiling.

    Raises:
        MeasureError: there is no GPU.
    """
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
    return LocalWorkers([Station(gpu, compilers) for gpu in chosen])


# -- dask ------------------------------------------------------------------------------------------------------


class DaskWorkers:
    """The workers of a dask scheduler, each of which has one GPU to itself.

    Start them so, one a GPU: `CUDA_VISIBLE_DEVICES=0 dask worker tcp://… --nthreads 8`; a worker compiles as many
    candidates at once as it has threads, and measures one at a time.

    Args:
        scheduler: its address, such as "tcp://host:8786".
        runner: as for `Station`.

    Raises:
        MeasureError: dask is not installed, the scheduler does not answer, or it has no worker.
    """

    def __init__(self, scheduler: str, runner: str = RUNNER) -> None:
        try:
            from dask.distributed import Client
        except ImportError as error:
            raise MeasureError(
                "measuring through a scheduler needs dask, which is not installed here",
                help="pip install 'neptune-lab[tune]'",
            ) from error
        try:
            self._client: Any = Client(
                scheduler, timeout=CONNECT_SECONDS
            )  # its methods' hints are those of its async half
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise MeasureError(
                f"no workers at {scheduler}: {error or type(error).__name__}",
                help="start `dask scheduler`, and a `dask worker` for each GPU",
            ) from error
        self._runner = runner

    @property
    def size(self) -> int:
        """All threads of all workers, and one more a worker so that none runs dry."""
        threads = self._client.nthreads()
        return sum(threads.values()) + len(threads)

    def facts(self) -> DeviceFacts:
        """The device of the first worker; MeasureError where another has another device."""
        asked = [
            self._client.submit(_facts, self._runner, workers=[address], pure=False)
            for address in self._client.nthreads()
        ]
        return same_device(self._client.gather(asked))

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """On the worker that the scheduler picks."""
        return self._submit(_measure, task, spec)

    def drain(self) -> None:
        """Gives up what is not being measured yet."""
        self._client.run(_drain)

    def measure_again(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """On one worker."""
        return self._submit(_measure_again, task, tuple(specs))

    def close(self) -> None:
        """Ends the stations of the workers, and leaves; the workers stay for others."""
        self._client.run(_close)
        self._client.close()

    def _submit(self, function: Callable[..., Any], *args: Any) -> Any:
        from dask.distributed import CancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        try:
            # Not pure: a candidate may well be measured twice.
            return self._client.submit(function, self._runner, *args, pure=False, retries=1).result()
        except (KilledWorker, CancelledError, CommClosedError) as error:
            raise MeasureError(f"the worker was lost: {type(error).__name__}") from error


_station: Station | None = None
_making = threading.Lock()


def _here(runner: str) -> Station:
    """The station of this dask worker, made at the first call."""
    global _station
    with _making:
        if _station is None:
            from dask.distributed import get_worker

            threads = get_worker().state.nthreads
            _station = Station(compilers=max(1, threads), runner=runner)
        return _station


def _facts(runner: str) -> DeviceFacts:
    return _here(runner).facts()


def _measure(runner: str, task: Task, spec: KernelSpec) -> Measurement:
    return _here(runner).measure(task, spec)


def _measure_again(runner: str, task: Task, specs: tuple[KernelSpec, ...]) -> tuple[Measurement, ...]:
    return _here(runner).measure_again(task, specs)


def _drain() -> None:
    if _station is not None:
        _station.drain()


def _close() -> None:
    """Ends the station, so that the next tuner finds the GPU's memory free."""
    global _station
    with _making:
        if _station is not None:
            _station.close()
        _station = None
