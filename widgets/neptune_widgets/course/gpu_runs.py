"""What the notebook on the GPU measures: each function takes seconds on a GPU and gives plain JSON data.

Units stand in the keys.  Every kernel is compared with a float64 reference before it is timed; one whose answer is
wrong has no time.  The pieces are the benchmark's own (`neptune_lab.bench`): the same setups, tensors, check and clock.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neptune_lab.bench.measured import CUDNN, DEFAULT, EAGER, FLASH, OURS, BenchmarkResults, from_json
from neptune_lab.bench.setups import all_setups, choose
from neptune_lab.target import Target
from neptune_widgets.course.measured import Run

if TYPE_CHECKING:
    from neptune_lab.autotune.space import Space
    from neptune_lab.bench.ablation import Variant
    from neptune_lab.bench.clock import KernelTimer
    from neptune_lab.bench.contestants import Attempt, Contestant
    from neptune_lab.bench.setups import Setup
    from neptune_lab.pipeline import Choice
    from neptune_lab.runtime import DeviceFacts
    from neptune_lab.tuning.tune import Searcher, TuneResult

# Setups of the benchmark, by its names; attention has 32 heads of 128 (gqa_dc: 64 on 8 of keys), all are in float16.
PREFILL = ("causal_pf-512", "causal_pf-2048", "causal_pf-8192")
DECODE = ("gqa_dc-512", "gqa_dc-2048", "gqa_dc-8192", "gqa_dc-32768")
NORMS = ("l2_norm-256x131072", "rms_norm_max-256x131072")
PARTITIONED = ("causal_pf-8192", "window_pf-8192")
TUNED = "g12"
CLOCKED = "causal_dc-2048"

PARTITION = "partition_masked_loops"
UNPARTITIONED = f"without {PARTITION}"
ROLLING = "rolling_update"

SAMPLES = 60


def measure_clock() -> dict[str, Any]:
    """One decoding kernel timed in three ways: its first call, with a warm L2 cache, and with a cold one.

    Returns:
        setup, kv_bytes, l2_bytes, error, first_call_ms (on the host: it compiles, loads and launches), empty_us (two
        events with nothing between), warm_us and cold_us (a list of samples each).
    """
    from neptune_lab.runtime import device_facts
    from neptune_lab.runtime.timing import measure, sampler

    setup = _setup(CLOCKED)
    contestant = _ours(_variant(OURS))
    with _tensors(setup) as (tensors, reference):
        began = time.perf_counter()
        ready = contestant.make(setup, tensors, _one_call)
        answer = ready.call()
        first = time.perf_counter() - began
        error = reference.error(answer)
        _demand_right(setup.name, error)
        return {
            "setup": setup.name,
            "kv_bytes": setup.kv_bytes,
            "l2_bytes": device_facts().l2_bytes,
            "error": error,
            "first_call_ms": first * 1e3,
            "empty_us": measure(lambda: None, repetitions=30, flush_l2=True).us,
            "warm_us": sampler(ready.call, cold=False)(SAMPLES),
            "cold_us": sampler(ready.call, cold=True)(SAMPLES),
        }


def measure_ceilings() -> dict[str, Any]:
    """What the GPU reaches at best, beside its datasheet.

    Returns:
        copy_gbps (bytes read and written), product_tflops (a large float16 product), sheet_gbps and sheet_tflops (None
        where the device is not known), sm_count, l2_bytes, shared_memory_bytes (of one block).
    """
    from neptune_lab.runtime import device_facts
    from neptune_lab.runtime.ceilings import measure_ceilings as measured_ceilings

    found, facts = measured_ceilings(), device_facts()
    sheet = Target.known(found.device)
    return {
        "copy_gbps": found.gbps,
        "product_tflops": found.tflops,
        "sheet_gbps": sheet.gbps if sheet else None,
        "sheet_tflops": sheet.tflops if sheet else None,
        "sm_count": facts.sm_count,
        "l2_bytes": facts.l2_bytes,
        "shared_memory_bytes": facts.shared_memory,
    }


def measure_lengths(names: Sequence[str] = PREFILL) -> list[dict[str, Any]]:
    """Causal attention at several lengths: ours, PyTorch with every score in memory, and two of PyTorch's libraries.

    Returns:
        a row a setup, as `contest` gives it; the longest one has `load` too (clocks, power, temperature).
    """
    return [contest(name, (OURS,), (CUDNN, FLASH), eager=True, load=name == names[-1]) for name in names]


def measure_decode(names: Sequence[str] = DECODE) -> list[dict[str, Any]]:
    """Decoding at several lengths: ours as the records say, ours by one rolling loop, and cuDNN; L2 is cold."""
    return [contest(name, (OURS, ROLLING), (CUDNN,)) for name in names]


def measure_norms(names: Sequence[str] = NORMS) -> list[dict[str, Any]]:
    """Norms of long rows: ours, and PyTorch stage by stage."""
    return [contest(name, (OURS,), eager=True) for name in names]


def measure_partition(names: Sequence[str] = PARTITIONED) -> list[dict[str, Any]]:
    """Our kernels with default options, with and without the pass that cuts loops by their masks."""
    return [contest(name, (DEFAULT, UNPARTITIONED)) for name in names]


def measure_model(name: str = TUNED, seconds: float = 25.0) -> dict[str, Any]:
    """Candidates that differ in their tiles alone, so that the model is asked only about what it looks at.

    Args:
        name: a setup of the benchmark.
        seconds: how long it may take.

    Returns:
        as `measure_tuning`.
    """
    from neptune_lab.autotune.space import space
    from neptune_lab.runtime import device_facts

    setup = _setup(name)
    return _tuned(setup, seconds, _Listed(tiles_alone(space(setup.op, Target.of(device_facts())))))


def measure_tuning(name: str = TUNED, seconds: float = 15.0) -> dict[str, Any]:
    """A search from nothing: every candidate that was measured, the fastest first.

    The user's own records are neither read nor written.

    Args:
        name: a setup of the benchmark.
        seconds: how long it may take.

    Returns:
        setup, seconds, ended, refused (by the compiler), and trials: candidate (as text), default (whether it is what
        `compile` takes by itself), us (None where it failed), predicted_us (Eqs. 2 to 5), failure.
    """
    return _tuned(_setup(name), seconds, None)


def tiles_alone(found: Space) -> tuple[Choice, ...]:
    """Of a space, the rolling loops in Triton with pointers, two stages, and warps as their rows ask for."""
    return tuple(c for c in found if c.template == ROLLING and _usual_but_for_tiles(c))


def _usual_but_for_tiles(candidate: Choice) -> bool:
    from neptune_lab.pipeline import CodeOptions

    config = candidate.sizes
    rows = config.block_q if isinstance(config.block_q, int) else 0
    usual = replace(config, num_stages=2, num_warps=8 if rows >= 128 else 4)
    return rows > 0 and config == usual and candidate.code == CodeOptions()


class _Listed:
    """A search that asks for given candidates, in their order, whatever it is told."""

    def __init__(self, candidates: Sequence[Choice]) -> None:
        self._left = list(candidates)

    @property
    def finished(self) -> bool:
        return not self._left

    def ask(self, n: int) -> list[Choice]:
        asked, self._left = self._left[:n], self._left[n:]
        return asked

    def tell(self, candidate: Choice, microseconds: float | None) -> None:
        pass


def _tuned(setup: Setup, seconds: float, search: Searcher | None) -> dict[str, Any]:
    from neptune_lab.records import Store
    from neptune_lab.runtime import device_facts
    from neptune_lab.tuning.tune import tune

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "records.sqlite")
        limits = {"seconds": seconds, "cold": setup.cold, "fresh": True, "progress": False}
        found = tune(setup.op, search=search, store=store, **limits)
    return told(setup, found, device_facts())


def told(setup: Setup, found: TuneResult, facts: DeviceFacts) -> dict[str, Any]:
    """A tuning run as plain JSON, as `measure_tuning` says."""
    from neptune_lab.autotune.cost_model import CostModel
    from neptune_lab.pipeline import Choice

    model = CostModel(setup.op, Target.of(facts))
    trials = []
    for record in found.records:
        candidate = Choice.from_json(record.candidate)
        trials.append(
            {
                "candidate": str(candidate),
                "default": not candidate.options,
                "us": record.us,
                "predicted_us": model(candidate) * 1e6,
                "failure": record.failure,
            }
        )
    kept = {"seconds": found.seconds, "ended": found.ended, "refused": found.refused}
    return {"setup": setup.name, **kept, "trials": trials}


def benchmark() -> Run:
    """The benchmark's recorded run on an H200 (`neptune-lab bench --report`); its `data` is a `bench.measured.Results`.

    What takes minutes to measure is shown from here: every peer, and each pass left out.
    """
    text = (files("neptune_lab.bench") / "results" / "h200.json").read_text(encoding="utf-8")
    found: BenchmarkResults = from_json(text)
    date = found.started.replace("T", " ")[:16] + " UTC"
    return Run("h200", found, found.device["name"], date, found.versions, found.command, recorded=True)


# -- a setup's contestants, checked and then timed in turns ----------------------------------------------------------


def contest(
    name: str,
    ours: Sequence[str],
    libraries: Sequence[str] = (),
    *,
    eager: bool = False,
    load: bool = False,
    timer: KernelTimer | None = None,
) -> dict[str, Any]:
    """Kernels of one setup, checked against float64 on the same tensors, then timed in turns.

    Args:
        name: a setup of the benchmark.
        ours: `OURS` (as the records of tuning say), `DEFAULT`, a template's name, or "without <pass>".
        libraries: names of the benchmark's peers.
        eager: PyTorch stage by stage as well.
        load: look at clocks and power while the first kernel runs.
        timer: the GPU's clock, a third of a second for all; another for tests.

    Returns:
        setup, checked (what part of the answers), cold, flops and bytes (the least there is to do, as
        `pipeline.facts.work` counts), kv_bytes, load, and entries: name, status, us, low_us, high_us, runs, error
        (relative, of the worst 128 rows), note, resources.
    """
    from neptune_lab.bench.clock import GpuTimer
    from neptune_lab.bench.contestants import attempt
    from neptune_lab.bench.device import under_load
    from neptune_lab.bench.tensors import device_memory
    from neptune_lab.pipeline.facts import work

    setup, timer = _setup(name), timer or GpuTimer(seconds=0.3, least=5, most=40)
    todo = work(setup.op.program)
    with _tensors(setup) as (tensors, reference):
        attempts: list[Attempt] = [
            attempt(one, setup, tensors, reference, timer.quick, device_memory())
            for one in _contestants(setup, ours, libraries, eager)
        ]
        calls = {a.entry.name: a.ready.call for a in attempts if a.ready is not None}
        samples = timer.times(calls, setup.cold)
        entries = [_entry(one, samples[one.entry.name].us if one.ready else ()) for one in attempts]
        first = attempts[0]
        us = entries[0]["us"]
        found = under_load(first.ready.call, us) if load and first.ready is not None and us else {}
        return {
            "setup": setup.name,
            "checked": reference.checked,
            "cold": setup.cold,
            "flops": todo.flops,
            "bytes": todo.bytes,
            "kv_bytes": setup.kv_bytes,
            "load": dict(found),
            "entries": entries,
        }


def _entry(one: Attempt, taken: Sequence[float]) -> dict[str, Any]:
    from neptune_lab.runtime.timing import summary

    entry = one.entry
    if taken:
        us, low, high = summary(taken)
        entry = replace(entry, us=us, low=low, high=high, runs=len(taken))
    elif entry.status == "ok":
        entry = replace(entry, status="failed", note=f"{entry.note}; it could not be timed".lstrip("; "))
    kept = asdict(entry)
    kept["low_us"], kept["high_us"] = kept.pop("low"), kept.pop("high")
    del kept["kind"]
    return json.loads(json.dumps(kept))


def _contestants(setup: Setup, ours: Sequence[str], libraries: Sequence[str], eager: bool) -> Iterator[Contestant]:
    from neptune_lab.bench.contestants import Contestant
    from neptune_lab.bench.peers import peers

    for name in ours:
        yield _ours(_variant(name))
    for peer in peers(setup):
        if peer.name in libraries:
            yield Contestant(peer.name, peer.kind, peer.refuses, peer.make)
    if eager:
        yield Contestant(EAGER, "library", _takes, _eager)


def _ours(variant: Variant) -> Contestant:
    from neptune_lab.bench.contestants import Contestant, launchable
    from neptune_lab.bench.kernels import compiled

    def make(setup: Setup, tensors: tuple[Any, ...], quick: Any) -> Any:
        return launchable(compiled(setup, variant), tensors)

    return Contestant(variant.name, variant.kind, _takes, make, variant)


def _eager(setup: Setup, tensors: tuple[Any, ...], quick: Any) -> Any:
    from neptune_lab.bench.definitions import definition
    from neptune_lab.bench.peers import Ready

    run = definition(setup)
    return Ready(lambda: run(*tensors))


def _takes(setup: Setup, memory: int) -> str:
    return ""


def _variant(name: str) -> Variant:
    from neptune_lab.bench.ablation import Variant

    if name.startswith("without "):
        return Variant(name, options={"disable_passes": (name.removeprefix("without "),)})
    return Variant(name, None if name in (OURS, DEFAULT) else name, tuned=name == OURS)


@cache
def _setup(name: str) -> Setup:
    (found,) = choose(all_setups(), [name])
    return found


@contextmanager
def _tensors(setup: Setup) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Inputs and the float64 answer; their memory is given back afterwards."""
    import gc

    from neptune_lab.bench.reference import reference
    from neptune_lab.bench.tensors import make_tensors

    tensors = make_tensors(setup.op)
    try:
        yield tensors, reference(setup, tensors)
    finally:
        del tensors
        gc.collect()


def _demand_right(name: str, error: float) -> None:
    from neptune_lab.bench.measured import BOUND
    from neptune_lab.errors import MeasureError

    if not error <= BOUND:
        raise MeasureError(
            f"{name}: relative error {error:.1e} in its worst block, expected at most {BOUND:g}",
            help="the kernel is wrong on this GPU: please report it",
        )


def _one_call(call: Callable[[], Any]) -> float:
    call()
    return 0.0


def entry(row: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The entry of a name in a row of `contest`, where it has a time."""
    return next((e for e in row["entries"] if e["name"] == name and e["status"] == "ok"), None)
