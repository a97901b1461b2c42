"""A cache directory of its own for these tests, and what they share (attention_reference.py) on the path."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from neptune_lab.pytorch import compiled, flex_attention, known_calls, length_plans, lengths

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_LAB_CACHE", str(path))
        yield path


@pytest.fixture(autouse=True)
def nothing_seen_before():
    """No length was seen: a second one would get a kernel for all lengths.  No call is known."""
    lengths.forget()
    known_calls.forget()


@pytest.fixture
def nothing_seen(monkeypatch, tmp_path):
    """No length was seen, and no kernel is on disk."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    flex_attention.forget()
    yield
    lengths.forget()


@pytest.fixture
def compile_whole() -> Any:
    """`compile_whole(function)`: without graph breaks, through AOTAutograd; nothing is left of it for the next test."""
    torch._dynamo.reset()
    yield partial(torch.compile, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()


@pytest.fixture
def splits():
    """Kernels for all lengths are those that users get: their columns are in splits."""


@pytest.fixture(autouse=True)
def one_loop_for_all_lengths(request, monkeypatch):
    """Other tests get kernels for all lengths with one loop over the columns, which compile in a third of the time."""
    if "splits" not in request.fixturenames and request.node.get_closest_marker("nightly") is None:
        monkeypatch.setattr(length_plans, "SHORT_HINT", 128)


@pytest.fixture
def compilations(monkeypatch):
    """The names of the mods of each compilation."""
    made = []
    before = compiled._compiled

    def counted(problem, score_mod, mask_mod, *others):
        made.append((problem.q, getattr(score_mod, "__name__", None), getattr(mask_mod, "__name__", None)))
        return before(problem, score_mod, mask_mod, *others)

    monkeypatch.setattr(compiled, "_compiled", counted)
    monkeypatch.setattr(flex_attention, "_kernels", type(flex_attention._kernels)())
    return made


@pytest.fixture
def all_compilations(compilations, monkeypatch, tmp_path):
    """As `compilations`, with nothing on disk from other tests."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    return compilations
