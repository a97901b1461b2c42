"""Tuning: candidates asked for, compiled, measured, and their records kept as they come."""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from neptune_lab.autotune.candidate import Candidate
from neptune_lab.autotune.clock import Clock, MonotonicClock
from neptune_lab.autotune.measuring import emit, now, portable, record_of, source_hash, task_of
from neptune_lab.autotune.model import Model
from neptune_lab.autotune.progress import Progress, Silent, bar
from neptune_lab.autotune.search import Search
from neptune_lab.autotune.space import space
from neptune_lab.autotune.workers import DaskWorkers, Workers, local
from neptune_lab.errors import MeasureError, TuneError
from neptune_lab.loop_schedule.templates import choose_template
from neptune_lab.records import Record, Store
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.process import ChildProcess
from neptune_lab.runtime.task import Task
from neptune_lab.runtime.trial import Measurement

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel

# The best few are timed again in turns, and for that some of the time is kept.
AGAIN = 5
AGAIN_SHARE = 0.1
EMIT_SECONDS = 60.0


class Searcher(Protocol):
    """What proposes candidates, and is told how fast they are (`autotune.search.Search`)."""

    @property
    def finished(self) -> bool:
        """Nothing more is worth a try."""
        ...

    def ask(self, n: int) -> list[Candidate]:
        """At most `n` new candidates; none while it waits to be told."""
        ...

    def tell(self, candidate: Candidate, microseconds: float | None) -> None:
        """The time of a candidate that was asked for; None where it failed."""
        ...


@dataclass(frozen=True, eq=False)
class TuneResult:
    """What a tuning run found.

    Args:
        operator: what was tuned.
        best: the record of the fastest candidate.
        records: all that was measured or known before, the fastest first, failures last.
        refused: how many candidates the compiler refused.
        seconds: how long it took.
        ended: why: "converged", "time", "trials" or "interrupted".
    """

    operator: Operator
    best: Record
    records: tuple[Record, ...]
    refused: int
    seconds: float
    ended: str

    def compile(self) -> Kernel:
        """The fastest candidate, compiled."""
        return Candidate.from_json(self.best.candidate).compile(self.operator)

    def __str__(self) -> str:
        failed = Counter((r.failure or "").partition(":")[0] for r in self.records if r.us is None)
        failures = "".join(f", {n} {why}" for why, n in failed.most_common())
        return (
            f"{self.operator.name}: {self.best.us:.1f} us on {self.best.device}, "
            f"{Candidate.from_json(self.best.candidate)}\n"
            f"  {len(self.records)} measured{failures}, {self.refused} refused, {self.seconds:.0f} s ({self.ended})"
        )


def tune(
    op: Operator,
    *,
    seconds: float = 60.0,
    trials: int | None = None,
    store: Store | None = None,
    scheduler: str | None = None,
    gpus: Sequence[int] | None = None,
    cold: bool | None = None,
    seed: int = 0,
    fresh: bool = False,
    progress: bool = True,
    search: Searcher | None = None,
    workers: Workers | None = None,
    command: str = "nl.tune",
    clock: Clock | None = None,
) -> TuneResult:
    """Searches for the fastest template and options of an operator on a GPU, and keeps what it measures.

    `nl.compile(op, tuned=True)` finds the result. A candidate that was measured before, with the same source, device
    and versions, is not measured again, so that a run that was broken off goes on where it was. Ctrl-C ends the run
    and keeps the best so far.

    Args:
        seconds: how long it may take.
        trials: the most candidates to try; None: as many as there is time for.
        store: where records are kept; None: the user's own file.
        scheduler: address of a dask scheduler whose workers measure; None: the GPUs of this machine.
        gpus: the numbers of those to use here; None: all.
        cold: flush L2 before each launch; None: where the operator decodes (`measuring.starts_cold`).
        seed: of the search and of the inputs.
        fresh: measure anew what the records know already.
        progress: show a bar on standard error.
        search: what proposes candidates; None: MCFuser's search over the operator's space.
        workers: what measures; None: as `scheduler` says. The caller's own workers stay open.
        command: kept in the records.
        clock: what `seconds` are read from; None: the machine's.

    Raises:
        MeasureError: there is no GPU, or no candidate came to a time; the message says what failed.
        TuneError: seconds or trials is not positive.
    """
    if seconds <= 0 or (trials is not None and trials < 1):
        raise TuneError(f"seconds={seconds}, trials={trials}: expected positive numbers")
    clock = clock or MonotonicClock()
    started = clock.now()
    hired = workers or (DaskWorkers(scheduler) if scheduler else local(gpus))
    emitters = _Emitters()
    try:
        facts = hired.facts()
        task, kept = task_of(op, cold=cold, seed=seed), store or Store()
        run = _Run(op, task, facts, hired, emitters, kept, command, clock, started, seconds, fresh)
        with bar(op.name, seconds) if progress else Silent() as shown:
            return run.result(search or default_search(op, facts, seed), trials, shown)
    finally:
        emitters.close()
        if workers is None:
            hired.close()


def default_search(op: Operator, facts: DeviceFacts, seed: int) -> Searcher:
    """MCFuser's search over the operator's own space, after what `compile` takes by itself: so nothing gets slower.

    Raises:
        TuneError: the space is empty.
    """
    template = op.template or choose_template(op.program)[0]
    return _After(Candidate.of(template), Search(space(op, facts), Model(op, facts), seed))


class _After:
    """A search that is asked after one candidate of ours."""

    def __init__(self, first: Candidate, search: Searcher) -> None:
        self._first, self._asked, self._search = first, False, search

    @property
    def finished(self) -> bool:
        return self._asked and self._search.finished

    def ask(self, n: int) -> list[Candidate]:
        if self._asked or n < 1:
            return self._search.ask(n)
        self._asked = True
        return [self._first, *self._search.ask(n - 1)]

    def tell(self, candidate: Candidate, microseconds: float | None) -> None:
        if candidate is not self._first:
            self._search.tell(candidate, microseconds)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of a candidate; `record` is None where the compiler refused it, or it was not measured."""

    candidate: Candidate
    spec: KernelSpec | None = None
    record: Record | None = None
    refusal: str | None = None


class _Emitters:
    """Processes that compile candidates to source, which takes a fraction of what Triton needs for the rest."""

    def __init__(self) -> None:
        count = max(1, min(4, (os.cpu_count() or 1) // 4))
        self._children = [ChildProcess(preload=[emit.__module__, "tvm"]) for _ in range(count)]
        self._ended = threading.Event()
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for child in self._children:
            child.start()
            self._idle.put(child)

    def emit(self, op: Operator, candidate: Candidate, facts: DeviceFacts) -> KernelSpec | str:
        """As `measuring.emit`, in the next process that is free; MeasureError where that fails."""
        child = self._idle.get()
        try:
            if self._ended.is_set():
                raise MeasureError("the candidate was given up: the run is at its end")
            return child.call(f"{emit.__module__}:{emit.__name__}", op, candidate, facts, timeout=EMIT_SECONDS)
        finally:
            self._idle.put(child)

    def kill(self) -> None:
        """Ends the processes, whichever thread waits for them, and starts none again."""
        self._ended.set()
        for child in self._children:
            child.kill()

    def close(self) -> None:
        """Ends the processes."""
        for child in self._children:
            child.close()


@dataclass(eq=False)
class _Run:
    """One call of `tune`."""

    op: Operator
    task: Task
    facts: DeviceFacts
    workers: Workers
    emitters: _Emitters
    store: Store
    command: str
    clock: Clock
    started: float
    seconds: float
    fresh: bool
    specs: dict[str, KernelSpec] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sent = portable(self.op)

    def result(self, search: Searcher, trials: int | None, shown: Progress) -> TuneResult:
        """Runs the search to its end, times the best again, and says what was found."""
        ended = self._loop(search, trials, shown)
        if ended != "interrupted":
            self._again()
        ranked = tuple(sorted(self.records.values(), key=lambda r: float("inf") if r.us is None else r.us))
        if not ranked or ranked[0].us is None:
            raise MeasureError(self._nothing(ended), help="give it more time (seconds), or see what the failures say")
        return TuneResult(self.op, ranked[0], ranked, len(self.refusals), self.clock.now() - self.started, ended)

    def _loop(self, search: Searcher, trials: int | None, shown: Progress) -> str:
        """Asks, measures and tells, until something ends it; why it ended."""
        done: queue.SimpleQueue[_Tried] = queue.SimpleQueue()
        deadline = self.started + self.seconds * (1 - AGAIN_SHARE)
        waiting = asked = 0
        pool = ThreadPoolExecutor(self.workers.size)
        try:
            while True:
                room = self.workers.size - waiting
                if trials is not None:
                    room = min(room, trials - asked)
                new = search.ask(room) if room > 0 and not search.finished else []
                for candidate in new:
                    pool.submit(self._try, candidate, done.put)
                asked, waiting = asked + len(new), waiting + len(new)
                if not waiting:
                    return "trials" if trials is not None and asked >= trials else "converged"
                try:
                    tried = self.clock.get(done, deadline)
                except queue.Empty:
                    return "time"
                waiting -= 1
                search.tell(tried.candidate, self._keep(tried))
                shown.update(self.clock.now() - self.started, asked - waiting, self._failed(), self._best())
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self.workers.drain()
            self.emitters.kill()
            pool.shutdown(cancel_futures=True)
            while not done.empty():  # measured while the run was ending
                tried = done.get()
                if tried.record is not None:
                    self._keep(tried)

    def _try(self, candidate: Candidate, done: Callable[[_Tried], None]) -> None:
        """Emits and measures one candidate; whatever happens, something is put into the queue."""
        tried = _Tried(candidate, refusal="not measured")
        try:
            tried = self._tried(candidate)
        except MeasureError as error:  # the worker's fault, not the candidate's: nothing to record
            tried = _Tried(candidate, refusal=error.reason)
        finally:
            done(tried)

    def _tried(self, candidate: Candidate) -> _Tried:
        spec = self.emitters.emit(self.sent, candidate, self.facts)
        if isinstance(spec, str):
            return _Tried(candidate, refusal=spec)
        found = None if self.fresh else self._known(spec)
        if found is None:
            found = self._record(candidate, spec, self.workers.measure(self.task, spec))
            self.store.put(found)
        return _Tried(candidate, spec, found)

    def _known(self, spec: KernelSpec) -> Record | None:
        """The record of the same source on the same device with the same versions, if there is one."""
        same = self.store.find(
            workload=self.task.key, device=self.facts.name, source=source_hash(spec.text), cold=self.task.cold
        )
        versions = (self.facts.torch, self.facts.triton)
        return next((r for r in same if (r.torch, r.triton) == versions), None)

    def _record(self, candidate: Candidate, spec: KernelSpec, found: Measurement) -> Record:
        about = (self.op.name, self.op.params)
        return record_of(about, self.task, candidate.to_json(), spec.text, self.facts, found, self.command)

    def _keep(self, tried: _Tried) -> float | None:
        """Notes what came of a candidate; its time."""
        if tried.record is None or tried.spec is None:
            self.refusals.append(tried.refusal or "")
            return None
        self.specs[tried.record.source] = tried.spec
        self.records[tried.record.source] = tried.record
        return tried.record.us

    def _again(self) -> None:
        """Times the best few in turns, and keeps those times."""
        timed = sorted((r for r in self.records.values() if r.us is not None), key=lambda r: r.us or 0.0)[:AGAIN]
        if len(timed) < 2:
            return
        try:
            found = self.workers.measure_again(self.task, [self.specs[r.source] for r in timed])
        except MeasureError:
            return  # their first times stand
        for old, new in zip(timed, found, strict=True):
            record = replace(old, us=new.us, low=new.low, high=new.high, when=now())
            self.records[record.source] = record
            self.store.put(record)

    def _failed(self) -> int:
        return len(self.refusals) + sum(r.us is None for r in self.records.values())

    def _best(self) -> str:
        timed = [r for r in self.records.values() if r.us is not None]
        if not timed:
            return "none yet"
        best = min(timed, key=lambda r: r.us or 0.0)
        return f"{best.us:.1f} us ({Candidate.from_json(best.candidate)})"

    def _nothing(self, ended: str) -> str:
        """Why there is no result, with the most frequent reasons."""
        reasons = Counter([*self.refusals, *(r.failure or "" for r in self.records.values())])
        said = "; ".join(f"{n} times: {why}" for why, n in reasons.most_common(3))
        return f"no candidate of {self.op.name} could be timed ({ended}): {said or 'none was tried'}"
