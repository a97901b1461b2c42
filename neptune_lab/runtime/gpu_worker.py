"""One GPU with its processes: some compile in advance, and one measures."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.device import DeviceFacts
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.process import ChildProcess, ProcessKilled, ProcessPool
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.task import Task

COMPILE_SECONDS = 120.0
# Time limits: for inputs and reference of a workload, once; and for each candidate, since one may hang.
PREPARE_SECONDS = 180.0
MEASURE_SECONDS = 20.0
RUNNER = "neptune_lab.runtime.measurement"
_PRELOAD = ("torch", "triton", RUNNER)


class GpuWorker:
    """One GPU with its processes.

    Args:
        gpu: its number among those that this process sees; None: the processes see the same GPUs as this one.
        compilers: the number of processes that compile in advance.
        runner: the module whose functions are called, `measurement` or one with the same functions.
        compile_seconds, measure_seconds: time limits of a call, after which its process is ended.
    """

    def __init__(
        self,
        gpu: int | None = None,
        compilers: int = 1,
        runner: str = RUNNER,
        *,
        compile_seconds: float = COMPILE_SECONDS,
        measure_seconds: float = MEASURE_SECONDS,
    ) -> None:
        env = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": visible_gpu(gpu)}
        self.size = compilers + 1
        self._runner = runner
        self._compile_seconds, self._measure_seconds = compile_seconds, measure_seconds
        preload = _PRELOAD if runner == RUNNER else (runner,)
        self._measuring, self._lock = ChildProcess(env, preload), threading.Lock()
        self._compilers = ProcessPool([env] * compilers, preload)
        self._prepared: tuple[str, int] | None = None
        self._killed = threading.Event()

    def start(self) -> None:
        """Starts its processes now, rather than at their first calls."""
        self._measuring.start()
        self._compilers.start()

    def facts(self) -> DeviceFacts:
        """The device as the measuring process sees it."""
        with self._lock:
            return self._measuring.call(f"{self._runner}:facts", timeout=PREPARE_SECONDS)

    def measure(self, task: Task, spec: KernelSpec) -> Measurement:
        """`compile`, then `time`; MeasureError after `drain`."""
        refused = self.compile(spec)
        return self.time(task, spec) if refused is None else Measurement(failure=refused)

    def compile(self, spec: KernelSpec) -> str | None:
        """Compiles in one of the compiling processes; the error, or None."""
        try:
            refused = self._compilers.call(f"{self._runner}:compile_ahead", spec, timeout=self._compile_seconds)
        except MeasureError as error:
            self._compilers.check_running()
            refused = error.reason
        return None if refused is None else f"compiling: {refused}"

    def time(self, task: Task, spec: KernelSpec) -> Measurement:
        """Checks and times in the measuring process."""
        with self._lock:
            try:
                return self._timed(task, spec)
            except ProcessKilled:  # probably not the candidate's fault: try once more
                return self._timed(task, spec, again=True)

    def _timed(self, task: Task, spec: KernelSpec, again: bool = False) -> Measurement:
        self._compilers.check_running()
        self._prepare(task)
        known = replace(task, values={})  # the process has its inputs
        try:
            return self._measuring.call(
                f"{self._runner}:measure", known, spec, timeout=self._measure_seconds, restart=False
            )
        except MeasureError as error:
            self._prepared = None  # the process was ended
            self._compilers.check_running()
            if isinstance(error, ProcessKilled) and not again:
                raise
            return Measurement(failure=f"measuring: {error.reason}")

    def _prepare(self, task: Task) -> None:
        """Makes inputs and reference in the measuring process; MeasureError if that fails."""
        wanted = (task.key, task.seed)
        if self._prepared != wanted:
            self._prepared = None
            self._measuring.call(f"{self._runner}:prepare", task, timeout=PREPARE_SECONDS)
            self._prepared = wanted

    def drain(self) -> None:
        """Gives up candidates that are not being measured yet."""
        self._compilers.kill()

    def kill(self) -> None:
        """Gives up every candidate, the one being measured too; the worker cannot be used afterwards."""
        self._killed.set()
        self.drain()
        self._measuring.kill()

    def remeasure(self, task: Task, specs: Sequence[KernelSpec]) -> tuple[Measurement, ...]:
        """Times kernels in turns; MeasureError if one of them fails."""
        with self._lock:
            if self._killed.is_set():
                raise MeasureError("the worker was ended", help="start the run again: it continues where it ended")
            self._prepare(task)
            known, call = replace(task, values={}), f"{self._runner}:remeasure"
            seconds = self._measure_seconds * len(specs)
            try:
                return self._measuring.call(call, known, tuple(specs), timeout=seconds, restart=False)
            except MeasureError:
                self._prepared = None
                raise

    def close(self) -> None:
        """Ends its processes."""
        self._measuring.close()
        self._compilers.close()


def gpu_count() -> int:
    """The number of local GPUs, without a CUDA context in this process."""
    import torch

    return torch.cuda.device_count()


def visible_gpu(index: int) -> str:
    """The value of CUDA_VISIBLE_DEVICES for GPU number `index` among those that it names now."""
    here = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = here.split(",") if here else []
    return names[index] if index < len(names) else str(index)
