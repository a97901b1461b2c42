"""`tune`: what a run needs, put together, and ended whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neptune_lab.autotune.cost_model import CostModel
from neptune_lab.autotune.search import Search
from neptune_lab.autotune.space import space
from neptune_lab.errors import MeasureError, TuneError
from neptune_lab.loop_schedule.templates import choose_template
from neptune_lab.pipeline import Choice, untuned_choice
from neptune_lab.pipeline.schedules import check_numbers
from neptune_lab.records import Record, Store
from neptune_lab.runtime import DeviceFacts
from neptune_lab.runtime.task import Task
from neptune_lab.strict.values import check_kind
from neptune_lab.target import Target
from neptune_lab.tuning.arguments import check_arguments, check_functions
from neptune_lab.tuning.clock import Cancelled, Clock, MonotonicClock, within
from neptune_lab.tuning.dask_workers import DaskWorkers
from neptune_lab.tuning.measuring import task_of
from neptune_lab.tuning.progress import Attempt, Report, TuneProgress, reports
from neptune_lab.tuning.record_writer import PATIENCE, RecordWriter
from neptune_lab.tuning.run import Emitters, Limits, Searcher, TuneResult, TuningRun
from neptune_lab.tuning.workers import Workers, local

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

__all__ = ["Attempt", "Searcher", "TuneProgress", "TuneResult", "default_search", "tune"]

# The share of the time to wait for a locked file of records, at the start and at the first failure.
LOCK_SHARE = 0.05
# Time limit for the start of workers, which load torch, if the budget is shorter.
START_SECONDS = 120.0


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
    progress: bool | Report = True,
    cancel: Callable[[], bool] | None = None,
    search: Searcher | None = None,
    workers: Workers | None = None,
    command: str = "nl.tune",
    clock: Clock | None = None,
) -> TuneResult:
    """Searches for the fastest template and options of an operator on a GPU, and records the measurements.

    `nl.compile(op)` finds the result on a GPU. A candidate that was measured before, with the same source, device
    and versions, is not measured again, so that an interrupted run resumes. Ctrl-C or `cancel` ends the run
    and keeps the best so far.

    That the records can be stored is checked before anything is measured. If storing fails later (a full disk), the
    run keeps the records in memory, warns, tries again, and at its end saves them to a file elsewhere.

    Args:
        op: the operator.
        seconds: time limit of the search.
        trials: the maximum number of candidates; None: limited by time only.
        store: where records are kept; None: the user's own file.
        scheduler: address of a dask scheduler whose workers measure; None: the GPUs of this machine.
        gpus: the numbers of the local GPUs to use; None: all.
        cold: flush L2 before each launch; None: if the operator is decoding (`measuring.starts_cold`).
        seed: of the search and of the inputs.
        fresh: measure again what is already in the records.
        progress: show a bar on standard error; or a function that is called with a `TuneProgress` when the run starts,
            after every candidate, and when its phase changes, in the thread that called `tune`.
        cancel: called five times per second; True ends the run.  None: only Ctrl-C ends it before its time. Then
            only the candidates that are on a GPU are still waited for, at most 20 s.
        search: proposes candidates; None: MCFuser's search over the operator's space.
        workers: measure candidates; None: as `scheduler` says. Workers that the caller passes stay open.
        command: text that the records keep.
        clock: the clock for `seconds`; None: the machine's.

    Returns:
        The measurements and the fastest candidate, which `compile()` of the result compiles.

    Raises:
        MeasureError: there is no GPU, records cannot be stored, no candidate could be timed, or the run was cancelled
            before one was; the message says what failed.
        TuneError: an argument is not of its type, or out of range.
    """
    check_arguments(op, seconds, trials, scheduler, gpus, cold, seed)
    check_functions(progress, cancel)
    if store is not None:
        check_kind("store", store, Store, "a Store or None", TuneError, help='such as records.Store("records.sqlite")')
    check_kind("command", command, str, "a text", TuneError)
    check_numbers(op, "tuning")
    clock = clock or MonotonicClock()
    started = clock.now()
    kept, patience = store or Store(), min(PATIENCE, LOCK_SHARE * seconds)
    kept.check(patience)
    writer = RecordWriter(kept, patience)
    pool = workers or (DaskWorkers(scheduler) if scheduler else local(gpus))
    emitters = Emitters()
    try:
        with reports(progress, op.name, seconds) as report:
            report(TuneProgress("starting", clock.now() - started, seconds))
            facts = _facts(pool, max(seconds, START_SECONDS), cancel)
            task = task_of(op, cold=cold, seed=seed)
            known = {} if fresh else _known_records(kept, task, facts)
            limits = Limits(clock, started, seconds, trials, cancel)
            run = TuningRun(op, task, facts, pool, emitters, writer, command, limits, known, report)
            return run.result(search or default_search(op, Target.of(facts), seed))
    finally:
        emitters.close()
        if workers is None:
            pool.close()


def _facts(workers: Workers, seconds: float, cancel: Callable[[], bool] | None) -> DeviceFacts:
    try:
        return within(seconds, workers.facts, cancel=cancel)
    except Cancelled:
        workers.kill()
        raise MeasureError(
            "the run was cancelled before anything was measured", help="start it again, and give it time"
        ) from None
    except TimeoutError as error:
        workers.kill()
        raise MeasureError(f"the workers did not start: {error}", help="see what else runs on the GPU") from error


def _known_records(store: Store, task: Task, facts: DeviceFacts) -> dict[str, Record]:
    """The records of the same device and versions, by source."""
    stored = store.find(workload=task.key, device=facts.name, cold=task.cold)
    return {r.source: r for r in stored if (r.torch, r.triton) == (facts.torch, facts.triton)}


def default_search(op: Operator, target: Target, seed: int) -> Searcher:
    """MCFuser's search over the operator's space, after what the shape suggests and what `compile` chooses without a
    record, so that the result is never slower.

    Raises:
        TuneError: the space is empty.
    """
    first = dict.fromkeys((Choice(op.template or choose_template(op.program)[0]), untuned_choice(op, target)))
    return _After([c for c in first if c is not None], Search(space(op, target), CostModel(op, target), seed))


class _After:
    """A search that starts with given candidates."""

    def __init__(self, first: Sequence[Choice], search: Searcher) -> None:
        self._first, self._waiting, self._search = tuple(first), list(first), search

    @property
    def finished(self) -> bool:
        return not self._waiting and self._search.finished

    def ask(self, n: int) -> list[Choice]:
        asked, self._waiting = self._waiting[:n], self._waiting[n:]
        return [*asked, *self._search.ask(n - len(asked))]

    def tell(self, candidate: Choice, microseconds: float | None) -> None:
        if not any(candidate is one for one in self._first):
            self._search.tell(candidate, microseconds)
