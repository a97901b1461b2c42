"""Drawn problems that are tuned: the time of the choice before and after, of one operator on the same tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import torch

from neptune_lab.bench.clock import GpuTimer, HostTimer
from neptune_lab.bench.drawn import attention, rows
from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.drawn.results import TunedResult
from neptune_lab.operators import Operator
from neptune_lab.operators import attention as operators
from neptune_lab.pipeline import compile
from neptune_lab.strict.console import printable

# Operators of plain masks without captured tensors: the tuner's workers know them by name.
_MASKS = {"full": operators.full, "causal": operators.causal, "window": operators.window}


@dataclass(frozen=True)
class TuneTask:
    """A problem to tune, and for how many seconds."""

    problem: Problem
    seconds: float


def tunable(problems: Iterable[Problem]) -> list[Problem]:
    """The problems whose operators have a name: rows, and attention without score mods in a plain mask."""
    return [p for p in problems if p.kind == "rows" or (p.mask in _MASKS and p.mod == "plain")]


def operator(problem: Problem) -> Operator:
    """The operator of a tunable problem."""
    if problem.kind == "rows":
        return rows.operator(problem)
    s = problem.sizes
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    sizes = {name: s[name] for name in names} | ({"window": s["window"]} if problem.mask == "window" else {})
    return _MASKS[problem.mask](**sizes, dtype=problem.dtype)


def tune_task(task: TuneTask) -> TunedResult:
    """Tunes a problem without records, and measures both choices in turns."""
    from neptune_lab.tuning.tune import tune

    problem, op = task.problem, operator(task.problem)
    given = attention.inputs(problem) if problem.kind != "rows" else None
    tensors = rows.inputs(problem) if given is None else (given.q, given.k, given.v)
    tensors = tuple(t.contiguous() for t in tensors)
    before = compile(op)
    result = tune(op, seconds=task.seconds, progress=False, command="neptune-lab bench --drawn")
    after = result.compile()
    timer = GpuTimer(seconds=0.5, least=9, most=60) if torch.cuda.is_available() else HostTimer(1)
    calls = {"before": lambda: before(*tensors), "after": lambda: after(*tensors)}
    for call in calls.values():
        call()
    samples = timer.times(calls, problem.kind == "decode")
    if not all(taken.us for taken in samples.values()):
        note = "; ".join(taken.note for taken in samples.values() if taken.note)
        return TunedResult(problem.index, None, None, result.seconds, printable(note)[:300])
    us = {name: median(taken.us) for name, taken in samples.items()}
    # The choice before is kept where tuning did not find a faster one.
    return TunedResult(
        problem.index, us["before"], min(us.values()), result.seconds, printable(" ".join(str(result).split()))[:300]
    )


__all__ = ["TuneTask", "operator", "tunable", "tune_task"]
