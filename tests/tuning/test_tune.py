"""The tuner's loop: what is asked, measured, told and kept; with a GPU worker only where processes matter."""

from __future__ import annotations

import signal
import threading
import time

import fake_runner
import pytest
from by_name import choice
from devices import H200
from listed import Listed
from waiting import LONG

from neptune_lab.errors import MeasureError, TuneError
from neptune_lab.pipeline import compile_choice
from neptune_lab.records import Store, best
from neptune_lab.runtime import Resources
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.target import Target
from neptune_lab.tuning.measuring import source_hash
from neptune_lab.tuning.tune import default_search, tune
from neptune_lab.tuning.workers import LocalWorkers


class Sheet:
    """Workers that give what a function of the kernel's source says, at once and in this process."""

    def __init__(self, answer, size=1, again=None):
        self.answer, self.size, self.seen, self.turns = answer, size, [], []
        self.again, self.drained = again, threading.Event()

    def facts(self):
        return H200

    def measure(self, task, spec):
        self.seen.append(source_hash(spec.text))
        found = self.answer(spec)
        return (
            found
            if isinstance(found, Measurement)
            else Measurement(found, found, found, 1e-4, (Resources("k", 1, 0, 0, 4),))
        )

    def drain(self):
        self.drained.set()

    def kill(self):
        raise AssertionError("nothing here outlasts its time")

    def remeasure(self, task, specs):
        self.turns.append([source_hash(s.text) for s in specs])
        if self.again is None:
            raise MeasureError("the worker was lost")
        return tuple(Measurement(us, us, us) for us in self.again[: len(specs)])

    def close(self):
        raise AssertionError("the caller's own workers stay open")


class SetClock:
    """A clock that goes on only when a test says so."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time

    def advance(self, seconds):
        self.time += seconds

    def get(self, results, until):
        while results.empty() and self.time < until:
            time.sleep(0.001)
        return results.get_nowait()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "records.sqlite")


@pytest.fixture(scope="module")
def by_tile(small):
    """Three candidates with different sources."""
    return [choice("rolling_update", block_q=q, block_kv=16) for q in (8, 16, 32)]


@pytest.fixture(scope="module")
def times(small, by_tile):
    """Microseconds by source: the larger the tile, the faster."""
    hashes = [source_hash(compile_choice(small, c, target=Target.of(H200)).source) for c in by_tile]
    return dict(zip(hashes, (30.0, 20.0, 10.0), strict=True))


def run(small, store, search, workers, **more):
    limits = {"seconds": LONG, "progress": False}
    return tune(small, search=search, workers=workers, store=store, **{**limits, **more})


@pytest.mark.usefixtures("in_this_process")
class TestLoop:
    @pytest.mark.nightly
    def test_the_fastest_wins_and_is_found_again(self, small, store, by_tile, times):
        search = Listed(*by_tile)
        result = run(small, store, search, Sheet(lambda s: times[source_hash(s.text)]), command="a test")
        assert search.told == dict(zip(by_tile, (30.0, 20.0, 10.0), strict=True))
        assert (result.best.us, result.ended, result.refused) == (10.0, "converged", 0)
        assert [r.us for r in result.records] == [10.0, 20.0, 30.0]
        found = best(small, H200, store=store)
        assert found == result.best
        assert found.options == {"block_q": 32, "block_kv": 16}
        assert (found.command, found.device, found.capability, found.cold) == ("a test", "NVIDIA H200", "9.0", False)
        assert result.compile().source == compile_choice(small, by_tile[2]).source
        assert str(result).startswith("attention_causal: 10.0 us on NVIDIA H200, rolling_update block_kv=16 block_q=32")

    def test_failures_are_told_kept_and_end_nothing(self, small, store, by_tile, times):
        slow, fails, fast = by_tile
        bad = choice("rolling_update", block_q=(16, 16))

        def answer(spec):
            us = times[source_hash(spec.text)]
            return Measurement(failure="wrong: relative error 1.0e+00") if us == 20.0 else us

        search = Listed(fails, bad, slow, fast)
        result = run(small, store, search, Sheet(answer))
        assert search.told == {fails: None, bad: None, slow: 30.0, fast: 10.0}
        assert (result.best.us, result.refused) == (10.0, 1)
        assert [r.failure for r in store.find()] == [None, None, "wrong: relative error 1.0e+00"]
        assert "3 measured, 1 wrong, 1 refused" in str(result)

    def test_a_lost_worker_leaves_no_record(self, small, store, by_tile, times):
        def answer(spec):
            us = times[source_hash(spec.text)]
            if us == 20.0:
                raise MeasureError("the worker was lost")
            return us

        search = Listed(*by_tile)
        result = run(small, store, search, Sheet(answer))
        assert search.told[by_tile[1]] is None
        assert len(store.find()) == len(result.records) == 2

    def test_nothing_is_measured_twice(self, small, store, by_tile, times):
        workers = Sheet(lambda s: times[source_hash(s.text)])
        run(small, store, Listed(*by_tile[:2]), workers)
        assert len(workers.seen) == 2
        search = Listed(*by_tile)
        result = run(small, store, search, workers)
        assert len(workers.seen) == 3
        assert search.told == dict(zip(by_tile, (30.0, 20.0, 10.0), strict=True))
        assert len(result.records) == 3
        run(small, store, Listed(*by_tile), workers, fresh=True)
        assert len(workers.seen) == 6

    def test_another_version_is_measured_anew(self, small, store, by_tile):
        workers = Sheet(lambda s: 1.0)
        run(small, store, Listed(by_tile[0]), workers)
        from dataclasses import replace

        workers.facts = lambda: replace(H200, triton="4.0")
        run(small, store, Listed(by_tile[0]), workers)
        assert len(workers.seen) == 2
        assert len(store.find()) == 2

    def test_the_best_are_timed_again_in_turns(self, small, store, by_tile, times):
        workers = Sheet(lambda s: times[source_hash(s.text)], again=(25.0, 15.0, 35.0))
        result = run(small, store, Listed(*by_tile), workers)
        ranked = sorted(times, key=times.__getitem__)
        assert workers.turns == [ranked]
        assert (result.best.us, result.best.source) == (15.0, ranked[1])
        assert best(small, H200, store=store) == result.best

    def test_at_most_so_many_trials(self, small, store, by_tile, times):
        search = Listed(*by_tile)
        result = run(small, store, search, Sheet(lambda s: times[source_hash(s.text)]), trials=2)
        assert (len(search.told), result.ended, result.best.us) == (2, "trials", 20.0)

    def test_time_ends_it_with_what_there_is(self, small, store, by_tile, times):
        clock = SetClock()

        def answer(spec):
            us = times[source_hash(spec.text)]
            clock.advance({30.0: 89.0, 20.0: 1.0}[us])  # a tenth of the time is kept for the second measurement
            if us == 20.0:
                assert workers.drained.wait(LONG), "the run went on when its time was over"
            return us

        workers = Sheet(answer)
        result = run(small, store, Listed(*by_tile), workers, seconds=100.0, clock=clock)
        assert (result.ended, result.seconds) == ("time", 90.0)
        assert [r.us for r in result.records] == [20.0, 30.0]  # the second was on the GPU when the time was over

    def test_ctrl_c_keeps_the_best(self, small, store, by_tile, times, ctrl_c):
        def answer(spec):
            us = times[source_hash(spec.text)]
            if us == 20.0:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                assert workers.drained.wait(LONG), "the run went on after Ctrl-C"
            return us

        workers = Sheet(answer, again=(1.0,) * 3)
        result = run(small, store, Listed(*by_tile), workers)
        assert (result.ended, result.best.us) == ("interrupted", 20.0)
        assert workers.turns == []
        assert best(small, H200, store=store) == result.best

    def test_a_cancel_keeps_the_best(self, small, store, by_tile, times):
        asked = threading.Event()

        def answer(spec):
            us = times[source_hash(spec.text)]
            if us == 20.0:
                asked.set()
                assert workers.drained.wait(LONG), "the run went on after the cancel"
            return us

        workers = Sheet(answer, again=(1.0,) * 3)
        result = run(small, store, Listed(*by_tile), workers, cancel=asked.is_set)
        assert (result.ended, result.best.us) == ("cancelled", 20.0)
        assert workers.turns == []
        assert best(small, H200, store=store) == result.best

    def test_a_cancel_while_the_best_are_timed_again_keeps_their_first_times(self, small, store, by_tile, times):
        begun, ended = threading.Event(), threading.Event()

        class Slow(Sheet):
            def remeasure(self, task, specs):
                begun.set()
                ended.wait(LONG)
                raise MeasureError("the worker was lost")

            def kill(self):
                ended.set()

        workers = Slow(lambda s: times[source_hash(s.text)])
        result = run(small, store, Listed(*by_tile), workers, cancel=begun.is_set)
        assert (result.ended, result.best.us) == ("cancelled", 10.0)

    def test_a_cancel_before_the_workers_have_started(self, small, store, by_tile):
        begun, ended = threading.Event(), threading.Event()

        class Starting(Sheet):
            def facts(self):
                begun.set()
                assert ended.wait(LONG), "the run waited for the workers after the cancel"
                return H200

            def kill(self):
                ended.set()

        with pytest.raises(MeasureError, match="cancelled before anything was measured"):
            run(small, store, Listed(*by_tile), Starting(lambda s: 1.0), cancel=begun.is_set)

    def test_progress_is_told_after_every_candidate(self, small, store, by_tile, times):
        bad = choice("rolling_update", block_q=(16, 16))
        told = []
        workers = Sheet(lambda s: times[source_hash(s.text)], again=(30.0, 20.0, 10.0))
        run(small, store, Listed(by_tile[0], bad, *by_tile[1:]), workers, seconds=50.0, progress=told.append)
        assert [p.phase for p in told] == ["starting", *["searching"] * 5, "timing again"]
        assert [(p.tried, p.failed) for p in told[1:]] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (4, 1)]
        assert [p.latest.us for p in told[2:6]] == [30.0, None, 20.0, 10.0]
        assert "block_q=(16, 16)" in told[3].latest.failure
        assert [p.best.us for p in told[2:]] == [30.0, 30.0, 20.0, 10.0, 10.0]
        assert {(p.device, p.target) for p in told[1:]} == {("NVIDIA H200", Target.of(H200))}
        assert {p.limit for p in told} == {50.0}

    def test_a_report_that_fails_ends_the_run_in_order(self, small, store, by_tile, times):
        def fails(now):
            if now.tried:
                raise ValueError("the page is gone")

        workers = Sheet(lambda s: times[source_hash(s.text)])
        with pytest.raises(ValueError, match="the page is gone"):
            run(small, store, Listed(*by_tile), workers, progress=fails)
        assert workers.drained.is_set()
        assert [r.us for r in store.find()] == [30.0]

    def test_several_are_under_way_at_once(self, small, store, by_tile):
        together = threading.Barrier(3, timeout=LONG)

        def answer(spec):
            together.wait()
            return 5.0

        assert len(run(small, store, Listed(*by_tile), Sheet(answer, size=3)).records) == 3

    def test_without_any_time_the_reasons_are_told(self, small, store, by_tile):
        workers = Sheet(lambda s: Measurement(failure="spills 80 registers per thread"))
        with pytest.raises(MeasureError, match=r"no candidate .*2 times: spills 80.*; 1 times: .*block_q=\(16, 16\)"):
            run(small, store, Listed(*by_tile[:2], choice("rolling_update", block_q=(16, 16))), workers)

    @pytest.mark.nightly
    def test_with_the_search_of_its_own(self, small, store):
        """Algorithm 1 over the operator's space: it converges on a made-up GPU that likes four warps."""
        workers = Sheet(lambda s: 10.0 if "num_warps=4" in s.text else 20.0, size=4)
        result = run(small, store, default_search(small, Target("h200"), 0), workers, trials=12)
        assert result.best.us == 10.0
        assert result.best.options["num_warps"] == 4
        assert {"template": "rolling_update", "options": {}} in [r.candidate for r in result.records]  # the default

    def test_the_bar_says_what_is_known(self, small, store, by_tile, times, capsys):
        tune(
            small,
            search=Listed(*by_tile, choice("rolling_update", block_q=(16, 16))),
            workers=Sheet(lambda s: times[source_hash(s.text)]),
            store=store,
            seconds=LONG,
        )
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "4 tried, 1 failed; best 10.0 us" in " ".join(shown.err.split())


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"trials": 0}])
def test_limits_are_positive(small, wrong):
    with pytest.raises(TuneError, match=r"seconds=0: expected a positive|trials=0: expected an integer from 1"):
        tune(small, **wrong)


@pytest.mark.parametrize("wrong", [{"progress": "yes"}, {"cancel": True}])
def test_progress_and_cancel_are_functions(small, wrong):
    with pytest.raises(TuneError, match=r"progress='yes': expected True, False, or|cancel=True: expected a function"):
        tune(small, **wrong)


@pytest.mark.nightly
def test_in_processes(small, store, gpu_worker, with_warps, monkeypatch):
    """Nothing stands in for the processes here: kernels are compiled in some, and run and checked in others."""
    monkeypatch.setattr("neptune_lab.tuning.run.EMIT_SECONDS", LONG)
    faults = (fake_runner.CRASHES, fake_runner.WRONG)
    search = Listed(*(with_warps(n) for n in (fake_runner.SLOW, *faults, fake_runner.FAST)))
    result = run(small, store, search, LocalWorkers([gpu_worker]))
    assert result.best.us == 9.0  # of the second measurement
    assert {c.sizes.num_warps or 0: us for c, us in search.told.items()} == {
        fake_runner.SLOW: 20.0,
        fake_runner.FAST: 10.0,
        **dict.fromkeys(faults),
    }
    reasons = [(r.failure or "").partition(":")[0] for r in result.records]
    assert sorted(reasons) == ["", "", "measuring", "wrong"]
