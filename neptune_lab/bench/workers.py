"""Tasks done in processes of their own: a crash, a hang or a lost GPU costs one task, and the others go on."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from neptune_lab.runtime.process import WAKE_SECONDS

Task = TypeVar("Task")


@dataclass(frozen=True)
class Lost:
    """A task without an answer: its process ended, or took too long."""

    reason: str


# A process imports torch and more before it can begin.
_START_S = 180.0


@dataclass(frozen=True)
class _Ready:
    """The first that a process sends: it has imported what the function needs."""


@dataclass
class _Worker(Generic[Task]):
    process: BaseProcess
    pipe: Connection
    deadline: float
    task: Task | None = None


def run_apart(
    function: Callable[[Task], Any],
    tasks: Sequence[Task],
    *,
    workers: int,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Task, Any]]:
    """`function(task)` for every task, as they come: pairs of a task and its answer, or `Lost`.

    Args:
        function: of a module, so that another process can import it; what it gives can be pickled.  An answer with a
            true attribute `fatal` is the last that its process gives.
        workers: processes at a time.
        timeout_s: how long one task may take, the start of a process aside.
        environment: variables set in the processes before `function` runs.
        clock: seconds, from which the time limit is read.
    """
    waiting = list(reversed(tasks))
    serving = [_start(function, environment or {}, clock() + _START_S) for _ in range(min(workers, len(tasks)))]
    try:
        for worker in serving:
            _give(worker, waiting)
        while any(w.task is not None for w in serving):
            busy = [w for w in serving if w.task is not None]
            left = max(0.0, min(w.deadline for w in busy) - clock())
            ready = wait([w.pipe for w in busy], min(left, WAKE_SECONDS))
            for n, worker in enumerate(serving):
                if worker.task is None:
                    continue
                task = worker.task
                if worker.pipe in ready:
                    answer, alive = _receive(worker)
                    worker.deadline = clock() + timeout_s
                    if isinstance(answer, _Ready):
                        continue
                elif clock() > worker.deadline:
                    answer, alive = Lost(f"no answer within {timeout_s:.0f} s"), False
                else:
                    continue
                if not alive:
                    _end(worker)
                    worker = serving[n] = _start(function, environment or {}, clock() + _START_S) if waiting else worker
                worker.task = None
                if waiting:
                    _give(worker, waiting)
                yield task, answer
    finally:
        for worker in serving:
            _end(worker)


def _start(function: Callable[[Task], Any], environment: Mapping[str, str], deadline: float) -> _Worker[Task]:
    # CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, function, dict(environment)), daemon=False)
    process.start()
    there.close()
    return _Worker(process, here, deadline)


def _give(worker: _Worker[Task], waiting: list[Task]) -> None:
    worker.task = waiting.pop()
    worker.pipe.send(worker.task)


def _receive(worker: _Worker[Task]) -> tuple[Any, bool]:
    """The answer, and whether the process can take another task."""
    try:
        answer = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(5)
        return Lost(f"the process ended with status {worker.process.exitcode}"), False
    return answer, not getattr(answer, "fatal", False)


def _end(worker: _Worker[Task]) -> None:
    worker.pipe.close()
    worker.process.join(0.2)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join(5)


def _serve(pipe: Connection, function: Callable[[Any], Any], environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    pipe.send(_Ready())
    while True:
        try:
            task = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        answer = function(task)
        pipe.send(answer)
        if getattr(answer, "fatal", False):
            return
