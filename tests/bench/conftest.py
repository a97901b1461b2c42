"""What the benchmark's tests share: results that look like a GPU's, and say that they are made up."""

from __future__ import annotations

import gc

import pytest

from neptune_lab.bench.measured import (
    COMPILE,
    CUDNN,
    DEFAULT,
    EAGER,
    FLEX,
    HAND,
    NO_RECORD,
    OURS,
    BenchmarkResults,
    ContestantResult,
    SetupResult,
)
from neptune_lab.bench.setups import Setup, all_setups
from neptune_lab.runtime.timing import Resources

# Our speedup in the made-up results, whose peers take 100 us.
SPEEDUP = 2.0


def made_up_setup(setup: Setup, ours: ContestantResult) -> SetupResult:
    """The setup with `ours` and a peer of each kind at 100 us."""
    kinds = {COMPILE: "compiler", FLEX: "compiler", f"{HAND}, pointers": "compiler", CUDNN: "library", EAGER: "library"}
    attention = {FLEX, f"{HAND}, pointers", CUDNN}
    peers = tuple(
        ContestantResult(name, kind, "ok", 100.0)
        for name, kind in kinds.items()
        if setup.is_attention or name not in attention
    )
    untuned = ContestantResult(NO_RECORD, "ours", "ok", 40.0 if setup.name == "causal_pf-512" else 60.0)
    changes = (
        ContestantResult(DEFAULT, "ablation", "ok", 60.0),
        ContestantResult("without a thing", "ablation", "ok", 75.0),
    )
    sizes = {k: v for k, v in setup.op.params.items() if isinstance(v, int | float | str)}
    return SetupResult(
        setup.name, setup.row, setup.group, sizes, setup.cold, setup.flops, setup.bytes, setup.kv_bytes,
        "every element", (ours, untuned, *(changes if setup.name == "g12" else ()), *peers),
    )  # fmt: skip


@pytest.fixture(scope="session")
def made_up() -> BenchmarkResults:
    """Every setup at twice the speed of its peers, on a GPU that does not exist."""
    resources = (Resources("k", 128, 0, 1024, 4),)
    ours = ContestantResult(OURS, "ours", "ok", 100.0 / SPEEDUP, error=1e-4, note="tuned", resources=resources)
    setups = tuple(made_up_setup(s, ours) for s in all_setups())
    trials = [
        {"us": 10.0 * n, "predicted_us": 8.0 * n, "shared": 900 * n, "shared_estimate": 1000 * n} for n in (1, 2, 3)
    ]
    tuning = ({"setup": "g1", "seconds": 40.0, "ended": "converged", "trials": trials},)
    rates = {"copy_gbps": 4000.0, "matmul_tflops": 600.0, "empty_us": 2.0}
    device = {"name": "made-up GPU", "gpu": True}
    return BenchmarkResults(device, {"torch": "0"}, rates, "2000-01-01T00:00:00+00:00", 1.0, "made up", setups, tuning)


@pytest.fixture(scope="module", autouse=True)
def _objects_of_other_tests_are_not_searched():
    """The benchmark collects garbage before each setup, which would go over all that earlier tests have left."""
    gc.freeze()
