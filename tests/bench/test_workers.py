"""Tasks in processes of their own: a crash or a hang costs one, GPUs are taken in turn, and time ends."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from neptune_lab.bench.workers import Lost, run_apart


@pytest.mark.nightly
def test_a_crash_costs_one_task():
    """The function is Python's own `eval`, so that a process has nothing to import."""
    crash, said = "__import__('os')._exit(3)", "__import__('os').environ['SAID']"
    tasks = ["1 + 1", crash, "2 + 2", "1 / 0", said]
    found = dict(run_apart(eval, tasks, workers=2, timeout_s=300.0, environment={"SAID": "hi"}))
    assert isinstance(found["1 / 0"], Lost)
    assert found.pop("1 / 0").reason.startswith("ZeroDivisionError: division by zero")
    assert found == {"1 + 1": 2, "2 + 2": 4, said: "hi", crash: Lost("the process ended with status 3")}


@pytest.mark.nightly
def test_a_hang_costs_one_task():
    hangs = [f"__import__('time').sleep({seconds})" for seconds in (3600, 3601)]
    assert dict(run_apart(eval, hangs, workers=1, timeout_s=0.5)) == dict.fromkeys(
        hangs, Lost("took longer than 0.5 s")
    )


@pytest.mark.nightly
def test_processes_end_when_nobody_waits_for_answers():
    answers: Any = run_apart(
        eval, ["__import__('os').getpid()", "__import__('time').sleep(3600)"], workers=1, timeout_s=3600
    )
    _, process = next(answers)
    answers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.nightly
def test_processes_take_turns_in_getting_a_gpu():
    seen = "(__import__('time').sleep(0.3), __import__('os').environ['CUDA_VISIBLE_DEVICES'])[1]"
    found = run_apart(eval, [f"{seen} + '{n}'" for n in "abcd"], workers=4, timeout_s=300.0, gpus=["3", "GPU-a"])
    assert sorted(answer[:-1] for _, answer in found) == ["3", "3", "GPU-a", "GPU-a"]


@pytest.mark.nightly
def test_no_task_is_started_after_the_time():
    tasks = ["__import__('time').sleep(1.5)", "1 + 1"]
    limits = {"workers": 1, "timeout_s": 300.0}
    assert dict(run_apart(eval, tasks, **limits, until=time.monotonic() + 1.0)) == {tasks[0]: None}
    assert list(run_apart(eval, tasks, **limits, until=time.monotonic() - 1.0)) == []
