"""The run: each problem in a worker process, its line saved before the next one is waited for."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from neptune_lab.bench import device
from neptune_lab.bench.drawn.measure import ALL, ALONE, USUAL, Task, measure_task
from neptune_lab.bench.drawn.problems import draw
from neptune_lab.bench.drawn.results import LIMIT_S, DrawnResult, DrawnRun, TunedResult, read, to_text
from neptune_lab.bench.drawn.tuning import TuneTask, tunable, tune_task
from neptune_lab.bench.measured import OURS, ContestantResult
from neptune_lab.bench.workers import Lost, run_apart
from neptune_lab.errors import MeasureError
from neptune_lab.files import LongRun, write_text
from neptune_lab.runtime.ceilings import measure_ceilings

# The start of the tuner's processes, in seconds.
STARTS_S = 15.0
# Folders of compiled kernels, which are empty when a run starts.
CACHES = ("NEPTUNE_LAB_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")

# Which peers a problem is measured with, one after the other if it is lost, and the status in the file of the problems
# that begin there: a crash is as likely again with all peers.
_LEVELS = ((ALL, None), (USUAL, "lost"), (ALONE, ""))

Runner: TypeAlias = Callable[[Sequence[Task]], Iterator[tuple[Task, Any]]]


@dataclass(frozen=True)
class DrawnPlan:
    """The plan of a run.

    Args:
        count: the number of problems.
        seed: of the drawing.
        out: the results file; problems that it holds are not measured again, but for those that were lost.
        budget_s: no problem is waited for after so many seconds.
        tiny: sizes for the interpreter.
        tuned: so many of the problems are tuned for `seconds` each, after all were measured.
        seconds: time of tuning one.
        peer_limit_s: time limit of one problem with its peers, all compilations included.
    """

    count: int
    seed: int = 0
    out: Path = Path("drawn.jsonl")
    budget_s: float = 1200.0
    tiny: bool = False
    tuned: int = 0
    seconds: float = 30.0
    peer_limit_s: float = LIMIT_S

    @property
    def each_s(self) -> float:
        """About how long one problem takes that is tuned."""
        return self.seconds + STARTS_S


def run(
    plan: DrawnPlan, *, runner: Runner | None = None, progress: Callable[[str], None] = lambda line: None
) -> DrawnRun:
    """Measures the problems that the plan's file lacks; all results of the file.

    A problem whose process ended or took too long is measured again without optional peers, then with our kernel alone.
    If that fails too, or the budget ends before, the next run measures it again, without optional peers from the start.

    Args:
        runner: measures tasks; default: a worker process with empty kernel caches.
        progress: called with lines of text.

    Raises:
        MeasureError: the file is of another seed, device or size.
        FileError: results cannot be written.
    """
    began = time.monotonic()
    done = _begin(plan)
    write_text(plan.out, to_text(done), parents=True)
    status = {r.problem.index: r.ours.status for r in done.results}
    problems = draw(plan.seed, plan.count, tiny=plan.tiny)
    waiting = {level: [Task(p, level) for p in problems if status.get(p.index) == before] for level, before in _LEVELS}
    saved = LongRun(plan.out)
    with tempfile.TemporaryDirectory(prefix="neptune_lab-drawn-") as caches:
        answers = runner or _in_processes(Path(caches), plan.peer_limit_s)
        try:
            for (level, _), (fewer, _) in pairwise((*_LEVELS, ("", ""))):  # what was lost: again, with fewer peers
                for task, answer in _within(answers, waiting[level], began, plan.budget_s - plan.tuned * plan.each_s):
                    result = _lost(task, answer) if isinstance(answer, Lost) else answer
                    if isinstance(answer, Lost) and fewer:
                        waiting[fewer].append(replace(task, peers=fewer))
                    done = _with_result(done, result)
                    if failed := saved.save(to_text(done)):
                        progress(failed)
                    progress(line(result, done.gpu))
            for tuned in _tuned(plan, done, began, Path(caches), progress):
                done = replace(done, tuned=(*done.tuned, tuned))
                saved.save(to_text(done))
        finally:
            saved.finish()
    left = plan.count - sum(r.problem.index < plan.count for r in done.results)
    if left:
        progress(f"{left} problems are left: the budget of {plan.budget_s:.0f} s is spent; start again to go on")
    return done


def _tuned(
    plan: DrawnPlan, done: DrawnRun, began: float, caches: Path, progress: Callable[[str], None]
) -> Iterator[TunedResult]:
    """The first problems that can be tuned, and are not yet; none is started after the budget."""
    known = {one.index for one in done.tuned}
    tasks = [TuneTask(p, plan.seconds) for p in tunable(draw(plan.seed, plan.count, tiny=plan.tiny))[: plan.tuned]]
    for task in tasks:
        if task.problem.index in known or time.monotonic() - began >= plan.budget_s:
            continue
        environment = {name: str(caches / name.lower()) for name in CACHES}
        limit = LIMIT_S + plan.seconds
        for _, answer in run_apart(tune_task, [task], workers=1, timeout_s=limit, environment=environment):
            if isinstance(answer, Lost):
                answer = TunedResult(task.problem.index, None, None, 0.0, " ".join(answer.reason.split())[:300])
            progress(f"tuned {task.problem.name}: {answer.untuned_us} us before, {answer.tuned_us} us after")
            yield answer


def _within(runner: Runner, tasks: Sequence[Task], began: float, budget_s: float) -> Iterator[tuple[Task, Any]]:
    """The tasks' answers, from one process as long as it lives; none is waited for after the budget."""
    if not tasks or time.monotonic() - began >= budget_s:
        return
    for pair in runner(tasks):
        yield pair
        if time.monotonic() - began >= budget_s:
            return  # (The runner ends its process when it is closed.)


def _in_processes(caches: Path, peer_limit_s: float) -> Runner:
    """Measures each task in a process, with caches of kernels that are empty when the run starts."""
    environment = {name: str(caches / name.lower()) for name in CACHES}

    def runner(tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        limit = LIMIT_S if all(task.peers == ALONE for task in tasks) else peer_limit_s
        return run_apart(measure_task, tasks, workers=1, timeout_s=limit, environment=environment)

    return runner


def _begin(plan: DrawnPlan) -> DrawnRun:
    """The file's results, or new ones."""
    facts = device.describe()
    copied = measure_ceilings().gbps if facts["gpu"] else None
    fresh = DrawnRun(
        *(plan.seed, plan.tiny, facts["name"], facts["gpu"], device.used_versions()),
        copy_gbps=copied,
        peer_limit_s=plan.peer_limit_s,
    )
    if not plan.out.is_file():
        return fresh
    known = read(plan.out)
    for field in ("seed", "tiny", "device", "peer_limit_s"):
        if getattr(known, field) != getattr(fresh, field):
            raise MeasureError(
                f"{plan.out} has {field} {getattr(known, field)}; this run has {getattr(fresh, field)}",
                help="give another file",
            )
    known = replace(known, copy_gbps=known.copy_gbps or fresh.copy_gbps)
    drawn = {p.index: p for p in draw(plan.seed, 1 + max((r.problem.index for r in known.results), default=0),
                                      tiny=plan.tiny)}  # fmt: skip
    if other := next((r.problem for r in known.results if r.problem != drawn[r.problem.index]), None):
        raise MeasureError(
            f"{plan.out} holds {other.name}, which this version does not draw for its seed", help="give another file"
        )
    return known


def _with_result(run: DrawnRun, result: DrawnResult) -> DrawnRun:
    by_index = {r.problem.index: r for r in run.results} | {result.problem.index: result}
    return replace(run, results=tuple(by_index[i] for i in sorted(by_index)))


def _lost(task: Task, lost: Lost) -> DrawnResult:
    note = " ".join(lost.reason.split())[:300]
    return DrawnResult(task.problem, (ContestantResult(OURS, "ours", "lost", note=note),))


def line(result: DrawnResult, timed: bool = True) -> str:
    """A problem in one line: our time, and the ratio to the best peer; of times that say nothing, our error."""
    ours, ratio = result.ours, result.ratio("compiler", "library")
    if not timed and ours.status == "ok":
        return f"{result.problem.name}: right, with an error of {ours.error or 0.0:.1e} against float64"
    said = f"{ours.us:.1f} us" if ours.us and ours.status == "ok" else f"{ours.status}: {ours.note}"
    return f"{result.problem.name}: {said}" + (f", {ratio:.2f} of the best peer" if ratio else "")
