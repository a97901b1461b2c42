"""One tuning run: asks for candidates, compiles and measures them, and stores their records at once."""

from __future__ import annotations

import os
import queue
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text
from neptune_lab.pipeline import Choice, compile_choice
from neptune_lab.records import Record, RecordsWarning, dump
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.process import ProcessPool
from neptune_lab.runtime.task import Task
from neptune_lab.target import Target
from neptune_lab.tuning.clock import Cancelled, Clock, next_of, within
from neptune_lab.tuning.measuring import emit, now, portable, record_of, source_hash
from neptune_lab.tuning.progress import Attempt, Phase, Report, TuneProgress
from neptune_lab.tuning.record_writer import RecordWriter
from neptune_lab.tuning.workers import Workers, WorkersLost

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel

# How many of the fastest are timed again, in turns, and the share of the time that is reserved for it.
REMEASURED = 5
REMEASURE_SHARE = 0.1
EMIT_SECONDS = 60.0
# Seconds to wait after Ctrl-C or `cancel` for candidates that are being measured, and for threads whose processes were
# killed.
INTERRUPT_SECONDS = 20.0
KILL_SECONDS = 10.0


class Searcher(Protocol):
    """Proposes candidates, and is told their times (`autotune.search.Search`)."""

    @property
    def finished(self) -> bool:
        """Whether it has no more candidates."""
        ...

    def ask(self, n: int) -> list[Choice]:
        """At most `n` new candidates; none while it waits for times."""
        ...

    def tell(self, candidate: Choice, microseconds: float | None) -> None:
        """Reports the time of a candidate that was asked for; None if it failed."""
        ...


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The result of a tuning run.

    Args:
        operator: what was tuned.
        best: the record of the fastest candidate.
        records: all measurements, of this run and before, the fastest first, failures last.
        refused: how many candidates the compiler refused.
        seconds: how long it took.
        ended: why it ended: "converged", "time", "trials", "interrupted" (Ctrl-C), "cancelled" or "workers lost".
        lost: how many candidates were not measured because a worker was lost, or the run ended.
        unsaved: the records that could not be stored; `export` saves all records to a file of your choice.
        rescued: the file with those; None if there are none, or no file could be written.
    """

    operator: Operator
    best: Record
    records: tuple[Record, ...]
    refused: int
    seconds: float
    ended: str
    lost: int = 0
    unsaved: tuple[Record, ...] = ()
    rescued: Path | None = None

    def export(self, path: str | Path) -> Path:
        """Saves the records to a JSON file, which `neptune-lab records --load` reads.

        Args:
            path: the file to write.

        Returns:
            The file's path.

        Raises:
            FileError: the file cannot be written.
        """
        return write_text(path, dump(self.records))

    def compile(self) -> Kernel:
        """Compiles the fastest candidate.

        Returns:
            The kernel.
        """
        return compile_choice(self.operator, Choice.from_json(self.best.candidate, "the record"))

    def __str__(self) -> str:
        failed = Counter((r.failure or "").partition(":")[0] for r in self.records if r.us is None)
        failures = "".join(f", {n} {why}" for why, n in failed.most_common())
        lost = f", {self.lost} not measured" if self.lost else ""
        unsaved = f"\n  {len(self.unsaved)} of the measurements are not in the records" if self.unsaved else ""
        return (
            f"{self.operator.name}: {self.best.us:.1f} us on {self.best.device}, "
            f"{Choice.from_json(self.best.candidate)}\n"
            f"  {len(self.records)} measured{failures}, {self.refused} refused{lost}, {self.seconds:.0f} s "
            f"({self.ended}){unsaved}"
        )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a candidate: a record, the compiler's refusal, or the error that prevented its measurement."""

    candidate: Choice
    spec: KernelSpec | None = None
    record: Record | None = None
    refusal: str | None = None
    error: Exception | None = None

    @property
    def attempt(self) -> Attempt:
        """Its time, or why there is none."""
        if self.record is not None:
            return Attempt(self.candidate, self.record.us, self.record.failure or "", self.record)
        return Attempt(self.candidate, None, self.refusal or getattr(self.error, "reason", str(self.error)))


class Emitters(ProcessPool):
    """Processes that compile candidates to source, which takes a fraction of Triton's time for the rest."""

    def __init__(self) -> None:
        count = max(1, min(4, (os.cpu_count() or 1) // 4))
        super().__init__([{}] * count, preload=[emit.__module__, "tvm"])
        self.start()

    def emit(self, op: Operator, candidate: Choice, target: Target | None) -> KernelSpec | str:
        """As `measuring.emit`, in the next idle process; MeasureError if that fails."""
        return self.call(f"{emit.__module__}:{emit.__name__}", op, candidate, target, timeout=EMIT_SECONDS)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends.

    Args:
        clock: of `started` and `seconds`.
        started: when the run began.
        seconds: its time limit.
        trials: the maximum number of candidates; None: any.
        cancel: whether the caller wants it to end; None: never.
    """

    clock: Clock
    started: float
    seconds: float
    trials: int | None = None
    cancel: Callable[[], bool] | None = None

    @property
    def end(self) -> float:
        """When the time is over."""
        return self.started + self.seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.clock.now() - self.started


@dataclass(eq=False)
class TuningRun:
    """One call of `tune`."""

    op: Operator
    task: Task
    facts: DeviceFacts
    workers: Workers
    emitters: Emitters
    writer: RecordWriter
    command: str
    limits: Limits
    known: dict[str, Record]
    report: Report
    specs: dict[str, KernelSpec] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    tried: int = 0

    def __post_init__(self) -> None:
        self.sent = portable(self.op)
        self.target = None if self.facts.interpreter else Target.of(self.facts)

    def result(self, search: Searcher) -> TuneResult:
        """Runs the search to its end, times the best again, and returns the result."""
        try:
            ended = self._loop(search)
            if ended in ("converged", "time", "trials"):
                ended = self._remeasure_best(ended)
        finally:
            if said := self.writer.finish():
                warnings.warn(said, RecordsWarning, stacklevel=3)
        ranked = tuple(sorted(self.records.values(), key=lambda r: float("inf") if r.us is None else r.us))
        if not ranked or ranked[0].us is None:
            lost = "start the workers again" if ended == "workers lost" else "give it more time (seconds)"
            raise MeasureError(self._nothing(ended), help=f"{lost}, or see what the failures say")
        tuned = TuneResult(self.op, ranked[0], ranked, len(self.refusals), self.limits.spent, ended)
        writer = self.writer
        return replace(tuned, lost=len(self.unmeasured), unsaved=writer.unsaved, rescued=writer.rescued)

    def _loop(self, search: Searcher) -> str:
        """Asks, measures and reports until the run ends; why it ended."""
        done: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        limits, clock, trials = self.limits, self.limits.clock, self.limits.trials
        deadline = limits.started + limits.seconds * (1 - REMEASURE_SHARE)
        left: list[Future[None]] = []
        received, until = 0, limits.end
        pool = ThreadPoolExecutor(self.workers.size)
        try:
            while True:
                room = self.workers.size - (len(left) - received)
                if trials is not None:
                    room = min(room, trials - len(left))
                new = search.ask(room) if room > 0 and not search.finished else []
                left += [pool.submit(self._try, candidate, done.put) for candidate in new]
                if len(left) == received:
                    return "trials" if trials is not None and received >= trials else "converged"
                if not received:
                    self._say("searching")
                try:
                    outcome = next_of(done, deadline, clock, limits.cancel)
                except queue.Empty:
                    self._say("ending")
                    return "time"
                received += 1
                search.tell(outcome.candidate, self._keep(outcome))
                if said := self.writer.news():
                    warnings.warn(said, RecordsWarning, stacklevel=4)
                self._say("searching", outcome)
        except WorkersLost as error:
            warnings.warn(f"the run ended early: {error}", RuntimeWarning, stacklevel=4)
            self.unmeasured.append(error.reason)
            return "workers lost"
        except (KeyboardInterrupt, Cancelled) as error:
            until = min(until, clock.now() + INTERRUPT_SECONDS)
            self._say("ending")
            return "cancelled" if isinstance(error, Cancelled) else "interrupted"
        finally:
            self._end(pool, left, received, done, until)

    def _end(
        self,
        pool: ThreadPoolExecutor,
        tried: list[Future[None]],
        received: int,
        done: queue.SimpleQueue[_Outcome],
        until: float,
    ) -> None:
        """Waits until `until` for candidates that are on a GPU, and keeps their results."""
        complete = False
        try:
            self.workers.drain()
            self.emitters.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            with suppress(queue.Empty, WorkersLost):
                for _ in range(len(tried) - received - sum(f.cancelled() for f in tried)):
                    self._keep(self.limits.clock.get(done, until))
                complete = True
        except KeyboardInterrupt:  # Ctrl-C again: end at once
            pass
        if not complete:  # a future that has put its result may not be marked as done yet
            self.workers.kill()
            wait(tried, KILL_SECONDS)
        while not done.empty():
            with suppress(WorkersLost):
                self._keep(done.get())

    def _try(self, candidate: Choice, done: Callable[[_Outcome], None]) -> None:
        """Emits and measures one candidate; always puts an outcome into the queue."""
        try:
            outcome = self._measured(candidate)
        except Exception as error:  # noqa: BLE001 - the loop raises what is not ours
            outcome = _Outcome(candidate, error=error)
        done(outcome)

    def _measured(self, candidate: Choice) -> _Outcome:
        spec = self.emitters.emit(self.sent, candidate, self.target)
        if isinstance(spec, str):
            return _Outcome(candidate, refusal=spec)
        record = self.known.get(source_hash(spec.text))
        if record is None:
            record = self._record(candidate, spec, self.workers.measure(self.task, spec))
            self.writer.put(record)
        return _Outcome(candidate, spec, record)

    def _record(self, candidate: Choice, spec: KernelSpec, measured: Measurement) -> Record:
        about = (self.op.name, self.op.params)
        return record_of(about, self.task, candidate.to_json(), spec.text, self.facts, measured, self.command)

    def _keep(self, outcome: _Outcome) -> float | None:
        """Keeps the outcome of a candidate; its time. Raises WorkersLost, and errors that are not ours."""
        self.tried += 1
        if outcome.record is not None and outcome.spec is not None:
            self.specs[outcome.record.source] = outcome.spec
            self.records[outcome.record.source] = outcome.record
            return outcome.record.us
        if outcome.refusal is not None:
            self.refusals.append(outcome.refusal)
        elif isinstance(outcome.error, MeasureError) and not isinstance(outcome.error, WorkersLost):
            self.unmeasured.append(outcome.error.reason)  # the worker's fault, not the candidate's: nothing to record
        elif outcome.error is not None:
            raise outcome.error
        return None

    def _remeasure_best(self, ended: str) -> str:
        """Times the fastest few in turns, and keeps those times if that succeeds. Why the run ended."""
        timed = sorted((r for r in self.records.values() if r.us is not None), key=lambda r: r.us or 0.0)[:REMEASURED]
        left = self.limits.end - self.limits.clock.now()
        if len(timed) < 2 or left <= 0:
            return ended
        self._say("timing again")
        specs = [self.specs[r.source] for r in timed]
        try:
            limits = self.limits
            again = within(left, self.workers.remeasure, self.task, specs, clock=limits.clock, cancel=limits.cancel)
        except MeasureError:
            return ended
        except (TimeoutError, KeyboardInterrupt, Cancelled) as error:
            self.workers.kill()
            return {KeyboardInterrupt: "interrupted", Cancelled: "cancelled"}.get(type(error), ended)
        for old, new in zip(timed, again, strict=True):
            record = replace(old, us=new.us, low=new.low, high=new.high, when=now())
            self.records[record.source] = record
            self.writer.put(record)
        return ended

    def _say(self, phase: Phase, outcome: _Outcome | None = None) -> None:
        """Reports how far the run is; `outcome` is of the candidate that ended last."""
        timed = [r for r in self.records.values() if r.us is not None]
        failed = len(self.refusals) + len(self.unmeasured) + len(self.records) - len(timed)
        best = min(timed, key=lambda r: r.us or 0.0, default=None)
        latest = None if outcome is None else outcome.attempt
        limits, facts = self.limits, self.facts
        self.report(
            TuneProgress(
                phase,
                limits.spent,
                limits.seconds,
                facts.name,
                Target.of(facts),
                self.tried,
                failed,
                best,
                latest,
            )
        )

    def _nothing(self, ended: str) -> str:
        """Why there is no result, with the most frequent reasons."""
        reasons = Counter([*self.refusals, *self.unmeasured, *(r.failure or "" for r in self.records.values())])
        said = "; ".join(f"{n} times: {why}" for why, n in reasons.most_common(3))
        return f"no candidate of {self.op.name} could be timed ({ended}): {said or 'none was tried'}"
