"""The run: our kernels and every peer on the same tensors, checked against float64, timed in turns, saved after each
setup."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from neptune_lab.bench import device
from neptune_lab.bench.ablation import Variant, variants
from neptune_lab.bench.clock import LOST, KernelTimer, clock
from neptune_lab.bench.contestants import Attempt, attempt, contestants, repeats
from neptune_lab.bench.kernels import Compiled, Kernels
from neptune_lab.bench.measured import OURS, BenchmarkResults, ContestantResult, SetupResult, read, to_json, write
from neptune_lab.bench.reference import reference
from neptune_lab.bench.setups import Setup, all_setups
from neptune_lab.bench.tensors import device_memory, make_tensors
from neptune_lab.bench.warm import Source, Warm, warm_all
from neptune_lab.errors import MeasureError
from neptune_lab.files import LongRun
from neptune_lab.runtime.timing import summary

# Setups that are compiled in advance together: enough to keep the processes busy, few enough that an interrupted run
# has results.
TIER = 40

# Setups on which FlexAttention and torch.compile also search, which takes minutes: long prefill, where the choice
# matters most, and one chain of each kind.
AUTOTUNED = ("*_pf-8192", "g4", "g12")


@dataclass(frozen=True)
class BenchmarkPlan:
    """The plan of a run.

    Args:
        setups: the setups to measure, in this order.
        out: the JSON file that results are written to after each setup; setups that it holds are not run again.
        budget_s: no setup is started after so many seconds.
        workers: processes that compile in advance; 0: everything is compiled in the measuring process.
        source: the origin of our kernels.
        autotuned: patterns of setups on which torch's compilers also run with max-autotune.
        environment: variables of the compiling processes, such as TORCHINDUCTOR_CACHE_DIR.
        again: setups to measure even if the file has them.
    """

    setups: tuple[Setup, ...] = field(default_factory=all_setups)
    out: Path = Path("bench.json")
    budget_s: float = 1200.0
    workers: int = 0
    source: Source = field(default_factory=Source)
    autotuned: tuple[str, ...] = AUTOTUNED
    environment: dict[str, str] = field(default_factory=dict)
    again: frozenset[str] = frozenset()


def run(
    plan: BenchmarkPlan, *, timer: KernelTimer | None = None, progress: Callable[[str], None] = lambda line: None
) -> BenchmarkResults:
    """Measures the plan's setups that its file lacks.

    Args:
        timer: times calls; default: this machine's.
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
        return _measure_all(plan, results, saved, timer or clock(), progress, began)
    finally:
        saved.finish()


def _measure_all(
    plan: BenchmarkPlan,
    results: BenchmarkResults,
    saved: LongRun,
    timer: KernelTimer,
    progress: Callable[[str], None],
    began: float,
) -> BenchmarkResults:
    before = results.seconds
    known = {s.name for s in results.setups} - plan.again
    waiting = [s for s in plan.setups if s.name not in known]
    done = len(plan.setups) - len(waiting)
    for start in range(0, len(waiting), TIER):
        tier = waiting[start : start + TIER]
        if time.monotonic() - began > plan.budget_s:
            break
        ahead: dict[tuple[str, str], Warm] = {}
        if plan.workers:
            ahead = warm_all(tier, plan.source, plan.autotuned, plan.workers, plan.environment, progress)
        for setup in tier:
            if time.monotonic() - began > plan.budget_s:
                break
            result, lost = _measure_or_tell(setup, plan, ahead, timer)
            results = results.with_setup(result, before + time.monotonic() - began)
            if failed := saved.save(to_json(results)):
                progress(failed)
            done += 1
            progress(f"[{done}/{len(plan.setups)}] {line(result)}")
            if lost:
                raise MeasureError(
                    f"the GPU was lost to this process on {setup.name}", help="start again: it goes on with the next"
                )
    if left := len(plan.setups) - done:
        progress(f"{left} setups are left: the budget of {plan.budget_s:.0f} s is spent; start again to go on")
    return results


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


def _measure_or_tell(
    setup: Setup, plan: BenchmarkPlan, ahead: dict[tuple[str, str], Warm], timer: KernelTimer
) -> tuple[SetupResult, bool]:
    """`measure_setup`; an error of torch outside of any contestant (tensors that do not fit) becomes the result."""
    try:
        return measure_setup(setup, plan, ahead, timer)
    except RuntimeError as error:
        note = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return _result(setup, [ContestantResult(OURS, "ours", "failed", note=note)], "nothing"), LOST in str(error)


def measure_setup(
    setup: Setup, plan: BenchmarkPlan, ahead: dict[tuple[str, str], Warm], timer: KernelTimer
) -> tuple[SetupResult, bool]:
    """The result of one setup, and whether the GPU was lost during it."""
    _forget()
    kernels = _remembered(plan.source.kernels(), ahead)
    same = repeats({v.name: kernels(setup, v) for v in variants(setup)}) if len(variants(setup)) > 1 else set()
    tensors = make_tensors(setup.op)
    expected = reference(setup, tensors)
    memory = device_memory()
    attempts: list[Attempt] = []
    for contestant in contestants(setup, kernels, plan.autotuned):
        known = ahead.get((setup.name, contestant.name), Warm())
        entry = ContestantResult(contestant.name, contestant.kind, "failed", note=known.refusal)
        if contestant.name in same:
            note = "its kernel is the one with default options, word for word"
            attempts.append(Attempt(replace(entry, status="same", note=note)))
        elif known.refusal:
            attempts.append(Attempt(entry))
        else:
            attempts.append(attempt(contestant, setup, tensors, expected, timer.quick, memory))
        if attempts[-1].fatal:
            return _result(setup, [a.entry for a in attempts], expected.checked), True
    calls = {a.entry.name: a.ready.call for a in attempts if a.ready is not None}
    samples = timer.times(calls, setup.cold)
    entries = []
    for one in attempts:
        entry = one.entry
        if one.ready is not None:
            taken = samples[entry.name]
            entry = replace(entry, note="; ".join(n for n in (entry.note, taken.note) if n))
            if taken.us:
                us, low, high = summary(taken.us)
                entry = replace(entry, us=us, low=low, high=high, runs=len(taken.us))
            else:
                entry = replace(entry, status="failed")
        entries.append(entry)
    result = _result(setup, entries, expected.checked)
    load = device.under_load(calls[OURS], result.ours) if result.ours else {}
    return replace(result, load=load), False


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


def _forget() -> None:
    """Frees the memory of a setup: its score matrix would leave no room for the next."""
    torch.compiler.reset()  # also because torch falls back to unfused code after eight shapes of a function
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _remembered(kernels: Kernels, ahead: dict[tuple[str, str], Warm]) -> Kernels:
    """Kernels that were compiled in advance, and others, each compiled once."""
    made: dict[tuple[str, str], Compiled] = {k: w.compiled for k, w in ahead.items() if w.compiled is not None}

    def find(setup: Setup, variant: Variant) -> Compiled:
        key = (setup.name, variant.name)
        if key not in made:
            made[key] = kernels(setup, variant)
        return made[key]

    return find


def _result(setup: Setup, entries: Sequence[ContestantResult], checked: str) -> SetupResult:
    return SetupResult(
        setup.name,
        setup.row,
        setup.group,
        {k: v for k, v in setup.op.params.items() if isinstance(v, int | float | str)},
        setup.cold,
        setup.flops,
        setup.bytes,
        setup.kv_bytes,
        checked,
        tuple(entries),
    )


def line(result: SetupResult) -> str:
    """A setup in one line: our time, and the best peer's."""
    best = result.best("compiler", "library")
    own = next(e for e in result.entries if e.name == OURS)
    said = f"{own.us:.1f} us" if own.status == "ok" and own.us else f"{own.status}: {own.note}"
    against = f", {best.name} {best.us:.1f} us" if best and best.us else ""
    return f"{result.name}: {said}{against}"
