"""Tuning in the page without a GPU: `fake_runner` measures, and the candidates are chosen by their warps.

Fixtures import the compiler: pytest imports this file in the process that hands out the tests too, which runs none.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from listed import Listed
from waiting import LONG

if TYPE_CHECKING:
    from neptune_lab.pipeline import Choice
    from neptune_lab.tuning.workers import LocalWorkers


def warps(n: int) -> Choice:
    """A candidate with this number of warps."""
    from by_name import choice

    options = {"num_warps": n} if n else {}
    return choice("rolling_update", block_q=16, block_kv=16, **options)


@pytest.fixture
def three_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow candidate, one that fails and a fast one, in place of MCFuser's search."""
    import fake_runner

    search = Listed(*map(warps, (fake_runner.SLOW, fake_runner.RAISES, fake_runner.FAST)))
    monkeypatch.setattr("neptune_lab.tuning.tune.default_search", lambda *_: search)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Records of this test alone."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))


class Here:
    """Stands for `ChildProcess`, with calls in this process: others take seconds to load TVM and torch."""

    def __init__(self, env: Mapping[str, str] | None = None, preload: Sequence[str] = ()) -> None:
        pass

    def call(self, function: str, *arguments: Any, timeout: float | None = None, restart: bool = True) -> Any:
        from neptune_lab.errors import MeasureError

        module, _, name = function.partition(":")
        try:
            return getattr(import_module(module), name)(*arguments)
        except Exception as error:
            raise MeasureError(f"{type(error).__name__}: {error}") from error

    def kill(self) -> None:
        pass

    close = start = kill


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in other processes runs here, but for measuring on GPUs."""
    monkeypatch.setattr("neptune_lab.runtime.process.ChildProcess", Here)


@pytest.fixture
def fake_workers(monkeypatch: pytest.MonkeyPatch, in_this_process: None) -> LocalWorkers:
    """What `nl.tune` measures with: kernels that are interpreted here, and a made-up clock."""
    from neptune_lab.runtime.gpu_worker import GpuWorker
    from neptune_lab.tuning.workers import LocalWorkers

    monkeypatch.setattr("neptune_lab.runtime.gpu_worker.ChildProcess", Here)
    worker = GpuWorker(None, 1, "fake_runner")
    worker.size = 1  # candidates come in their order
    made = LocalWorkers([worker])
    monkeypatch.setattr(made, "drain", lambda: None)
    monkeypatch.setattr("neptune_lab.tuning.tune.local", lambda gpus: made)
    return made


@pytest.fixture
def held_after_the_first(fake_workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the slow candidate is measured; the others wait until the run gives them up."""
    import fake_runner

    from neptune_lab.runtime.process import not_measured

    drained, measure = threading.Event(), fake_workers.measure

    def held(task, spec):
        if fake_runner.warps(spec) == fake_runner.SLOW:
            return measure(task, spec)
        assert drained.wait(LONG), "the run went on after the cancel"
        raise not_measured()

    monkeypatch.setattr(fake_workers, "measure", held)
    monkeypatch.setattr(fake_workers, "drain", drained.set)
