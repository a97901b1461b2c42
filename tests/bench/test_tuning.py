"""Tuning runs as the results keep them: predictions and estimates beside what was measured."""

from __future__ import annotations

import pytest
from by_name import choice

from neptune_lab.autotune.cost_model import CostModel
from neptune_lab.bench import run as bench_run
from neptune_lab.bench.measured import read
from neptune_lab.bench.run import BenchmarkPlan, tune_setups
from neptune_lab.bench.setups import all_setups, tiny_setups
from neptune_lab.bench.tuning import TUNED_SETUPS, told
from neptune_lab.records import Record
from neptune_lab.runtime.timing import Resources
from neptune_lab.target import Target
from neptune_lab.tuning.tune import TuneResult

G1 = next(s for s in tiny_setups() if s.name == "g1")


def record(block_q: int, us: float | None, shared: int | None) -> Record:
    candidate = choice("rolling_update", block_q=block_q, block_kv=16)
    kernels = () if shared is None else (("a", shared), ("b", 1))
    resources = tuple(Resources(kernel, None, None, size, None) for kernel, size in kernels)
    return Record(
        "w", "gemm_chain", {}, "made-up GPU", "9.0", "0", "0", "s", candidate.to_json(), False, us, resources=resources
    )  # fmt: skip


def tuned() -> TuneResult:
    records = (record(16, 5.0, 4096), record(32, None, None))
    return TuneResult(G1.op, records[0], records, 3, 12.0, "converged")


def test_what_a_tuning_run_found_is_told():
    found = told(G1, tuned())
    assert (found["setup"], found["seconds"], found["ended"]) == ("g1", 12.0, "converged")
    measured, failed = found["trials"]
    predicted = CostModel(G1.op, Target.current())(choice("rolling_update", block_q=16, block_kv=16)) * 1e6
    assert measured["predicted_us"] == pytest.approx(predicted)
    assert (measured["us"], measured["shared"]) == (5.0, 4096)
    # A 16 x 16 and two 16 x 16 tiles of float16 at the least.
    assert measured["shared_estimate"] >= 3 * 16 * 16 * 2
    assert (failed["us"], failed["shared"], failed["shared_estimate"]) == (None, None, None)
    assert failed["predicted_us"] > 0


def test_tuning_is_added_to_the_runs_file(tmp_path, monkeypatch):
    monkeypatch.setattr("neptune_lab.bench.tuning.tune_setup", lambda setup, seconds: told(setup, tuned()))
    plan = BenchmarkPlan((G1,), tmp_path / "b.json")
    tune_setups(plan, 60.0)
    found = tune_setups(plan, 60.0)
    assert [t["setup"] for t in found.tuning] == ["g1"]
    assert read(tmp_path / "b.json").tuning[0]["seconds"] == 12.0
    assert bench_run.read(tmp_path / "b.json").setups == ()


def test_the_setups_to_tune_exist():
    assert set(TUNED_SETUPS) <= {s.name for s in all_setups()}
