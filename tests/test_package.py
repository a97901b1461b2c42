"""What `pip install` gives: the wheel's files and version, and what works without torch, TVM and Triton.

`test_wheel.py` installs the wheel into clean environments.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version
from saved_records import text

import neptune_lab
from neptune_lab.bench.ablation import TUNED
from neptune_lab.bench.kernels import export
from neptune_lab.bench.setups import choose, tiny_setups
from neptune_lab.trace import SCHEMA

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"neptune_lab": ROOT / "neptune_lab", "neptune_widgets": ROOT / "widgets" / "neptune_widgets"}


def hatch(folder: Path, *arguments: str) -> str:
    """Runs the build backend in a folder; what it prints."""
    command = [sys.executable, "-m", "hatchling", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n(`make setup` installs hatchling and hatch-vcs)"
    return done.stdout.strip()


def build(folder: Path, target: str, to: Path) -> Path:
    hatch(folder, "build", "-t", target, "-d", str(to))
    (built,) = to.iterdir()
    return built


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def members(wheel: Path) -> dict[str, bytes]:
    """The wheel's files without those of its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {x: archive.read(x) for x in archive.namelist() if ".dist-info/" not in x}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.mark.nightly
def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path):
    expected = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = members(wheel)
    assert set(found) == expected
    assert {f"{name}/py.typed" for name in PACKAGES} <= expected
    for built in ("explorer.js", "solver.js", "training.js"):
        assert found[f"neptune_widgets/static/{built}"] == (PACKAGES["neptune_widgets"] / "static" / built).read_bytes()
        assert b"export{" in found[f"neptune_widgets/static/{built}"], "the page's script is not a built one"


@pytest.mark.nightly
def test_a_wheel_built_from_the_source_archive_is_the_same(wheel: Path, tmp_path: Path):
    source = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert {"CHANGELOG.md", "Makefile", "constraints.txt", "environment.yml"} <= {x.name for x in folder.iterdir()}
    again = build(folder, "wheel", tmp_path / "wheel")
    assert members(again) == members(wheel)
    assert metadata(again)["Version"] == metadata(wheel)["Version"]


# -- the version ------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with what the build reads of the project's metadata."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


@pytest.mark.nightly
def test_the_version_comes_from_the_git_tag(tree: Path):
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first")
    assert Version(hatch(tree, "version")).is_devrelease  # no tag yet
    git(tree, "tag", "v9.8.7")
    assert hatch(tree, "version") == "9.8.7"
    git(tree, "commit", "-qm", "second", "--allow-empty")
    later = Version(hatch(tree, "version"))
    assert Version("9.8.7") < later < Version("9.8.8")
    assert later.is_devrelease


def test_without_git_the_version_is_the_fallback(tree: Path):
    assert hatch(tree, "version") == "0.1.0.dev0"


def test_the_installed_version_is_told(monkeypatch: pytest.MonkeyPatch):
    try:
        installed = version("neptune-lab")
    except PackageNotFoundError:
        installed = "0+unknown"
    assert neptune_lab.__version__ == installed

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    monkeypatch.delitem(vars(neptune_lab), "__version__")
    assert neptune_lab.__version__ == "0+unknown"


# -- without torch, TVM and Triton ------------------------------------------------------------------------------------

# A module that is missing, whatever asks for it; POSIX modules too, because Windows lacks them.
BLOCK = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
COMPILER = {"torch", "tvm", "tvm_ffi", "triton"}
POSIX = {"fcntl", "grp", "pwd", "resource", "termios"}


def without(names: set[str], code: str, *arguments: str) -> str:
    """What `code` prints in a process in which these modules are missing."""
    command = [sys.executable, "-c", BLOCK.format(names=names) + code, *arguments]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DRAW = """
import neptune_lab as nl
from neptune_lab import course
from neptune_widgets import static_view

record = nl.load_trace(sys.argv[1])
shown = nl.explore(sys.argv[1])
assert shown.trace == record
assert record.operator.title in static_view.html(record)
assert record.operator.title in shown.export_html(sys.argv[2])
course.show_graph(record.steps[-1].phases[-1].graph, "dataflow")
print(record.kernel.name)
"""

ALGEBRA = """
import neptune_lab as nl
from neptune_lab import course
from neptune_widgets.course import algebra

term = nl.repair.solve("sum", "exp(c - r)", "r")
course.show_maths(term)
assert term.evaluate(2.0, {"r": 3.0}, {"r": 3.0}) == 2.0
course.show_maths(nl.repair.solve_vector("sum", "(c - r)**2", "r"))
assert nl.solver("exp(c - r)*v/s", producers="r, s").term is not None
verdicts = algebra.by_hand(lambda t, r, now: t * 8 ** (r - now)), algebra.known("negative"), algebra.moved_sum(6)
print(*map(bool, verdicts))
"""

REFUSED = """
for name in ("compile", "Schedule", "attention"):
    try:
        getattr(nl, name)
    except ImportError as error:
        print(error)
"""


def test_records_are_drawn_without_the_compiler(tmp_path: Path):
    (tmp_path / "record.json").write_text(text(SCHEMA), encoding="utf-8")
    arguments = (str(tmp_path / "record.json"), str(tmp_path / "page.html"))
    assert without(COMPILER | POSIX, DRAW, *arguments).splitlines()[-1] == "attention_causal"
    assert (tmp_path / "page.html").is_file()


@pytest.mark.nightly
def test_the_courses_algebra_works_without_the_compiler_and_the_rest_says_what_it_needs():
    *_, verdicts, compiling, scheduling, attending = without(COMPILER | POSIX, ALGEBRA + REFUSED).splitlines()
    assert verdicts == "True True True"
    for name, line in {"compile": compiling, "Schedule": scheduling, "attention": attending}.items():
        assert re.match(rf"neptune_lab\.{name} needs '(tvm|torch)', which is not installed here: pip install", line)
        assert line.endswith(
            "(it has wheels for Linux; load_trace, explore of a saved record, repair and solver work without it)"
        )


MEASURE = """
from pathlib import Path
from neptune_lab.bench import measuring, run, setups
from neptune_lab.bench.ablation import TUNED
from neptune_lab.bench.contestants import launchable
from neptune_lab.bench.reference import reference
from neptune_lab.bench.tensors import make_tensors
from neptune_lab.bench.warm import Source

setup = setups.choose(setups.tiny_setups(), ["l2_norm-4x64"])[0]
tensors = make_tensors(setup.op)
ready = launchable(Source(Path(sys.argv[1])).kernels()(setup, TUNED), tensors)
print(ready.note, reference(setup, tensors).error(ready.call()) < 1e-3)
"""


def test_exported_kernels_are_measured_without_tvm(tmp_path: Path):
    pairs = [(s, TUNED) for s in choose(tiny_setups(), ["l2_norm-4x64"])]
    export(pairs, tmp_path)
    assert without({"tvm", "tvm_ffi"}, MEASURE, str(tmp_path)).splitlines()[-1] == "what the shape suggests True"
