"""Measures one drawn problem: every contestant is checked against float64, then timed in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from neptune_lab.bench.clock import GpuTimer, HostTimer, KernelTimer
from neptune_lab.bench.contestants import Attempt, Contestant, attempt
from neptune_lab.bench.drawn import attention, optional, rows
from neptune_lab.bench.drawn.problems import Problem, draw
from neptune_lab.bench.drawn.results import DrawnResult
from neptune_lab.bench.measured import FLEX, OURS, ContestantResult
from neptune_lab.bench.peers import Quick, Ready, Tensors
from neptune_lab.bench.reference import Reference
from neptune_lab.bench.tensors import device_memory
from neptune_lab.runtime.timing import summary

# The largest relative error (Frobenius norm) of a block that counts, by the dtype of the answer; or twice that of the
# float64 answer in this dtype, if that is more.
BOUNDS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-4}
# A contestant that is so many times slower than the fastest is timed by a few calls only.
_SLOW = 20.0
# Which peers are measured beside our kernel.
ALL, USUAL, ALONE = "all", "usual", "alone"


@dataclass(frozen=True)
class Task:
    """What a worker process measures: with all peers, without the optional ones, or our kernel alone."""

    problem: Problem
    peers: str = ALL


def measure_task(task: Task) -> DrawnResult:
    """`measure` in a worker process, after a first compilation that loads the compilers."""
    _load_compilers()
    return measure(task.problem, peers=task.peers)


@cache
def _load_compilers() -> None:
    """Compiles a tiny attention with both compilers, so that no problem's first call includes their imports."""
    if torch.cuda.is_available():
        given = attention.inputs(draw(0, 1, tiny=True)[0])
        for one in attention.contestants(draw(0, 1, tiny=True)[0], given)[:2]:
            attempt(one, None, (given.q,), None, lambda call: 0.0, device_memory())


def measure(problem: Problem, *, peers: str = ALL, timer: KernelTimer | None = None) -> DrawnResult:
    """The result of one problem.

    Args:
        peers: which alternatives are measured too: `ALL`, the `USUAL` ones, or none (`ALONE`).
        timer: times calls; default: this machine's.
    """
    timer = timer or (GpuTimer(seconds=0.5, least=5, most=40) if torch.cuda.is_available() else HostTimer(1))
    torch.compiler.reset()
    gc.collect()
    if problem.kind == "rows":
        given = tensors = rows.inputs(problem)
        right, found = rows.reference(problem, tensors), rows.contestants(problem, tensors)
        answer = rows.operator(problem).outputs[0].dtype
    else:
        given = attention.inputs(problem)
        tensors = (given.q, given.k, given.v)
        right, found = attention.reference(given, problem.index), attention.contestants(problem, given)
        answer = problem.dtype
    chosen = found[:1] if peers == ALONE else found
    if peers == ALL:
        chosen = (*chosen, *optional.contestants(problem, given))
    bound = max(BOUNDS[answer], 2 * right.rounding(getattr(torch, answer)))
    result = _compare(problem, chosen, tensors, right, bound, timer)
    if torch.cuda.is_available() and not result.fatal:
        torch.cuda.empty_cache()
    return result


def _compare(
    problem: Problem,
    chosen: Sequence[Contestant],
    tensors: Tensors,
    right: Reference,
    bound: float,
    timer: KernelTimer,
) -> DrawnResult:
    first: dict[str, float] = {}
    attempts: list[Attempt] = []
    for one in chosen:
        timed = replace(one, make=_first_call(one, first))
        own = max(bound, BOUNDS[problem.dtype]) if one.name in optional.IN_INPUTS_DTYPE else bound
        attempts.append(attempt(timed, problem, tensors, right, timer.quick, device_memory(), own))
        if attempts[-1].fatal:
            break
    entries = [a.entry for a in attempts]
    fatal = any(a.fatal for a in attempts)
    if fatal:  # what was right cannot be timed any more
        entries = [_untimed(e, "the GPU was lost to this process") if e.status == "ok" else e for e in entries]
    else:
        entries = _timed(attempts, timer, problem.kind == "decode")
    first = {n: s for n, s in first.items() if n in (OURS, FLEX)}
    return DrawnResult(problem, tuple(entries), right.checked, first, optional.absent(), fatal)


def _first_call(one: Contestant, seconds: dict[str, float]):
    """`one.make` that also calls once, and notes how long both took together."""

    def make(setup: Problem, tensors: Tensors, quick: Quick) -> Ready:
        began = time.perf_counter()
        ready = one.make(setup, tensors, quick)  # type: ignore[arg-type]
        ready.call()
        if tensors[0].is_cuda:
            torch.cuda.synchronize()
        seconds[one.name] = time.perf_counter() - began
        return ready

    return make


def _untimed(entry: ContestantResult, why: str) -> ContestantResult:
    return replace(entry, status="failed", note=why)


def _timed(attempts: Sequence[Attempt], timer: KernelTimer, cold: bool) -> list[ContestantResult]:
    """The attempts' results with times; contestants far behind the fastest have the time of a few calls."""
    calls = {a.entry.name: a.ready.call for a in attempts if a.ready is not None}
    about: Mapping[str, float] = {name: timer.quick(call) for name, call in calls.items()}
    fast = {n: c for n, c in calls.items() if about[n] <= _SLOW * min(about.values())}
    samples = timer.times(fast, cold)
    entries = []
    for one in attempts:
        entry = one.entry
        if one.ready is not None and entry.name in samples:
            taken = samples[entry.name]
            if taken.us:
                us, low, high = summary(taken.us)
                note = "; ".join(n for n in (entry.note, taken.note) if n)
                entry = replace(entry, us=us, low=low, high=high, runs=len(taken.us), note=note)
            else:
                entry = _untimed(entry, taken.note)
        elif one.ready is not None:
            entry = replace(entry, us=about[entry.name], note="timed by a few calls: far behind the fastest")
        entries.append(entry)
    return entries
