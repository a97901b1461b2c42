"""The tuner beside full disks, locked files and dying workers: nothing measured is lost, nothing outlasts its time."""

from __future__ import annotations

import importlib
import os
import signal
import sqlite3
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
import typer
from by_name import choice
from devices import H200
from listed import Listed
from typer.testing import CliRunner

from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention
from neptune_lab.records import RecordsWarning, Store, read
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.process import ProcessKilled
from neptune_lab.tuning.command import tune_command
from neptune_lab.tuning.tune import tune
from neptune_lab.tuning.workers import WorkersLost

# Seconds; the end of a wait that succeeds at once unless the tested code is wrong.
LONG = 60.0
FULL = MeasureError("database or disk is full", help="free some space")


@pytest.fixture(scope="module")
def small():
    return attention.causal(heads=2, kv_heads=1, seq=32, head_dim=16)


@pytest.fixture(scope="module")
def candidates():
    return [choice("rolling_update", block_q=q, block_kv=kv) for q in (8, 16) for kv in (16, 32)]


class Bench:
    """Workers that answer with 10, 11, 12… microseconds, unless `faults` has something to do for the n-th question."""

    size = 1

    def __init__(self, **faults):
        self.faults = {int(name.strip("at_")): fault for name, fault in faults.items() if name != "again"}
        self.again = faults.get("again")
        self.count, self.asked_facts, self.killed = 0, 0, threading.Event()

    def facts(self):
        self.asked_facts += 1
        return H200

    def measure(self, task, spec):
        number, self.count = self.count, self.count + 1
        if number in self.faults:
            self.faults[number](self)
        us = 10.0 + number
        return Measurement(us, us, us, 1e-4)

    def drain(self):
        pass

    def kill(self):
        self.killed.set()

    def remeasure(self, task, specs):
        if self.again is None:
            raise MeasureError("not measured again")
        return self.again(self, specs)


class SetClock:
    """A clock that goes on only when a test says so."""

    time = 100.0

    def now(self):
        return self.time

    def get(self, results, until):
        while results.empty() and self.time < until:
            time.sleep(0.001)
        return results.get_nowait()


class Here:
    """Stands for `ChildProcess`: TVM takes seconds to load in another one."""

    killed_calls = 0

    def __init__(self, env=None, preload=()):
        pass

    def call(self, function, *args, timeout=None):
        if Here.killed_calls:
            Here.killed_calls -= 1
            raise ProcessKilled("the process ended with status -9")
        module, _, name = function.partition(":")
        return getattr(importlib.import_module(module), name)(*args)

    def kill(self):
        pass

    close = start = kill


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr("neptune_lab.runtime.process.ChildProcess", Here)
    monkeypatch.setattr(Here, "killed_calls", 0)


@pytest.fixture(autouse=True)
def temporary_files(tmp_path, monkeypatch):
    """Rescued records go here."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("neptune_lab.tuning.record_writer.tempfile.gettempdir", lambda: str(folder))
    monkeypatch.chdir(folder)
    return folder


class FullStore(Store):
    """Refuses to store from the n-th time on, until so many refusals have been."""

    def __init__(self, path, at, refusals=10**9):
        super().__init__(path)
        self.at, self.refusals, self.count = at, refusals, 0

    def put(self, *records, patience=None):
        number, self.count = self.count, self.count + 1
        if self.at <= number < self.at + self.refusals:
            raise FULL
        super().put(*records, patience=patience)


def run(small, store, candidates, workers, **more):
    return tune(small, search=Listed(*candidates), workers=workers, store=store, progress=False, **more)


@pytest.mark.nightly
def test_a_disk_that_is_full_at_any_write_loses_nothing(small, candidates, tmp_path):
    for at in range(len(candidates) + 1):
        store = FullStore(tmp_path / f"{at}.sqlite", at)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            result = run(small, store, candidates, Bench())
        said = [str(w.message) for w in heard if w.category is RecordsWarning]
        assert [r.us for r in result.records] == [10.0, 11.0, 12.0, 13.0]
        assert (result.refused, result.lost, result.ended) == (0, 0, "converged")
        stored = Store(store.path).find()
        if at == len(candidates):
            assert (said, result.unsaved, result.rescued) == ([], (), None)
            continue
        assert len(stored) == at
        assert f"{4 - at} of the measurements are not in the records" in str(result)
        assert "measurements cannot be stored, and are kept in memory: database or disk is full" in said[0]
        assert f"{4 - at} measurements could not be stored in {store.path}" in said[-1]
        assert f"neptune-lab records --load {result.rescued}" in said[-1]
        assert result.rescued is not None
        assert Store(store.path).load(result.rescued) == 4 - at
        assert Store(store.path).find() == result.records
        result.rescued.unlink()


def test_what_a_disk_refuses_for_a_while_is_stored_later(small, candidates, tmp_path, temporary_files):
    store = FullStore(tmp_path / "records.sqlite", at=1, refusals=2)
    with pytest.warns(RecordsWarning, match="kept in memory") as heard:
        result = run(small, store, candidates, Bench())
    assert len(heard) == 1
    assert (result.unsaved, result.rescued) == ((), None)
    assert store.find() == result.records
    assert os.listdir(temporary_files) == []


def test_where_no_file_can_be_written_the_result_has_the_records(small, candidates, tmp_path, monkeypatch):
    def refuse(*_):
        raise FULL

    monkeypatch.setattr("neptune_lab.tuning.record_writer.write_text", refuse)
    store = FullStore(tmp_path / "records.sqlite", at=0)
    with pytest.warns(RecordsWarning, match=r"in memory only; save them with result\.export"):
        result = run(small, store, candidates, Bench())
    assert len(result.unsaved) == 4
    assert read(result.export(tmp_path / "all.json")) == result.records


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rescued", [True, False])
def test_the_command_does_not_end_as_if_all_were_well(small, candidates, tmp_path, monkeypatch, rescued):
    from neptune_lab.cli import with_operator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(small, FullStore(tmp_path / "r", at=2), candidates, Bench())
    found = SimpleNamespace(unsaved=result.unsaved, rescued=result.rescued if rescued else None)
    monkeypatch.setattr("neptune_lab.tuning.tune.tune", lambda op, **more: found)
    app = typer.Typer()
    app.command("tune")(with_operator(tune_command))
    done = CliRunner().invoke(app, ["attention.causal", "--seq", "32"])
    assert done.exit_code == 1
    assert ('"records": [' in done.stdout) == (not rescued)


def junk(path):
    path.write_bytes(b"this is no database" * 1000)


def folder(path):
    path.mkdir()


def lock(path):
    Store(path).check()
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("pragma locking_mode = exclusive")
    db.execute("begin exclusive")
    db.execute("create table taken (x)")
    return db


@pytest.mark.parametrize("breaks", [junk, folder, lock])
def test_records_that_cannot_be_kept_are_found_out_before_anything_is_measured(small, candidates, tmp_path, breaks):
    path = tmp_path / "records.sqlite"
    held = breaks(path)
    workers = Bench()
    with pytest.raises(MeasureError, match=r"the records in .*records\.sqlite cannot be used") as error:
        run(small, Store(path), candidates, workers, seconds=1.0)
    assert error.value.help
    assert workers.asked_facts == workers.count == 0
    if held is not None:
        held.close()


@pytest.mark.nightly
def test_a_file_locked_in_the_middle_costs_no_measurement(small, candidates, tmp_path):
    path, held = tmp_path / "records.sqlite", []
    workers = Bench(at_1=lambda _: held.append(lock(path)))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = run(small, Store(path), candidates, workers, seconds=LONG)
    held[0].close()
    assert any("locked" in str(w.message) and "another process" in str(w.message) for w in heard)
    assert [r.us for r in result.records] == [10.0, 11.0, 12.0, 13.0]
    assert result.rescued is not None
    assert len(result.unsaved) == Store(path).load(result.rescued) == 3
    assert Store(path).find() == result.records


def lose(_):
    raise WorkersLost("the workers of tcp://made-up are lost", help="start them again")


def test_lost_workers_end_the_run_with_what_there_is(small, candidates, tmp_path):
    store = Store(tmp_path / "records.sqlite")
    with pytest.warns(RuntimeWarning, match="the run ended early: the workers of tcp://made-up are lost"):
        result = run(small, store, candidates, Bench(at_2=lose))
    assert (result.ended, result.refused, result.lost) == ("workers lost", 0, 1)
    assert [r.us for r in result.records] == [10.0, 11.0]
    assert store.find() == result.records


def test_workers_lost_at_once_are_an_error(small, candidates, tmp_path):
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(MeasureError, match=r"\(workers lost\): 1 times: the workers of tcp:.*\n.*start the workers"),
    ):
        run(small, Store(tmp_path / "records.sqlite"), candidates, Bench(at_0=lose))


def hang(clock, forward):
    """Waits until it is killed; the clock goes on meanwhile."""

    def wait(workers, *_):
        clock.time += forward
        assert workers.killed.wait(LONG), "nobody ended what hangs"
        raise MeasureError("the process ended with status -9")

    return wait


def test_what_hangs_on_a_gpu_is_ended_with_the_budget(small, candidates, tmp_path):
    clock, store = SetClock(), Store(tmp_path / "records.sqlite")
    result = run(small, store, candidates, Bench(at_2=hang(clock, 100.0)), seconds=100.0, clock=clock)
    assert (result.ended, result.seconds) == ("time", 100.0)
    assert [r.us for r in store.find()] == [10.0, 11.0]


def test_what_hangs_in_the_second_measurement_is_ended_with_the_budget(small, candidates, tmp_path):
    clock, store = SetClock(), Store(tmp_path / "records.sqlite")
    result = run(small, store, candidates, Bench(again=hang(clock, 100.0)), seconds=100.0, clock=clock)
    assert (result.ended, result.seconds) == ("converged", 100.0)
    assert [r.us for r in store.find()] == [10.0, 11.0, 12.0, 13.0]


def interrupt(*_):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(0.01)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_the_second_measurement_keeps_the_first(small, candidates, tmp_path):
    def again(workers, specs):
        interrupt()
        assert workers.killed.wait(LONG)
        raise MeasureError("ended")

    store = Store(tmp_path / "records.sqlite")
    result = run(small, store, candidates, Bench(again=again))
    assert (result.ended, result.best.us) == ("interrupted", 10.0)
    assert store.find() == result.records


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_twice_waits_for_nothing(small, candidates, tmp_path):
    def twice(workers):
        interrupt()
        while not workers.killed.wait(0.05):
            interrupt()
        raise MeasureError("ended")

    store = Store(tmp_path / "records.sqlite")
    result = run(small, store, candidates, Bench(at_2=twice))
    assert (result.ended, len(result.records)) == ("interrupted", 2)
    assert store.find() == result.records


def test_an_error_that_is_not_ours_is_seen_and_loses_nothing(small, candidates, tmp_path):
    def bug(_):
        raise ZeroDivisionError("a bug")

    store = Store(tmp_path / "records.sqlite")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(small, store, candidates, Bench(at_2=bug))
    assert [r.us for r in store.find()] == [10.0, 11.0]


@pytest.mark.parametrize(("times", "lost"), [(1, 0), (2, 1)])
def test_a_compiling_process_that_is_killed_gets_one_more_try(small, candidates, tmp_path, times, lost):
    Here.killed_calls = times
    result = run(small, Store(tmp_path / "records.sqlite"), candidates, Bench())
    assert (len(result.records), result.lost, result.refused) == (4 - lost, lost, 0)
