"""Test files are rewritten before the workers start, in the form that pytest reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import rewritten
from _pytest.assertion import rewrite


def test_a_file_is_rewritten_once_and_anew_after_a_change(pytestconfig: pytest.Config, tmp_path: Path):
    file = tmp_path / "test_sum.py"
    file.write_text("def test_sum():\n    assert sum([1]) == 1\n")
    kept = rewrite.get_cache_dir(file) / f"test_sum{rewrite.PYC_TAIL}"
    assert rewritten.rewrite_once(pytestconfig, [file]) == [file]
    code = rewrite._read_pyc(file, kept)
    assert code is not None
    assert "@pytest_ar" in code.co_names
    assert rewritten.rewrite_once(pytestconfig, [file]) == []
    file.write_text("def test_sum():\n    assert sum([2]) == 2\n")
    assert rewrite._read_pyc(file, kept) is None
    assert rewritten.rewrite_once(pytestconfig, [file]) == [file]
    assert rewrite._read_pyc(file, kept) is not None
