"""The run: each problem in a worker process, its line saved before the next one is waited for."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from neptune_lab.bench import device
from neptune_lab.bench.drawn.measure import Task, measure_task
from neptune_lab.bench.drawn.problems import draw
from neptune_lab.bench.drawn.results import DrawnResult, DrawnRun, read, to_text
from neptune_lab.bench.measured import OURS, ContestantResult
from neptune_lab.bench.workers import Lost, run_apart
from neptune_lab.errors import MeasureError
from neptune_lab.files import LongRun, write_text

# Time limit of one problem, with all its contestants' compilations.
TIMEOUT_S = 240.0

Runner: TypeAlias = Callable[[Sequence[Task]], Iterator[tuple[Task, Any]]]


@dataclass(frozen=True)
class DrawnPlan:
    """The plan of a run.

    Args:
        count: the number of problems.
        seed: of the drawing.
        out: the results file; problems that it holds are not measured again.
        budget_s: no problem is waited for after so many seconds.
        tiny: sizes for the interpreter.
    """

    count: int
    seed: int = 0
    out: Path = Path("drawn.jsonl")
    budget_s: float = 1200.0
    tiny: bool = False


def run(
    plan: DrawnPlan, *, runner: Runner | None = None, progress: Callable[[str], None] = lambda line: None
) -> DrawnRun:
    """Measures the problems that the plan's file lacks; all results of the file.

    A problem whose process ended or took too long is measured again with our kernel alone.

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
    known = {r.problem.index for r in done.results}
    tasks = [Task(p) for p in draw(plan.seed, plan.count, tiny=plan.tiny) if p.index not in known]
    saved = LongRun(plan.out)
    with tempfile.TemporaryDirectory(prefix="neptune_lab-drawn-") as caches:
        answers = runner or _in_processes(Path(caches))
        try:
            for peers in (True, False):  # the second time, what was lost
                lost: list[Task] = []
                for task, answer in _within(answers, tasks, began, plan.budget_s):
                    result = _lost(task, answer) if isinstance(answer, Lost) else answer
                    if isinstance(answer, Lost) and peers:
                        lost.append(replace(task, peers=False))
                    done = _with(done, result)
                    if failed := saved.save(to_text(done)):
                        progress(failed)
                    progress(line(result))
                tasks = lost
        finally:
            saved.finish()
    left = plan.count - sum(r.problem.index < plan.count for r in done.results)
    if left:
        progress(f"{left} problems are left: the budget of {plan.budget_s:.0f} s is spent; start again to go on")
    return done


def _within(runner: Runner, tasks: Sequence[Task], began: float, budget_s: float) -> Iterator[tuple[Task, Any]]:
    """The tasks' answers; no task is started after the budget."""
    for start in range(len(tasks)):
        if time.monotonic() - began >= budget_s:
            return
        yield from runner(tasks[start : start + 1])


def _in_processes(caches: Path) -> Runner:
    """Measures each task in a process, with caches of kernels that are empty when the run starts."""
    names = ("NEPTUNE_LAB_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    environment = {name: str(caches / name.lower()) for name in names}
    return lambda tasks: run_apart(measure_task, tasks, workers=1, timeout_s=TIMEOUT_S, environment=environment)


def _begin(plan: DrawnPlan) -> DrawnRun:
    """The file's results, or new ones."""
    facts = device.describe()
    fresh = DrawnRun(plan.seed, plan.tiny, facts["name"], facts["gpu"], device.used_versions())
    if not plan.out.is_file():
        return fresh
    known = read(plan.out)
    for field in ("seed", "tiny", "device"):
        if getattr(known, field) != getattr(fresh, field):
            raise MeasureError(
                f"{plan.out} has {field} {getattr(known, field)}; this run has {getattr(fresh, field)}",
                help="give another file",
            )
    drawn = {p.index: p for p in draw(plan.seed, 1 + max((r.problem.index for r in known.results), default=0),
                                      tiny=plan.tiny)}  # fmt: skip
    if other := next((r.problem for r in known.results if r.problem != drawn[r.problem.index]), None):
        raise MeasureError(
            f"{plan.out} holds {other.name}, which this version does not draw for its seed", help="give another file"
        )
    return known


def _with(run: DrawnRun, result: DrawnResult) -> DrawnRun:
    by_index = {r.problem.index: r for r in run.results} | {result.problem.index: result}
    return replace(run, results=tuple(by_index[i] for i in sorted(by_index)))


def _lost(task: Task, lost: Lost) -> DrawnResult:
    note = " ".join(lost.reason.split())[:300]
    return DrawnResult(task.problem, (ContestantResult(OURS, "ours", "failed", note=note),))


def line(result: DrawnResult) -> str:
    """A problem in one line: our time, and the ratio to the best peer."""
    ours, ratio = result.ours, result.ratio("compiler", "library")
    said = f"{ours.us:.1f} us" if ours.us and ours.status == "ok" else f"{ours.status}: {ours.note}"
    return f"{result.problem.name}: {said}" + (f", {ratio:.2f} of the best peer" if ratio else "")
