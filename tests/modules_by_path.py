"""A module of a file that is in no package: a script, an emitted kernel, a copy of a library."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def module_at(path: Path) -> ModuleType:
    """The module of a file, made anew; in `sys.modules`, which dataclasses need, only while it runs."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
    return module
