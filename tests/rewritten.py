"""Rewrites the asserts of all test files once, before the workers start.

In a fresh clone nothing is rewritten yet, and the workers collect the same files at the same time: each would rewrite
all of them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    # A few tests are not worth it: xdist's controller does not know which files they are in.
    if config.args_source is not config.ArgsSource.ARGS and not sys.dont_write_bytecode:
        rewrite_once(config, sorted({*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")}))


def rewrite_once(config: pytest.Config, files: Iterable[Path]) -> list[Path]:
    """Writes what pytest reads in place of a test file.

    Returns:
        The files whose rewritten form was missing or older than the file.
    """
    written = []
    for file in files:
        kept = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        digest = importlib.util.source_hash(file.read_bytes())
        if _header(kept)[8:] == digest or not rewrite.try_makedirs(kept.parent):
            continue
        source_hash, code = rewrite._rewrite_test(file, config)
        if rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept):
            written.append(file)
    return written


def _header(kept: Path) -> bytes:
    """The first bytes of a rewritten file: of Python's version, of the kind of file, and of the source."""
    if not kept.is_file():
        return b""
    with kept.open("rb") as file:
        return file.read(16)
