"""The run: our kernels and every peer on the same tensors, checked against float64, timed in turns, saved after each
setup."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from neptune_lab.bench import device
from neptune_lab.bench.clock import KernelTimer
from neptune_lab.bench.measured import OURS, BenchmarkResults, SetupResult, read, to_json, write
from neptune_lab.bench.measuring import Measured, MeasureTask, measure, unmeasured
from neptune_lab.bench.setups import Setup, all_setups
from neptune_lab.bench.warm import Source, Warm, warm_all
from neptune_lab.bench.workers import Lost, run_apart
from neptune_lab.errors import MeasureError
from neptune_lab.files import LongRun

# Setups that are compiled in advance together, per GPU: enough to keep the processes busy, few enough that an
# interrupted run has results.
TIER = 40
# The share of the time left that a tier is compiled in at most; what is not ready then is compiled when it is measured.
COMPILING = 0.6
# Time limit in seconds of a setup that is measured in another process.
SETUP_S = 600.0

# Setups on which FlexAttention and torch.compile also search, which takes minutes: long prefill, where the choice
# matters most, and one chain of each kind.
AUTOTUNED = ("*_pf-8192", "g4", "g12")


@dataclass(frozen=True)
class BenchmarkPlan:
    """The plan of a run.

    Args:
        setups: the setups to measure, in this order.
        out: the JSON file that results are written to after each setup; setups that it holds are not run again,
            but for those that lost a contestant with its process, which are last.
        budget_s: no setup is started after so many seconds.
        workers: processes that compile in advance; 0: everything is compiled in the measuring process.
        gpus: values of CUDA_VISIBLE_DEVICES: each GPU compiles with its share of the workers, then a process of its own
            measures setups, as it takes them from one list; none: this process measures, on its GPU.
        source: the origin of our kernels.
        autotuned: patterns of setups on which torch's compilers also run with max-autotune.
        environment: variables of the other processes, such as TORCHINDUCTOR_CACHE_DIR.
        again: setups to measure even if the file has them.
    """

    setups: tuple[Setup, ...] = field(default_factory=all_setups)
    out: Path = Path("bench.json")
    budget_s: float = 1200.0
    workers: int = 0
    gpus: tuple[str, ...] = ()
    source: Source = field(default_factory=Source)
    autotuned: tuple[str, ...] = AUTOTUNED
    environment: dict[str, str] = field(default_factory=dict)
    again: frozenset[str] = frozenset()


def run(
    plan: BenchmarkPlan, *, timer: KernelTimer | None = None, progress: Callable[[str], None] = lambda line: None
) -> BenchmarkResults:
    """Measures the plan's setups that its file lacks.

    Args:
        timer: times calls in this process; default: this machine's.
        progress: called with lines of text.

    Returns:
        All results of the file.

    Raises:
        MeasureError: the file is of another device, or the GPU was lost (what was measured is in the file, and
            another start resumes).
        FileError: results cannot be written; after the start, it says where they are.
    """
    began = time.monotonic()
    results = _begin(plan)
    write(plan.out, results)  # fails now if it cannot be written
    saved = LongRun(plan.out)
    try:
        return _measure_all(plan, results, saved, timer, progress, began)
    finally:
        saved.finish()


def _measure_all(
    plan: BenchmarkPlan,
    results: BenchmarkResults,
    saved: LongRun,
    timer: KernelTimer | None,
    progress: Callable[[str], None],
    began: float,
) -> BenchmarkResults:
    before, end = results.seconds, began + plan.budget_s
    known = {s.name: s.is_complete for s in results.setups if s.name not in plan.again}
    waiting = [s for s in plan.setups if not known.get(s.name)]
    waiting.sort(key=lambda s: s.name in known)  # what may be lost again is last
    done, size = len(plan.setups) - len(waiting), TIER * max(1, len(plan.gpus))
    for start in range(0, len(waiting), size):
        tasks = _tasks(waiting[start : start + size], plan, end, progress)
        for found in _measured(tasks, plan, timer, end):
            results = results.with_setup(found.result, before + time.monotonic() - began)
            if failed := saved.save(to_json(results)):
                progress(failed)
            done += 1
            progress(f"[{done}/{len(plan.setups)}] {line(found.result)}")
            if found.fatal and not plan.gpus:
                raise MeasureError(
                    f"the GPU was lost to this process on {found.result.name}",
                    help="start again: it goes on with the next",
                )
    if left := len(plan.setups) - done:
        setups = "1 setup is" if left == 1 else f"{left} setups are"
        progress(f"{setups} left: the budget of {plan.budget_s:.0f} s is spent; start again to go on")
    return results


def _tasks(
    setups: Sequence[Setup], plan: BenchmarkPlan, end: float, progress: Callable[[str], None]
) -> list[MeasureTask]:
    """The setups with what was compiled of them in advance, those that are compiled completely first."""
    now = time.monotonic()
    ahead: dict[tuple[str, str], Warm] = {}
    if plan.workers and now <= end:
        until, search = now + COMPILING * (end - now), plan.autotuned
        ahead = warm_all(setups, plan.source, search, plan.workers, plan.environment, progress, plan.gpus, until)
    tasks: list[MeasureTask] = []
    for setup in setups:
        own = {contestant: warm for (name, contestant), warm in ahead.items() if name == setup.name}
        tasks.append(MeasureTask(setup, plan.source, plan.autotuned, own))
    return sorted(tasks, key=lambda task: not task.is_compiled) if ahead else tasks


def _measured(
    tasks: Sequence[MeasureTask], plan: BenchmarkPlan, timer: KernelTimer | None, end: float
) -> Iterator[Measured]:
    """What is measured: here, or in a process for each of the plan's GPUs, each with the next setup when it is free."""
    if plan.gpus:
        count, environment = len(plan.gpus), plan.environment
        answers = run_apart(
            measure, tasks, workers=count, timeout_s=SETUP_S, environment=environment, gpus=plan.gpus, until=end
        )
        for task, answer in answers:
            yield Measured(unmeasured(task.setup, answer.reason, "lost")) if isinstance(answer, Lost) else answer
        return
    for task in tasks:
        if time.monotonic() > end:
            return
        yield measure(task, timer)


def _begin(plan: BenchmarkPlan) -> BenchmarkResults:
    """The file's results, or new ones."""
    facts = device.describe()
    if plan.out.is_file():
        known = read(plan.out)
        if known.device.get("name") != facts["name"]:
            raise MeasureError(
                f"{plan.out} holds results of {known.device.get('name')}; this is {facts['name']}",
                help="give another file",
            )
        return known
    command = "neptune-lab " + " ".join(sys.argv[1:])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResults(facts, device.used_versions(), device.rates(), now, 0.0, command)


def tune_setups(
    plan: BenchmarkPlan, seconds: float, progress: Callable[[str], None] = lambda line: None
) -> BenchmarkResults:
    """Tunes the plan's setups without records, and adds the results to the plan's file.

    Args:
        seconds: time limit of one setup.

    Raises:
        MeasureError: as `run`, or no candidate of a setup could be timed.
    """
    from neptune_lab.bench.tuning import tune_setup

    began = time.monotonic()
    results = _begin(plan)
    before = results.seconds
    write(plan.out, results)
    saved = LongRun(plan.out)
    try:
        for setup in plan.setups:
            told = tune_setup(setup, seconds)
            results = results.with_tuning(told, before + time.monotonic() - began)
            if failed := saved.save(to_json(results)):
                progress(failed)
            said = f"tuned in {told['seconds']:.0f} s ({told['ended']}), {len(told['trials'])} candidates"
            progress(f"{setup.name}: {said}")
    finally:
        saved.finish()
    return results


def line(result: SetupResult) -> str:
    """A setup in one line: our time, and the best peer's."""
    best = result.best("compiler", "library")
    own = next(e for e in result.entries if e.name == OURS)
    said = f"{own.us:.1f} us" if own.status == "ok" and own.us else f"{own.status}: {own.note}"
    against = f", {best.name} {best.us:.1f} us" if best and best.us else ""
    return f"{result.name}: {said}{against}"
