"""The wheel in clean environments: without dependencies, without extras, with [widgets] and with [tune].

Each environment runs a script of tests/wheel/ outside the repository. The compiler's environments begin with the pinned
torch, Triton and TVM, as a user's may do, and pip must leave them as they are. The environments share one copy of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from saved_records import text
from test_package import ROOT, build, metadata

from neptune_lab.trace import SCHEMA

# One worker makes the environment with torch, Triton and TVM, which all tests share.
pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("wheel")]

SCRIPTS = ROOT / "tests" / "wheel"
PINS = dict(x.split("==") for x in (ROOT / "constraints.txt").read_text().split() if "==" in x)
LARGE = ("torch", "triton", "apache-tvm")
PYTHONS = ("python3.11", "python3.12", "python3.13")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def run(folder: Path, *command: str) -> str:
    """What the command prints, run in `folder` without this process's own paths for imports."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def environment(folder: Path, python: str = sys.executable) -> str:
    """A new environment; its Python."""
    run(folder.parent, python, "-m", "venv", str(folder))
    return str(folder / "bin" / "python")


def install(python: str, *what: str) -> None:
    """Installs with pip; where pip reaches no package index, the test is skipped."""
    command = (python, "-m", "pip", "install", "--quiet", "--no-compile", *what)
    try:
        run(Path(python).parent, *command)
    except AssertionError as error:
        if re.search("NewConnectionError|ConnectTimeout|ProxyError|NameResolutionError", str(error)):
            pytest.skip("pip reaches no package index")
        raise


def versions(python: str) -> dict[str, str]:
    code = f"from importlib.metadata import version\nfor x in {LARGE}: print(x, version(x))"
    return dict(line.split() for line in run(Path(python).parent, python, "-c", code).splitlines())


def check(python: str, script: str, wheel: Path, folder: Path) -> None:
    (folder / "record.json").write_text(text(SCHEMA), encoding="utf-8")
    copy = shutil.copy(SCRIPTS / script, folder)
    run(folder, python, str(copy), str(metadata(wheel)["Version"]), str(folder / "record.json"))


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> str:
    """An environment with the pinned torch, Triton and TVM."""
    python = environment(tmp_path_factory.mktemp("large") / "venv")
    install(python, *(f"{name}=={PINS[name]}" for name in LARGE))
    return python


@pytest.mark.parametrize(
    ("extra", "script"), [("", "compiles.py"), ("[widgets]", "explores.py"), ("[tune]", "tunes.py")]
)
def test_a_clean_environment(extra: str, script: str, large: str, wheel: Path, tmp_path: Path):
    python = environment(tmp_path / "venv")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    shared, own = (run(tmp_path, x, "-c", ask).strip() for x in (large, python))
    Path(own, "shared.pth").write_text(shared)
    before = versions(python)
    install(python, f"{wheel}{extra}")
    assert versions(python) == before
    check(python, script, wheel, tmp_path)
    run(tmp_path, str(Path(python).with_name("neptune-lab")), "list")


def _runs(python: str) -> bool:
    path = shutil.which(python)
    return path is not None and not subprocess.run([path, "-c", ""], capture_output=True).returncode


@pytest.mark.parametrize("name", PYTHONS)
def test_records_and_algebra_need_no_compiler(name: str, wheel: Path, tmp_path: Path):
    if not _runs(name):
        pytest.skip(f"no {name} here")
    python = environment(tmp_path / "venv", name)
    install(python, "--no-deps", str(wheel))
    check(python, "reads.py", wheel, tmp_path)
    listed = [Requirement(x) for x in metadata(wheel).get_all("Requires-Dist", [])]
    install(python, *(str(x) for x in listed if x.name not in LARGE and x.marker is None))
    check(python, "solves.py", wheel, tmp_path)
