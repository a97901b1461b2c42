"""Looks for doctests only in files that have some: one in nine, and finding none takes as long as finding some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    found: list[pytest.Collector] = yield  # type: ignore[misc]
    if all(type(collector).__name__ != "DoctestModule" for collector in found) or b">>> " in file_path.read_bytes():
        return found  # type: ignore[return-value]
    return [c for c in found if type(c).__name__ != "DoctestModule"]  # type: ignore[return-value]
