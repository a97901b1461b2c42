"""Measures one setup: prepares its contestants, checks their answers, and times those that are right, in turns."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from neptune_lab.bench import device
from neptune_lab.bench.ablation import Variant, variants
from neptune_lab.bench.clock import LOST, KernelTimer, clock
from neptune_lab.bench.contestants import Attempt, attempt, contestants, repeats
from neptune_lab.bench.kernels import Compiled, Kernels
from neptune_lab.bench.measured import OURS, ContestantResult, SetupResult
from neptune_lab.bench.reference import reference
from neptune_lab.bench.setups import Setup
from neptune_lab.bench.tensors import device_memory, make_tensors
from neptune_lab.bench.warm import Source, Warm
from neptune_lab.runtime.timing import summary


@dataclass(frozen=True)
class MeasureTask:
    """A setup to measure, in a form that can be sent to another process.

    Args:
        setup: the setup.
        source: the origin of our kernels.
        autotuned: as in `BenchmarkPlan`.
        ahead: what was compiled in advance, by names of contestants.
    """

    setup: Setup
    source: Source = field(default_factory=Source)
    autotuned: tuple[str, ...] = ()
    ahead: Mapping[str, Warm] = field(default_factory=dict)

    @property
    def is_compiled(self) -> bool:
        """Whether all contestants were compiled in advance."""
        return {c.name for c in contestants(self.setup, self.source.kernels(), self.autotuned)} <= set(self.ahead)


@dataclass(frozen=True)
class Measured:
    """The result of a setup.

    Args:
        result: its result.
        fatal: the process cannot use the GPU any more.
    """

    result: SetupResult
    fatal: bool = False


def measure(task: MeasureTask, timer: KernelTimer | None = None) -> Measured:
    """Measures a setup; an error of torch outside of any contestant (tensors that do not fit) becomes the result.

    Args:
        timer: times calls; default: this machine's.
    """
    try:
        return _measure(task, timer or clock())
    except RuntimeError as error:
        note = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return Measured(unmeasured(task.setup, note), LOST in str(error))


def unmeasured(setup: Setup, note: str, status: str = "failed") -> SetupResult:
    """The result of a setup that could not be measured."""
    return _result(setup, [ContestantResult(OURS, "ours", status, note=note)], "nothing")


def _measure(task: MeasureTask, timer: KernelTimer) -> Measured:
    _forget()
    setup = task.setup
    kernels = _remembered(task.source.kernels(), task.ahead)
    same = repeats({v.name: kernels(setup, v) for v in variants(setup)}) if len(variants(setup)) > 1 else set()
    tensors = make_tensors(setup.op)
    expected = reference(setup, tensors)
    memory = device_memory()
    attempts: list[Attempt] = []
    for contestant in contestants(setup, kernels, task.autotuned):
        known = task.ahead.get(contestant.name, Warm())
        status = "lost" if known.lost else "failed"
        entry = ContestantResult(contestant.name, contestant.kind, status, note=known.refusal)
        if contestant.name in same:
            note = "its kernel is the one with default options, word for word"
            attempts.append(Attempt(replace(entry, status="same", note=note)))
        elif known.refusal:
            attempts.append(Attempt(entry))
        else:
            attempts.append(attempt(contestant, setup, tensors, expected, timer.quick, memory))
        if attempts[-1].fatal:
            return Measured(_result(setup, [a.entry for a in attempts], expected.checked), fatal=True)
    calls = {a.entry.name: a.ready.call for a in attempts if a.ready is not None}
    samples = timer.times(calls, setup.cold)
    entries: list[ContestantResult] = []
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
    return Measured(replace(result, load=load))


def _forget() -> None:
    """Frees the memory of a setup: its score matrix would leave no room for the next."""
    torch.compiler.reset()  # also because torch falls back to unfused code after eight shapes of a function
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _remembered(kernels: Kernels, ahead: Mapping[str, Warm]) -> Kernels:
    """The kernels of one setup that were compiled in advance, and others, each compiled once."""
    made: dict[str, Compiled] = {name: warm.compiled for name, warm in ahead.items() if warm.compiled is not None}

    def find(setup: Setup, variant: Variant) -> Compiled:
        if variant.name not in made:
            made[variant.name] = kernels(setup, variant)
        return made[variant.name]

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
