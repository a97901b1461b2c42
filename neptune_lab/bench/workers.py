"""Runs tasks in separate processes: a crash, a hang or a lost GPU costs one task, and the others continue."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.process import WAKE_SECONDS, ProcessPool

Task = TypeVar("Task")


@dataclass(frozen=True)
class Lost:
    """A task without an answer: its process ended or took too long, or the function raised."""

    reason: str


# In place of the answer of a task that was not started.
_LATE = object()
# Time limit for the start of a process, which imports torch.
_START_S = 180.0


def run_apart(
    function: Callable[[Task], Any],
    tasks: Sequence[Task],
    *,
    workers: int,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    gpus: Sequence[str] = (),
    until: float = math.inf,
) -> Iterator[tuple[Task, Any]]:
    """`function(task)` for every task: pairs of a task and its answer, or `Lost`, as they are completed.

    Args:
        function: of a module, so that another process can import it; its result can be pickled.  After an answer with
            a true attribute `fatal`, the process is ended.
        workers: the number of processes.
        timeout_s: time limit of one task, without the start of its process.
        environment: variables set in the processes before `function` runs.
        gpus: values of CUDA_VISIBLE_DEVICES, which the processes get in turn; none: all of them see every GPU.
        until: no task is started when `time.monotonic()` is past it; such tasks are in no pair.
    """
    name, module = f"{function.__module__}:{function.__name__}", function.__module__
    count = min(workers, len(tasks))
    own = [{"CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]} if gpus else {} for n in range(count)]
    processes = ProcessPool([{**(environment or {}), **gpu} for gpu in own], [module])

    def answer(task: Task) -> Any:
        with processes.child() as child:
            if time.monotonic() > until:
                return _LATE
            try:
                child.call("builtins:bool", timeout=_START_S)  # so that the start is not part of the task's time
                result = child.call(name, task, timeout=timeout_s)
            except MeasureError as error:
                return Lost(error.reason)
            if getattr(result, "fatal", False):
                child.close()
            return result

    waiting: dict[Future[Any], Task] = {}
    try:
        with ThreadPoolExecutor(max(1, count)) as pool:
            waiting.update((pool.submit(answer, task), task) for task in tasks)
            try:
                while waiting:
                    for future in wait(waiting, WAKE_SECONDS, FIRST_COMPLETED).done:
                        task, result = waiting.pop(future), future.result()
                        if result is not _LATE:
                            yield task, result
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                processes.kill()  # ends the calls that threads of the pool wait for
    finally:
        processes.close()
