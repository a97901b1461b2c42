"""Measuring without a GPU: `fake_runner` in the processes, kept for a module since they take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from by_name import choice
from waiting import LONG

from neptune_lab.operators import attention
from neptune_lab.pipeline import Choice
from neptune_lab.runtime.gpu_worker import GpuWorker


@pytest.fixture(scope="session")
def small():
    """Causal attention that Triton's interpreter runs at once."""
    return attention.causal(heads=2, kv_heads=1, seq=32, head_dim=16)


@pytest.fixture(scope="session")
def with_warps():
    """A candidate whose number of warps says what `fake_runner` makes of it."""

    def make(warps: int) -> Choice:
        options = {"num_warps": warps} if warps else {}
        return choice("rolling_update", block_q=16, block_kv=16, **options)

    return make


@pytest.fixture(scope="module")
def gpu_worker() -> Iterator[GpuWorker]:
    made = GpuWorker(None, 1, "fake_runner", compile_seconds=LONG, measure_seconds=LONG)
    yield made
    made.close()
