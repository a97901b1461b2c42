"""Measuring processes, dask workers and schedulers that are killed or stop in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fake_runner
import pytest
from by_name import choice
from waiting import wait_until

from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention
from neptune_lab.pipeline import compile_choice
from neptune_lab.runtime.gpu_worker import GpuWorker
from neptune_lab.runtime.process import ChildProcess, ProcessKilled
from neptune_lab.tuning import dask_workers
from neptune_lab.tuning.clock import within
from neptune_lab.tuning.dask_workers import DaskWorkers
from neptune_lab.tuning.measuring import task_of
from neptune_lab.tuning.workers import WorkersLost

LONG = 120.0


@pytest.fixture(scope="module")
def small():
    return attention.causal(heads=2, kv_heads=1, seq=32, head_dim=16)


@pytest.fixture(scope="module")
def task(small):
    return task_of(small)


@pytest.fixture(scope="module")
def spec(small):
    def make(warps: int):
        return compile_choice(small, choice("rolling_update", block_q=16, block_kv=16, num_warps=warps)).spec

    made = {warps: make(warps) for warps in (fake_runner.FAST, fake_runner.HANGS)}
    return made.__getitem__


# -- a process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def child():
    made = ChildProcess()
    yield made
    made.close()


@pytest.mark.nightly
def test_a_process_killed_between_two_calls_is_replaced(child):
    before = child.call("os:getpid")
    os.kill(before, signal.SIGKILL)
    child._process.wait(LONG)
    assert child.call("os:getpid", timeout=LONG) != before


@pytest.mark.nightly
def test_or_said_where_it_held_something(child):
    os.kill(child.call("os:getpid"), signal.SIGKILL)
    child._process.wait(LONG)
    with pytest.raises(ProcessKilled, match="killed between two calls"):
        child.call("os:getpid", restart=False)
    assert child.call("os:getpid", restart=False)


def when_it_sleeps(begun: Path, act) -> str:
    """Does something when `fake_runner:sleep`, called with what is returned, has begun."""

    def run():
        wait_until(begun.exists)
        act()

    threading.Thread(target=run).start()
    return str(begun)


@pytest.mark.nightly
def test_a_process_killed_during_a_call_is_told_from_one_that_crashed(child, tmp_path):
    pid = child.call("os:getpid")
    begun = when_it_sleeps(tmp_path / "first", lambda: os.kill(pid, signal.SIGKILL))
    with pytest.raises(ProcessKilled, match="status -9"):
        child.call("fake_runner:sleep", begun, timeout=LONG)
    with pytest.raises(MeasureError, match="status -11") as crashed:
        child.call("signal:raise_signal", signal.SIGSEGV)
    assert not isinstance(crashed.value, ProcessKilled)
    begun = when_it_sleeps(tmp_path / "second", child.kill)
    with pytest.raises(MeasureError, match="status -9") as ours:
        child.call("fake_runner:sleep", begun, timeout=LONG)
    assert not isinstance(ours.value, ProcessKilled)


@pytest.mark.nightly
def test_a_stopped_process_takes_no_longer_than_its_time(child):
    """It reads nothing, so that a large argument does not even fit the pipe."""
    os.kill(child.call("os:getpid"), signal.SIGSTOP)
    with pytest.raises(MeasureError, match=r"took longer than 0\.5 s"):
        child.call("builtins:len", b"x" * 10_000_000, timeout=0.5)
    assert child.call("builtins:len", "four", timeout=LONG) == 4


@pytest.mark.nightly
def test_a_process_that_cannot_be_started_is_said(child, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    files = len(os.listdir("/proc/self/fd")) if Path("/proc").exists() else 0
    with monkeypatch.context() as patch:
        patch.setattr("neptune_lab.runtime.process.subprocess.Popen", refuse)
        with pytest.raises(MeasureError, match="no process can be started: Resource temporarily unavailable"):
            child.call("os:getpid")
    if files:
        assert len(os.listdir("/proc/self/fd")) == files
    assert child.call("os:getpid")


def test_a_kill_before_the_start_is_not_lost(child):
    child.kill()
    with pytest.raises(MeasureError, match="status -9"):
        child.call("time:sleep", LONG)


def test_a_call_that_nobody_answers_is_left():
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, threading.Event().wait, LONG)
    with pytest.raises(ZeroDivisionError):
        within(LONG, lambda: 1 // 0)
    assert within(LONG, lambda: 7) == 7


# -- a GPU worker ----------------------------------------------------------------------------------------------------


def pid_of(child: ChildProcess) -> int:
    assert child._process is not None
    return child._process.pid


def killed_while_it_measures(gpu_worker, log, times):
    """Kills the measuring process when it has begun on a kernel that hangs, so often."""

    def begun():
        return len(log.read_text().split()) if log.exists() else 0

    def run():
        for n in range(times):
            end = time.monotonic() + LONG
            while begun() <= n and time.monotonic() < end:
                time.sleep(0.02)
            os.kill(pid_of(gpu_worker._measuring), signal.SIGKILL)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.nightly
def test_a_measuring_process_that_is_killed_gets_one_more_try(task, spec, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_RUNNER_LOG", str(log))
    gpu_worker = GpuWorker(None, 1, "fake_runner", measure_seconds=LONG)
    try:
        assert gpu_worker.measure(task, spec(fake_runner.FAST)).us == 10.0
        log.unlink()
        # Idle: the next candidate does not suffer for it, though inputs and reference were there.
        os.kill(pid_of(gpu_worker._measuring), signal.SIGKILL)
        gpu_worker._measuring._process.wait(LONG)
        assert gpu_worker.measure(task, spec(fake_runner.FAST)).us == 10.0
        log.unlink()
        # Killed twice: it may be the candidate's doing, such as all of the machine's memory.
        thread = killed_while_it_measures(gpu_worker, log, 2)
        found = gpu_worker.measure(task, spec(fake_runner.HANGS))
        thread.join()
        assert found.failure == "measuring: the process ended with status -9"
        assert log.read_text().split() == [str(fake_runner.HANGS)] * 2
        assert gpu_worker.measure(task, spec(fake_runner.FAST)).us == 10.0
        # Ended by us: no second try.
        log.unlink()
        thread = threading.Timer(1.0, gpu_worker.kill)
        thread.start()
        with pytest.raises(MeasureError, match="the run has ended"):
            gpu_worker.measure(task, spec(fake_runner.HANGS))
        with pytest.raises(MeasureError, match="the worker was ended"):
            gpu_worker.remeasure(task, [spec(fake_runner.FAST)])
    finally:
        gpu_worker.close()


# -- dask -----------------------------------------------------------------------------------------------------------


class Cluster:
    """A scheduler and workers as processes of their own, without nannies that would start them again."""

    def __init__(self, folder: Path, log: Path) -> None:
        pytest.importorskip("dask.distributed")
        self.folder, self.started = folder, []
        self.env = {**os.environ, "FAKE_RUNNER_LOG": str(log)}
        self.env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        found = folder / "scheduler.json"
        self.scheduler = self._start("distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", found=found)

    def _start(self, module: str, *arguments: str, found: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, *arguments, "--scheduler-file", str(found)]
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(command, env=self.env, cwd=self.folder, stdout=output, stderr=output)
        self.started.append(process)
        self.found = found
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        arguments = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--death-timeout", "60")
        return self._start("distributed.cli.dask_worker", *arguments, found=self.found)

    @property
    def address(self) -> str:
        import json

        end = time.monotonic() + LONG
        while time.monotonic() < end:
            if self.found.exists() and (text := self.found.read_text()):
                return json.loads(text)["address"]
            time.sleep(0.05)
        raise AssertionError((self.folder / "output").read_text())

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait(LONG)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def cluster(tmp_path, log, monkeypatch):
    monkeypatch.setattr(dask_workers, "LOST_SECONDS", 1.0)
    monkeypatch.setattr(dask_workers, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(dask_workers, "ASK_SECONDS", 3.0)
    made = Cluster(tmp_path, log)
    yield made
    made.close()


def when_it_measures(log: Path, act) -> threading.Thread:
    """Does something when a kernel that hangs has begun on a worker."""

    def run():
        end = time.monotonic() + LONG
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["workers", "scheduler"])
def test_workers_or_a_scheduler_that_die_end_the_call(cluster, log, task, spec, victim):
    worker = cluster.worker()
    workers = DaskWorkers(cluster.address, "fake_runner")
    try:
        dead = worker if victim == "workers" else cluster.scheduler
        thread = when_it_measures(log, dead.kill)
        with pytest.raises(WorkersLost, match=r"the workers of tcp://.* are lost") as lost:
            workers.measure(task, spec(fake_runner.HANGS))
        thread.join()
        assert "what was measured so far is kept" in (lost.value.help or "")
        with pytest.raises(WorkersLost):
            workers.remeasure(task, [spec(fake_runner.FAST)])
        with pytest.raises(WorkersLost):
            workers.facts()
        workers.drain()
        workers.kill()
    finally:
        workers.close()


@pytest.mark.nightly
def test_another_worker_takes_over(cluster, log, task, spec):
    first = cluster.worker()
    workers = DaskWorkers(cluster.address, "fake_runner")
    try:
        found: list = []

        def measure():
            found.append(workers.measure(task, spec(fake_runner.FAST)))

        assert workers.facts().triton
        cluster.worker()
        workers._client.wait_for_workers(2, timeout=LONG)
        first.kill()
        measure()
        assert [m.us for m in found] == [10.0]
    finally:
        workers.close()


@pytest.mark.nightly
def test_a_kill_ends_what_a_worker_measures(cluster, log, task, spec):
    cluster.worker()
    workers = DaskWorkers(cluster.address, "fake_runner")
    try:
        thread = when_it_measures(log, workers.kill)
        with pytest.raises(MeasureError, match=r"the run has ended|status -9"):
            workers.measure(task, spec(fake_runner.HANGS))
        thread.join()
    finally:
        workers.close()
