"""Processes that crash and hang, GPU workers, and workers behind a real dask scheduler."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import fake_runner
import pytest
from devices import A100, H200
from fake_tuning import Here
from waiting import LONG, wait_until

from neptune_lab.errors import MeasureError
from neptune_lab.pipeline import compile_choice
from neptune_lab.runtime.gpu_worker import GpuWorker, visible_gpu
from neptune_lab.runtime.process import ChildProcess
from neptune_lab.tuning.dask_workers import DaskWorkers
from neptune_lab.tuning.measuring import task_of
from neptune_lab.tuning.workers import LocalWorkers, local, same_device


@pytest.fixture
def child():
    made = ChildProcess({"SPOKEN": "yes"})
    yield made
    made.close()


@pytest.mark.nightly
def test_a_call_in_another_process(child):
    there = child.call("os:getpid")
    assert there != os.getpid()
    assert child.call("os:getpid") == there  # kept
    assert child.call("os:getenv", "SPOKEN") == "yes"
    assert child.call("builtins:print", "what is printed does not come between") is None
    assert child.call("builtins:sorted", [3, 1, 2]) == [1, 2, 3]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("builtins:int", "x"), r"ValueError: invalid literal"),
        (("os:_exit", 3), "ended with status 3"),
        (("signal:raise_signal", signal.SIGSEGV), "ended with status -11"),
        (("time:sleep", 3600), "took longer than 0.5 s"),
        (("no_such_module:f",), "ModuleNotFoundError"),
    ],
    ids=["raises", "exits", "crashes", "hangs", "is not there"],
)
def test_whatever_happens_there_is_an_error_here_and_the_next_call_works(child, call, said):
    child.call("os:getpid")
    with pytest.raises(MeasureError, match=said):
        child.call(*call, timeout=0.5 if call[0] == "time:sleep" else LONG)
    assert child.call("builtins:len", "four") == 4


def test_what_a_process_printed_last_is_told(child):
    with pytest.raises(MeasureError, match="Fatal Python error: Aborted"):
        child.call("fake_runner:abort")


def test_a_call_can_be_ended_from_another_thread(child, tmp_path):
    begun = tmp_path / "begun"

    def end():
        wait_until(begun.exists)
        child.kill()

    threading.Thread(target=end).start()
    with pytest.raises(MeasureError, match="status -9"):
        child.call("fake_runner:sleep", str(begun), timeout=LONG)


def test_each_gpu_worker_sees_its_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [visible_gpu(n) for n in (0, 3)] == ["0", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-a1b2")
    assert [visible_gpu(n) for n in (0, 1)] == ["4", "GPU-a1b2"]


def test_workers_have_one_kind_of_gpu():
    assert same_device([H200, H200]) is H200
    with pytest.raises(MeasureError, match=r"NVIDIA H200.*NVIDIA A100"):
        same_device([H200, A100])


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="there is a GPU")
def test_no_gpu_is_said_at_once():
    with pytest.raises(MeasureError, match=r"no GPU here[\s\S]*bundle"):
        local()


def measured(workers, small, with_warps, warps):
    return workers.measure(task_of(small), compile_choice(small, with_warps(warps)).spec)


@pytest.mark.nightly
def test_a_gpu_worker_survives_its_candidates(gpu_worker, small, with_warps):
    assert "status -11" in measured(gpu_worker, small, with_warps, fake_runner.COMPILER_CRASHES).failure
    assert "status -11" in measured(gpu_worker, small, with_warps, fake_runner.CRASHES).failure
    assert "illegal memory access" in measured(gpu_worker, small, with_warps, fake_runner.RAISES).failure
    assert measured(gpu_worker, small, with_warps, fake_runner.WRONG).failure.startswith("wrong: relative error")
    assert measured(gpu_worker, small, with_warps, fake_runner.FAST).us == fake_runner.TIMES[fake_runner.FAST]


@pytest.mark.nightly
def test_a_hanging_candidate_is_ended(small, with_warps):
    gpu_worker = GpuWorker(None, 1, "fake_runner", measure_seconds=2)
    try:
        assert "took longer than 2 s" in measured(gpu_worker, small, with_warps, fake_runner.HANGS).failure
    finally:
        gpu_worker.close()


def test_two_gpu_workers_share_the_candidates(monkeypatch):
    """Both GPUs are at work at once: each call waits for the other."""
    both = threading.Barrier(2, timeout=LONG)

    class Waiting(GpuWorker):
        def start(self):
            pass

        def measure(self, task, spec):
            both.wait()
            return self

    gpu_workers = [Waiting(n, 1) for n in range(2)]
    workers = LocalWorkers(gpu_workers)
    assert workers.size == 4
    found = []
    threads = [threading.Thread(target=lambda: found.append(workers.measure(None, None))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {found.count(s) for s in gpu_workers} == {2}


def test_a_drained_gpu_worker_gives_candidates_up(small, with_warps):
    gpu_worker = GpuWorker(None, 1, "fake_runner")
    gpu_worker.drain()
    with pytest.raises(MeasureError, match="the run has ended"):
        measured(gpu_worker, small, with_warps, fake_runner.FAST)


def gpu_worker_of():
    import neptune_lab.tuning.dask_workers

    return neptune_lab.tuning.dask_workers._gpu_worker


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and a worker in threads, with messages as between machines; `faults/` has processes, which die."""
    distributed = pytest.importorskip("dask.distributed")
    more = {"processes": False, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, **more) as made:
        yield made


def test_measuring_through_a_scheduler(cluster, small, with_warps, monkeypatch):
    monkeypatch.setattr("neptune_lab.runtime.process.ChildProcess", Here)
    monkeypatch.setattr("neptune_lab.runtime.gpu_worker.ChildProcess", Here)
    monkeypatch.setattr("neptune_lab.tuning.dask_workers.CONNECT_SECONDS", LONG)
    workers = DaskWorkers(cluster.scheduler_address, "fake_runner")
    try:
        assert workers.size == 2
        assert workers.facts().triton
        assert measured(workers, small, with_warps, fake_runner.WRONG).failure.startswith("wrong: relative error")
        assert measured(workers, small, with_warps, fake_runner.FAST).us == 10.0
        again = workers.remeasure(task_of(small), [compile_choice(small, with_warps(fake_runner.SLOW)).spec])
        assert [m.us for m in again] == [19.0]
        workers.drain()
        with pytest.raises(MeasureError, match="the run has ended"):
            measured(workers, small, with_warps, fake_runner.FAST)
    finally:
        workers.close()
    with cluster.get_client() as client:  # the next run finds the workers as they were
        assert set(client.run(gpu_worker_of).values()) == {None}


class Future:
    """Its first wait times out, and its result, `result`, takes another one to arrive; an error comes at once."""

    def __init__(self, result: object) -> None:
        self.waits, self._result = 0, result

    @property
    def status(self) -> str:
        return "pending" if self.waits == 0 else "error" if isinstance(self._result, Exception) else "finished"

    def result(self, timeout: float) -> object:
        self.waits += 1
        if isinstance(self._result, Exception) and self.waits > 1:
            raise self._result
        if self.waits < 3:
            raise TimeoutError(f"timed out after {timeout} s")
        return self._result


def test_a_result_that_arrives_after_the_wait_for_it_is_taken():
    workers = DaskWorkers.__new__(DaskWorkers)
    workers._client, workers._ended = SimpleNamespace(nthreads=lambda: {"tcp://worker": 1}), threading.Event()
    assert workers._answer(Future("measured")) == "measured"
    failed = Future(TimeoutError("of its own"))
    with pytest.raises(MeasureError, match="the worker failed: of its own"):
        workers._answer(failed)
    assert failed.waits == 2


def test_no_scheduler_is_said(monkeypatch):
    pytest.importorskip("dask.distributed")
    monkeypatch.setattr("neptune_lab.tuning.dask_workers.CONNECT_SECONDS", 0.5)
    with pytest.raises(MeasureError, match=r"no workers at tcp://127\.0\.0\.1:1"):
        DaskWorkers("tcp://127.0.0.1:1")
