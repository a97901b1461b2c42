"""The benchmark on a disk that fills up: it goes on, and its results are somewhere else in the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from neptune_lab import files
from neptune_lab.bench import run as bench
from neptune_lab.bench.measured import BenchmarkResults, SetupResult, read
from neptune_lab.bench.measuring import Measured
from neptune_lab.bench.run import BenchmarkPlan
from neptune_lab.errors import FileError


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Three setups that take no time to measure, and a disk that is full once it has begun."""
    empty = BenchmarkResults({"name": "made up", "gpu": True}, {}, {}, "2000-01-01T00:00:00+00:00", 1.0, "made up")
    made = lambda name: SetupResult(name, "row", "group", {}, False, 1.0, 1, 1, "nothing", ())  # noqa: E731
    monkeypatch.setattr(bench, "_begin", lambda plan: empty)
    monkeypatch.setattr(bench, "measure", lambda task, timer: Measured(made(task.setup.name)))
    monkeypatch.setattr(bench, "line", lambda result: result.name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(elsewhere))
    real = files.write_text

    def write(path, text, **more):
        if path.parent == elsewhere:
            return real(path, text)
        raise FileError("cannot write: No space left on device", help="free some space")

    monkeypatch.setattr(files, "write_text", write)
    setups: Any = tuple(SimpleNamespace(name=name) for name in "abc")
    return BenchmarkPlan(setups, tmp_path / "bench.json")


def test_all_that_was_measured_is_elsewhere(plan, tmp_path):
    told: list[str] = []
    with pytest.raises(FileError, match="everything is in"):
        bench.run(plan, timer=cast(Any, None), progress=told.append)
    (path,) = (tmp_path / "elsewhere").iterdir()
    assert [s.name for s in read(path).setups] == ["a", "b", "c"]
    assert read(plan.out).setups == ()
    assert sum("kept in memory" in line for line in told) == 1


def test_so_it_is_after_ctrl_c(plan, tmp_path, monkeypatch):
    real = bench.measure

    def measure(task, timer):
        if task.setup.name == "c":
            raise KeyboardInterrupt
        return real(task, timer)

    monkeypatch.setattr(bench, "measure", measure)
    with pytest.raises(FileError, match="everything is in") as error:
        bench.run(plan, timer=cast(Any, None))
    assert isinstance(error.value.__cause__, FileError)
    (path,) = (tmp_path / "elsewhere").iterdir()
    assert [s.name for s in read(path).setups] == ["a", "b"]
