"""The project's own set-up: pins, import contracts, a light import, files that fit any machine, and long runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import resuming
import yaml
from modules_by_path import module_at
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]

# Pinned beside the direct requirements, because TVM and its FFI must be of one build.
PINNED_TOO = {"apache-tvm-ffi"}


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _ranges() -> dict[str, Requirement]:
    project = _project()
    listed = [Requirement(x) for x in sum(project["optional-dependencies"].values(), project["dependencies"])]
    found = {canonicalize_name(x.name): x for x in listed}
    assert len(found) == len(listed), "a package is listed twice"
    return found


def _pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    listed = [Requirement(x) for x in lines if x and not x.startswith("#")]
    found = {canonicalize_name(x.name): x for x in listed}
    assert len(found) == len(listed), "a package is pinned twice"
    return found


def test_every_requirement_has_a_range_and_one_pin_within_it():
    ranges, pins = _ranges(), _pins()
    assert set(pins) == set(ranges) | PINNED_TOO
    for name, pin in pins.items():
        (exact,) = pin.specifier
        assert exact.operator == "==", pin
        assert not exact.version.endswith(".*"), pin
        assert not pin.marker, f"{pin}: a constraint applies where the requirement does"
        assert name in PINNED_TOO or exact.version in ranges[name].specifier, f"{pin} is outside {ranges[name]}"
    for name, requirement in ranges.items():
        assert {x.operator for x in requirement.specifier} in ({">="}, {">=", "<"}), f"{name}: expected a range"


def test_environment_installs_by_the_same_files():
    *conda, by_pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    constraint, editable = by_pip["pip"]
    assert conda == [f"python{_project()['requires-python']}", "pip", "graphviz"]
    assert constraint == "--constraint constraints.txt"
    assert re.fullmatch(r"--editable \.\[(.*)\]", editable).group(1).split(",") == list(
        _project()["optional-dependencies"]
    )


def test_make_installs_every_extra_under_the_constraints():
    (install,) = [x for x in (ROOT / "Makefile").read_text().splitlines() if "--editable" in x]
    assert "--constraint constraints.txt" in install
    assert f'".[{",".join(_project()["optional-dependencies"])}]"' in install


def test_the_docs_list_what_the_algebra_needs():
    listed = {canonicalize_name(Requirement(x).name) for x in _project()["dependencies"]}
    (line,) = re.findall(r"pip install (.*) # for the algebra", (ROOT / "docs/using/install.md").read_text())
    assert set(map(canonicalize_name, line.split())) == listed - {"torch", "apache-tvm", "triton"}


def test_the_versions_of_python_are_the_same_everywhere():
    assert _project()["requires-python"] == ">=3.11,<3.14"
    minors = {x.rpartition(" ")[2] for x in _project()["classifiers"] if "Python :: 3." in x}
    assert minors == {"3.11", "3.12", "3.13"}
    for name in ("Makefile", "scripts/environment.sh"):
        assert "not (3, 11) <= sys.version_info < (3, 14)" in (ROOT / name).read_text(), name
    for name in ("README.md", "docs/index.md", "CONTRIBUTING.md", "Makefile", "scripts/environment.sh"):
        text = (ROOT / name).read_text()
        assert "Python 3.11 to 3.13" in text, name
        assert "3.11 or later" not in text, name


@pytest.mark.nightly
def test_import_contracts_hold(capsys):
    from importlinter.cli import lint_imports

    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_every_module_has_an_import_contract():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    guarded = {name for contract in config["contracts"] for name in contract.get("protected_modules", ())}
    files = [path.stem for path in ROOT.glob("neptune_lab/*.py")]
    packages = [path.parent.name for path in ROOT.glob("neptune_lab/*/__init__.py")]
    free = {
        "__init__",
        "__main__",
        "collector",
        "errors",
        "files",
        "hashed",
        "power_of_two",
        "progress",
        "relative_error",
        "scalar_ops",
        "strict",
        "target",
        "tensor_spec",
        "wrapping",
    }  # the lowest layers, for everybody
    unguarded = {f"neptune_lab.{module}" for module in {*files, *packages} - free} - guarded
    assert not unguarded, f"no contract in pyproject.toml says who may import {sorted(unguarded)}"


def test_import_is_light():
    heavy = ["tvm", "sympy", "torch", "triton", "numpy", "IPython"]
    code = f"import sys, neptune_lab; dir(neptune_lab); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_listed_once_and_load():
    import neptune_lab

    assert list(neptune_lab._HOMES) == neptune_lab.__all__
    for name in neptune_lab.__all__:
        assert getattr(neptune_lab, name) is not None
    assert [name for name in dir(neptune_lab) if not name.startswith("_")] == sorted(neptune_lab.__all__)


def test_unknown_public_name_is_refused():
    import neptune_lab

    with pytest.raises(AttributeError, match=r"no attribute 'scheduel'.*Schedule"):
        neptune_lab.scheduel


def test_missing_package_is_named(monkeypatch):
    import neptune_lab

    monkeypatch.setitem(neptune_lab._HOMES, "explorer_of_a_test", "neptune_widgets.not_there:explore")
    with pytest.raises(ImportError, match=r"not installed here: pip install 'neptune-lab\[widgets\]'"):
        neptune_lab.explorer_of_a_test


def test_no_file_names_a_place_on_one_machine():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    somebodys = re.compile(r"(?<![\w.~-])/(?:work|root|home/[\w.-]+|Users/[\w.-]+|opt/(?:wheels|pypi))(?![\w.-])")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file() or path.suffix in {".png", ".ico", ".woff2"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [f"{name}:{number}: {hit.group()}" for hit in somebodys.finditer(line)]
    assert not found, "\n".join(found)


def test_ci_runs_make_test():
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert "make test" in run.read_text()


@pytest.fixture(scope="module")
def long_run():
    return module_at(ROOT / "scripts" / "long_run.py")


def test_a_long_run_says_what_failed_and_goes_on(long_run, tmp_path, capfd):
    codes = {"first": "raise SystemExit(3)", "nothing left": "raise SystemExit(5)", "third": "print('third ran')"}
    commands = {name: (sys.executable, "-c", code) for name, code in codes.items()}
    assert long_run.run(commands, tmp_path, tmp_path / "state") == 1
    said = capfd.readouterr().out
    assert "third ran" in said
    assert said.endswith(
        "first: FAILED after 0.0 minutes\nnothing left: passed after 0.0 minutes\nthird: passed after 0.0 minutes\n"
    )
    assert long_run.run({"third": commands["third"]}, tmp_path, tmp_path / "state") == 0


def test_other_sources_are_run_again(long_run, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("one")
    before = long_run.digest(tmp_path)
    assert long_run.digest(tmp_path) == before
    (tmp_path / "tests" / "test_it.py").write_text("two")
    other_tests = long_run.digest(tmp_path)
    assert other_tests != before
    (tmp_path / "constraints.txt").write_text("torch==1")
    assert long_run.digest(tmp_path) not in (before, other_tests)


@pytest.mark.nightly
def test_tests_that_passed_are_not_run_again(long_run, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly\naddopts = -p resuming -m 'not nightly'\n")
    test = tmp_path / "tests" / "test_slow.py"
    text = "import pytest\n@pytest.mark.nightly\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n): {}\n"

    def outcome(body: str, workers: int) -> str:
        test.write_text(text.format(body) + "def test_quick(): assert 0\n")
        command = [c.replace("logical", str(workers)) for c in long_run.nightly_command(0, tmp_path / "state")]
        del command[(at := command.index("--night")) : at + 2]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
        return re.sub(r" in .*", "", said.splitlines()[-1]).strip("= ")

    assert outcome("assert n % 2", 1) == "2 failed, 2 passed"
    assert outcome("assert n % 2 == 0; pytest.skip()", 0) == "2 skipped, 3 deselected"
    assert outcome("assert n % 2 == 0", 1) == "2 passed"


def test_every_nightly_test_has_its_turn_within_some_nights():
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

        def get_closest_marker(self, name: str) -> bool:
            return "day" not in self.nodeid

    names = [f"{file}::{test}" for file in ("a.py", "b.py") for test in (*(f"s[{n}]" for n in range(9)), "t", "day")]
    items: Any = [Item(name) for name in names]
    for first in (0, 740_000):
        nights = [resuming.of_other_nights(items, first + n) for n in range(resuming.NIGHTS)]
        kept = [{item.nodeid for item in items if item not in others} for others in nights]
        assert sum(len(night) for night in kept) == len(names) + 2 * (resuming.NIGHTS - 1)
        assert set[str]().union(*kept) == set(names)
        assert all(sum(name.startswith("a.py::s") for name in night) == 3 for night in kept)
        assert all("a.py::day" in night for night in kept)


def test_what_runs_at_night_is_named_with_what_the_day_keeps():
    """Every file with tests of the mark has a row in tests/nightly.md, and every row has such a file."""
    tests = ROOT / "tests"
    rows = re.findall(r"^\| `([^`]+\.py)` \|", (tests / "nightly.md").read_text(encoding="utf-8"), re.MULTILINE)
    marks = "pytest.mark.nightly", "from by_turns import"
    marked = [p for p in tests.rglob("test_*.py") if any(mark in p.read_text(encoding="utf-8") for mark in marks)]
    assert sorted(row.removeprefix("tests/") for row in rows) == sorted(
        p.relative_to(tests).as_posix() for p in marked if p.name != Path(__file__).name
    )


def _conftest(request: pytest.FixtureRequest) -> Any:
    plugins = request.config.pluginmanager.get_plugins()
    (conftest,) = [p for p in plugins if getattr(p, "__file__", None) == str(ROOT / "tests" / "conftest.py")]
    return conftest


def test_one_in_n_of_a_test_s_parameters_is_in_every_run(request: pytest.FixtureRequest):
    class Item(SimpleNamespace):
        def get_closest_marker(self, name: str) -> pytest.Mark | None:
            return next((mark.mark for mark in self.marks if mark.mark.name == name), None)

        def add_marker(self, mark: pytest.MarkDecorator) -> None:
            self.marks.append(mark)

    def by_day(count: int, *marks: pytest.MarkDecorator) -> list[int]:
        items = [Item(parent=None, name="test_it", marks=[pytest.mark.one_in(3), *marks]) for _ in range(count)]
        _conftest(request)._leave_to_the_night(items)
        return [n for n, item in enumerate(items) if item.get_closest_marker("nightly") is None]

    assert [len(by_day(count)) for count in (1, 2, 3, 4, 10)] == [1, 1, 1, 2, 4]
    assert by_day(10) == by_day(10)
    assert by_day(10, pytest.mark.nightly) == []


def test_browser_tests_are_one_unit_of_work_and_every_other_file_is_one(request: pytest.FixtureRequest):
    conftest = _conftest(request)

    def scheduler(dist: str):
        config = SimpleNamespace(getoption=lambda name: dist, getvalue=lambda name: ["2*popen"])
        return conftest.pytest_xdist_make_scheduler(config, None)

    assert scheduler("load") is None
    scope = scheduler("loadfile")._split_scope
    assert (
        scope("tests/browser/test_course.py::test[a]") == scope("tests/browser/test_solver.py::test") == "tests/browser"
    )
    assert scope("tests/docs/test_site.py::test[tests/browser/]") == "tests/docs/test_site.py"


def test_the_small_installation_is_the_package_without_torch_tvm_and_triton():
    """`pip install --group reading`, in docs/teaching.md and docs/using/install.md."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = written["project"]
    all_of_it = [*project["dependencies"], *project["optional-dependencies"]["widgets"]]
    light = [line for line in all_of_it if Requirement(line).name not in ("torch", "apache-tvm", "triton")]
    assert written["dependency-groups"]["reading"] == light
    for page in ("docs/teaching.md", "docs/using/install.md"):
        assert "pip install --group reading" in (ROOT / page).read_text(encoding="utf-8")
