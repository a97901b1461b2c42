"""Measures on the workers of a dask scheduler, any of which may be lost at any time.

Every request to the scheduler has a time limit. No call waits for a lost worker: it ends with `WorkersLost` if there
has been no worker for a while, or if the scheduler does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from neptune_lab.errors import MeasureError
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.gpu_worker import PREPARE_SECONDS, RUNNER, GpuWorker
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.process import not_measured
from neptune_lab.runtime.task import Task
from neptune_lab.tuning.clock import within
from neptune_lab.tuning.workers import WorkersLost, same_device

CONNECT_SECONDS = 20.0
# Time limit of a request that does not make a worker measure.
ASK_SECONDS = 10.0
# Time between two checks that there are workers.
LOOK_SECONDS = 1.0
# How long there may be no worker: a nanny replaces one that died.
LOST_SECONDS = 20.0
_HELP = "start `dask scheduler`, and a `dask worker` for each GPU; what was measured so far is kept"

T = TypeVar("T")


class DaskWorkers:
    """The workers of a dask scheduler, each with one GPU of its own.

    Start one per GPU: `CUDA_VISIBLE_DEVICES=0 dask worker tcp://… --nthreads 8`; a worker compiles as many
    candidates at once as it has threads, and measures one at a time.

    Args:
        scheduler: its address, such as "tcp://host:8786".
        runner: as for `GpuWorker`.

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
        client: Any = None  # its methods' hints are those of its async half
        try:
            client = Client(scheduler, timeout=CONNECT_SECONDS)
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            if client is not None:
                client.close()
            raise MeasureError(
                f"no workers at {scheduler}: {error or type(error).__name__}",
                help="start `dask scheduler`, and a `dask worker` for each GPU",
            ) from error
        self._client, self._scheduler, self._runner = client, scheduler, runner
        self._ended = threading.Event()

    @property
    def size(self) -> int:
        """All threads of all workers, and one more per worker so that none waits; WorkersLost without a scheduler."""
        threads = self._threads()
        return max(1, sum(threads.values()) + len(threads))

    def facts(self) -> DeviceFacts:
        """The device of the first worker; MeasureError if another worker has another device."""
        threads = self._threads()
        if not threads:
            raise self._lost("there is no worker")
        asked = [
            self._client.submit(_facts, self._runner, workers=[address], pure=False, retries=1) for address in threads
        ]
        return same_device([self._answer(future, PREPARE_SECONDS) for future in asked])

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """On the worker that the scheduler picks."""
        return self._submit(_measure, task, spec)

    def drain(self) -> None:
        """Gives up what is not being measured yet."""
        with suppress(MeasureError):
            self._ask(self._client.run, _drain)

    def kill(self) -> None:
        """Ends the processes of the workers, and the calls that wait for them."""
        self._ended.set()
        with suppress(MeasureError):
            self._ask(self._client.run, _kill)

    def remeasure(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """On one worker."""
        return self._submit(_remeasure, task, tuple(specs))

    def close(self) -> None:
        """Ends the processes of the workers, and disconnects; the workers stay for others."""
        for last in ((self._client.run, _close), (self._client.close, CONNECT_SECONDS)):
            with suppress(MeasureError):
                self._ask(*last)

    # -- asking ---------------------------------------------------------------------------------------------------

    def _submit(self, function: Callable[..., Any], *args: Any) -> Any:
        try:  # not pure: a candidate may be measured twice
            future = self._client.submit(function, self._runner, *args, pure=False, retries=1)
        except _losses() as error:
            raise self._lost(f"{type(error).__name__}: {error}") from error
        return self._answer(future)

    def _answer(self, future: Any, limit: float | None = None) -> Any:
        """A future's result; MeasureError if its worker is lost, WorkersLost if all are.

        Args:
            limit: time limit in seconds.
        """
        began = alone = time.monotonic()
        while True:
            failed = future.status == "error"  # else a TimeoutError is one of waiting, or of fetching the result
            try:
                return future.result(timeout=LOOK_SECONDS)
            except TimeoutError as error:
                if failed:
                    raise MeasureError(f"the worker failed: {error or type(error).__name__}", help=_HELP) from error
            except MeasureError:
                raise
            except _losses() as error:
                self._threads()
                raise MeasureError(f"the worker was lost: {type(error).__name__}", help=_HELP) from error
            now = time.monotonic()
            if self._ended.is_set():
                raise not_measured()
            if self._threads():
                alone = now
            elif now - alone > LOST_SECONDS:
                raise self._lost(f"there has been no worker for {LOST_SECONDS:g} s")
            if limit is not None and now - began > limit:
                raise MeasureError(f"a worker of {self._scheduler} did not answer within {limit:g} s", help=_HELP)

    def _threads(self) -> dict[str, int]:
        """The number of threads of each worker; WorkersLost if the scheduler does not answer."""
        return self._ask(self._client.nthreads)

    def _ask(self, question: Callable[..., T], *args: Any) -> T:
        """The scheduler's answer; WorkersLost if there is none in time."""
        try:
            return within(ASK_SECONDS, question, *args)
        except (AttributeError, *_losses()) as error:  # AttributeError: a client that has closed has no scheduler
            raise self._lost(f"{type(error).__name__}: {error}") from error

    def _lost(self, why: str) -> WorkersLost:
        return WorkersLost(f"the workers of {self._scheduler} are lost: {why}", help=_HELP)


def _losses() -> tuple[type[BaseException], ...]:
    """What dask raises if a worker or the scheduler is lost; RuntimeError: its client has closed itself."""
    from dask.distributed import CancelledError
    from distributed.scheduler import KilledWorker

    return (KilledWorker, CancelledError, OSError, RuntimeError)


# -- on a worker ------------------------------------------------------------------------------------------------

_gpu_worker: GpuWorker | None = None
_making = threading.Lock()


def _here(runner: str) -> GpuWorker:
    """The `GpuWorker` of this dask worker, made at the first call."""
    global _gpu_worker
    with _making:
        if _gpu_worker is None:
            from dask.distributed import get_worker

            threads = get_worker().state.nthreads
            _gpu_worker = GpuWorker(compilers=max(1, threads), runner=runner)
        return _gpu_worker


def _facts(runner: str) -> DeviceFacts:
    return _here(runner).facts()


def _measure(runner: str, task: Task, spec: KernelSpec) -> Measurement:
    return _here(runner).measure(task, spec)


def _remeasure(runner: str, task: Task, specs: tuple[KernelSpec, ...]) -> tuple[Measurement, ...]:
    return _here(runner).remeasure(task, specs)


def _drain() -> None:
    if _gpu_worker is not None:
        _gpu_worker.drain()


def _kill() -> None:
    if _gpu_worker is not None:
        _gpu_worker.kill()


def _close() -> None:
    """Ends its processes, so that the next tuner finds the GPU's memory free."""
    global _gpu_worker
    with _making:
        if _gpu_worker is not None:
            _gpu_worker.kill()
            _gpu_worker.close()
        _gpu_worker = None
