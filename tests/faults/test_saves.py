"""Each file that is saved anywhere goes through `neptune_lab.files`, and survives what that is tested on."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faulty_disk as disk
import pytest
from neptune_widgets import views
from neptune_widgets.course import student

import neptune_lab as nl
from neptune_lab import records, trace
from neptune_lab.bench import measured
from neptune_lab.errors import FileError
from neptune_lab.operators import softmax

ROOT = Path(__file__).parents[2]

# Methods and functions that write files by themselves.
_WRITES = {
    "write_text", "write_bytes", "savez", "savez_compressed", "savetxt", "tofile", "dump", "save", "mkstemp",
    "NamedTemporaryFile", "copy", "copy2", "copyfile", "copytree", "move", "write_html", "write_image", "write_json",
}  # fmt: skip
_MODULES = {"np", "numpy", "torch", "json", "pickle", "shutil", "tempfile", "nbformat", "path", "Path", "zipfile"}
# A text without these words has no such call, and need not be parsed.
_WORDS = re.compile(rf"\b(?:{'|'.join(sorted({*_WRITES, 'open', 'fdopen', 'nbformat'}))})\b")
_PATHS = {"write_text", "write_bytes", "write_html", "write_image", "write_json"}


def _writes(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="nbformat"), attr="write"):
            return True
        case ast.Attribute(attr=name) if name in _PATHS:
            return True
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _MODULES and name in _WRITES:
            return not (module == "np" and name == "savez" and _name(call) == "packed")
        case ast.Attribute(attr="open") | ast.Name(id="open") | ast.Attribute(attr="fdopen"):
            modes = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
            return any(isinstance(m, str) and set(m) & set("wax+") and set(m) <= set("rwaxbt+U") for m in modes)
        case _:
            return False


def _name(call: ast.Call) -> str:
    return call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else ""


def test_nothing_is_written_but_through_files():
    found = []
    for folder in ("neptune_lab", "widgets/neptune_widgets", "scripts", "docs/_ext"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == ROOT / "neptune_lab" / "files.py":
                continue
            text = path.read_text(encoding="utf-8")
            nodes = ast.walk(ast.parse(text)) if _WORDS.search(text) else ()
            calls = (node for node in nodes if isinstance(node, ast.Call))
            found += [f"{path.relative_to(ROOT)}:{call.lineno}" for call in calls if _writes(call)]
    assert found == [], "save with neptune_lab.files.write_text or write_bytes"


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(softmax.figure1(rows=4, cols=8))


def _course(path: Path) -> Callable[[], object]:
    source = path.parent / "course"
    source.mkdir()
    cells = [{"metadata": {"tags": ["answer"]}}, {"metadata": {}}]
    (source / path.name).write_text(json.dumps({"cells": cells}))
    return lambda: student.write(source, path.parent)


SAVES: dict[str, Callable[[Path, Any], Callable[[], object]]] = {
    "trace": lambda path, kernel: lambda: trace.save(kernel.trace, path),
    "kernel": lambda path, kernel: lambda: kernel.export(path),
    "page": lambda path, kernel: lambda: nl.explore(kernel).export_html(path),
    "view": lambda path, kernel: lambda: views.save({"step": 1}, path),
    "records": lambda path, kernel: lambda: records.Store(path.parent / "none").export(path),
    "bench": lambda path, kernel: (
        lambda: measured.write(path, measured.BenchmarkResults({}, {}, {}, "2000-01-01T00:00:00+00:00", 1.0, "made up"))
    ),
    "student's copy": lambda path, kernel: _course(path),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", SAVES)
def test_a_full_disk_leaves_the_old_file(name, kernel, tmp_path, monkeypatch):
    path = tmp_path / "saved.ipynb"
    old = "old"
    path.write_text(old)
    save = SAVES[name](path, kernel)
    names = sorted(os.listdir(tmp_path))

    def check():
        for copy in tmp_path.glob("*.before-*"):  # of a student's work, made first
            assert copy.read_text() == old
            copy.unlink()
        assert sorted(os.listdir(tmp_path)) == names
        if path.read_text() != old:  # only the sync of the folder failed
            path.write_text(old)

    assert disk.at_each(monkeypatch, save, disk.full, check) >= 5
    assert path.read_text() != old


@pytest.mark.parametrize("name", [n for n in SAVES if n not in ("bench", "student's copy")])
def test_a_missing_folder_is_an_error_with_help(name, kernel, tmp_path):
    with pytest.raises(FileError, match="cannot write") as caught:
        SAVES[name](tmp_path / "missing" / "saved", kernel)()
    assert "mkdir -p" in (caught.value.help or "")
