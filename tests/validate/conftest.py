"""Each test validates anew; what the tests share (planted.py) is on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from neptune_lab.pipeline.validate import forget

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Each test validates anew, and its scripts go to a folder of its own."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    forget()
    yield
    forget()
