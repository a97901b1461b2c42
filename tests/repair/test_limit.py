"""The time limit of the algebra: it ends what takes too long, in any thread, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import mpmath
import pytest
import sympy

import neptune_lab
from neptune_lab.errors import RepairError
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.outcome_cache import clear_outcomes
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.operators import softmax
from neptune_lab.repair import limit, prove_supplied, solve, solve_vector, text, time_limit
from neptune_lab.repair.limit import limited, thread_clock

LONG = 120.0


def steps(*times: float):
    """A clock that reads these times, then the last one."""
    left = itertools.chain(times, itertools.repeat(times[-1]))
    return lambda: next(left)


def forever() -> None:
    while True:
        sum(range(100))


def test_what_takes_no_time_is_what_it_is():
    assert limited(lambda: 7, "x") == 7
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 // 0, "x")


def test_a_call_that_never_ends_is_ended():
    with pytest.raises(RepairError, match="no answer within 10 s of processor time") as error:
        limited(forever, "(c + r)**100", clock=steps(0.0, 1.0, 2.0, 3.0, 11.0))
    assert (error.value.step, error.value.expression) == ("time", "(c + r)**100")
    assert "repair.time_limit(60)" in (error.value.help or "")


def test_in_any_thread():
    found: list[str] = []

    def work() -> None:
        try:
            limited(forever, "g", clock=steps(0.0, 0.0, 11.0))
        except RepairError as error:
            found.append(error.step)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert found == ["time"] * 3


def test_what_swallows_the_exception_is_told_again():
    swallowed = []

    def stubborn() -> str:
        for _ in range(3):
            try:
                forever()
            except BaseException as error:  # noqa: BLE001 - this is what is tested
                swallowed.append(type(error).__name__)
        return "done all the same"

    assert limited(stubborn, "g", clock=steps(0.0, 0.0, 11.0)) == "done all the same"
    assert swallowed == ["Expired"] * 3


class Finalized:
    """Its `__del__` runs `work`, and what is raised there goes no further."""

    def __init__(self, work):
        self.work = work

    def __del__(self):
        self.work()


def collected(work) -> None:
    def callback(phase: str, info: object) -> None:
        if phase == "start":
            work()

    gc.callbacks.append(callback)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(callback)


def weakly(work) -> None:
    """In the file of weakref, as a callback of a WeakValueDictionary is."""

    def run() -> None:
        work()

    weakref.finalize(threading.Event(), run)()


CALLBACKS = {"finalizer": Finalized, "garbage collector": collected, "weak reference": weakly}


@pytest.mark.nightly
@pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS)
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_raised_in_a_callback_of_python_s(callback):
    """Python would print it and drop it: the call behind the callback goes on."""
    gc.collect()  # what earlier tests left would be freed in the call, by code that lets other threads run
    looks, looked, ended = itertools.count(), threading.Event(), []

    def clock() -> float:
        look = next(looks)
        if look == 10:
            looked.set()
        return 11.0 if look > 2 else 0.0

    def work() -> None:
        ended.append(looked.wait(LONG))

    def call() -> None:
        callback(work)
        forever()

    with pytest.raises(RepairError, match="no answer"):
        limited(call, "g", clock=clock)
    assert ended == [True]


def test_no_except_exception_takes_it():
    def careless() -> None:
        while True:
            with contextlib.suppress(Exception):
                forever()

    with pytest.raises(RepairError):
        limited(careless, "g", clock=steps(0.0, 0.0, 11.0))


def test_a_limit_around_another_one_ends_its_own_call():
    def outer() -> None:
        limited(forever, "inner")

    with pytest.raises(RepairError) as error:
        limited(outer, "outer", clock=steps(0.0, 0.0, 11.0))
    assert error.value.expression == "outer"


def test_stopped_from_another_thread():
    stop, begun = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        forever()

    def press() -> None:
        begun.wait(LONG)
        stop.set()

    thread = threading.Thread(target=press)
    thread.start()
    with time_limit(math.inf, stop), pytest.raises(RepairError, match="the derivation was stopped"):
        limited(call, "g")
    thread.join()
    with time_limit(math.inf, stop), pytest.raises(RepairError, match="the derivation was stopped"):
        limited(lambda: 7, "g")


def race(late: float) -> str:
    """A call that ends by itself after `late` seconds, while its time is over as soon as it has begun."""
    began, now = threading.Event(), thread_clock()
    start = now()

    def call() -> str:
        began.set()
        while now() - start < late:
            pass
        return "answer"

    try:
        return limited(call, "g", clock=lambda: 11.0 if began.is_set() else 0.0)
    except RepairError as error:
        return error.step


def test_nothing_is_left_behind_whenever_it_strikes():
    """It is the answer or the refusal, and nothing is raised later."""
    rng, ends = random.Random(0), []
    for _ in range(300):
        with time_limit(1e-5):
            ends.append(race(rng.random() * 2e-4))
        sum(range(1000))  # what is sent late would be raised here
    assert set(ends) <= {"answer", "time"}


@pytest.mark.nightly
def test_a_large_power_ends_and_is_not_remembered():
    for solver in (solve, solve_vector):
        with time_limit(0.3), pytest.raises(RepairError) as error:
            solver("sum", "(c + r)**2000", "r")
        assert error.value.step == "time"
    with time_limit(0), pytest.raises(RepairError, match="no answer within 0 s"):
        solve("sum", "exp(c - 3*r)", "r")
    assert text(solve("sum", "exp(c - 3*r)", "r").h) == "t*exp(3*r - 3*r')"
    with time_limit(0), pytest.raises(RepairError, match="no answer within 0 s"):
        prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_before)/exp(r_now)")


def test_a_schedule_says_which_step_took_too_long():
    clear_outcomes()  # (a step that an earlier test applied takes no time)
    schedule = Schedule(softmax.figure1(rows=4, cols=8))
    with time_limit(0), pytest.raises(RepairRefused, match=r"step 'time' failed: no answer within 0 s") as error:
        schedule.rolling_update("s_sum", "s_max.j")
    assert "time_limit(60)" in (error.value.help or "")
    assert schedule.steps == ()
    schedule.rolling_update("s_sum", "s_max.j")


def test_an_interrupt_while_it_ends_leaves_nothing_to_come(monkeypatch: pytest.MonkeyPatch):
    """Ctrl+C between the answer and the end of the watch: the watch is over, and sends nothing to other code."""
    late = threading.Event()

    def interrupted(watch: object) -> None:
        monkeypatch.setattr(limit._Watch, "receive", lambda watch: None)
        raise KeyboardInterrupt

    monkeypatch.setattr(limit._Watch, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limited(lambda: 7, "g", clock=lambda: 11.0 if late.is_set() else 0.0)
    late.set()
    for thread in threading.enumerate():
        if thread.name == "neptune_lab time limit":
            thread.join(LONG)
            assert not thread.is_alive()


PROFILED = """
import sys
from neptune_lab.repair import solve
solve("sum", "exp(c - r)", ["r"])
events = []
sys.setprofile(lambda frame, event, argument: events.append(event))
(lambda: 0)()
sys.setprofile(None)
assert "call" in events
"""


@pytest.mark.nightly
def test_a_profiler_works_after_a_question():
    """Python 3.11 never got past the first function call where an exception had been taken back."""
    subprocess.run([sys.executable, "-c", PROFILED], check=True, timeout=LONG)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "10", None, True])
def test_limits_that_are_none(wrong):
    with pytest.raises(RepairError, match=r"seconds=.*: expected a number that is not negative"), time_limit(wrong):
        pass


ALONE = """
import contextlib, sys, threading, time

def none(*_):
    raise RuntimeError("can't start new thread")

threading.Thread.start = none
from neptune_lab.repair import RepairError, solve, text, time_limit

def refused(call):
    try:
        call()
    except RepairError as error:
        return error.step, error.reason

with time_limit(0.5):
    print(refused(lambda: solve("sum", "(c + r)**300", "r")))
print(text(solve("sum", "exp(c - r)", "r").h))
stop, began = threading.Event(), time.monotonic()
stop.is_set = lambda: time.monotonic() > began + 0.5
with time_limit(1e9, stop):
    print(refused(lambda: solve("sum", "(c + r)**300", "r")))
print(sys.monitoring.get_tool(4))
"""


@pytest.mark.nightly
def test_without_threads_the_solving_thread_watches_itself():
    """As in a browser, where Python 3.13 has no threads."""
    pythons = (sys.executable, "python3.13", "python3.12")
    newer = (path for path in map(shutil.which, pythons) if path and _has_monitoring(path))
    python = next(newer, None)
    if python is None:
        pytest.skip("no Python 3.12 or later here, which has sys.monitoring")
    # SymPy is plain Python: another Python reads this one's.
    packages = [str(Path(module.__file__ or "").parents[1]) for module in (neptune_lab, sympy, mpmath)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([python, "-c", ALONE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    slow, solved, stopped, tool = done.stdout.splitlines()
    assert slow.startswith("('time', 'no answer within 0.5 s of processor time")
    assert solved == "t*exp(r - r')", "the next question is answered"
    assert stopped == "('time', 'the derivation was stopped')"
    assert tool == "None", "nothing watches any more"


def _has_monitoring(python: str) -> bool:
    return not subprocess.run([python, "-c", "import sys; sys.monitoring"], capture_output=True).returncode
