"""The project's own set-up: pins, import contracts, a light import, files that fit any machine, and long runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

# The few packages that conda calls something else.
PYPI_NAMES = {"python-graphviz": "graphviz"}
# In environment.yml only: conda brings Python and pip itself, and `dot`, which the other way is a system package.
CONDA_ONLY = {"python", "pip", "graphviz"}


def _pins_of_pyproject() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = sum(project["optional-dependencies"].values(), project["dependencies"])
    pins = {}
    for line in listed:
        requirement = Requirement(line)
        assert requirement.name not in pins, f"{requirement.name} is listed twice"
        assert requirement.specifier, f"{requirement.name} has no pin"
        pins[requirement.name] = _rest(requirement)
    return pins


def _pins_of_environment() -> tuple[dict[str, str], set[str]]:
    """The pins, by PyPI's names, and what is in conda's part alone."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pins: dict[str, str] = {}
    conda_only = set()
    for entry in entries:
        if isinstance(entry, dict):
            for line in entry["pip"]:
                if not line.startswith("--"):
                    requirement = Requirement(line)
                    assert requirement.name not in pins, f"{requirement.name} is listed twice"
                    pins[requirement.name] = _rest(requirement)
            continue
        name, version = re.fullmatch(r"([\w-]+)(.*)", entry).groups()
        if name in CONDA_ONLY:
            conda_only.add(name)
            continue
        name = PYPI_NAMES.get(name, name)
        assert name not in pins, f"{name} is listed twice"
        # One `=` is conda's way to say it; pip's has two.
        pins[name] = _rest(Requirement(name + re.sub(r"^=(?!=)", "==", version)))
    return pins, conda_only


def _rest(requirement: Requirement) -> str:
    """Specifier, extras and marker: all that must be the same in both files."""
    return f"{sorted(requirement.extras)} {requirement.specifier} {requirement.marker}"


def test_pyproject_and_environment_have_the_same_pins():
    pins, conda_only = _pins_of_environment()
    assert pins == _pins_of_pyproject()
    assert conda_only == CONDA_ONLY


def test_version_is_the_same_everywhere():
    import neptune_lab

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert neptune_lab.__version__ == project["version"]


def test_import_contracts_hold(capsys):
    from importlinter.cli import lint_imports

    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_every_module_has_an_import_contract():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    guarded = {name for contract in config["contracts"] for name in contract.get("protected_modules", ())}
    files = [path.stem for path in ROOT.glob("neptune_lab/*.py")]
    packages = [path.parent.name for path in ROOT.glob("neptune_lab/*/__init__.py")]
    free = {"__init__", "collector", "errors", "files", "hashed", "strict"}  # the lowest layers, for everybody
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
        assert name in dir(neptune_lab)


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
    spec = importlib.util.spec_from_file_location("long_run", ROOT / "scripts" / "long_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["long_run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["long_run"]


def test_a_long_run_goes_on_where_it_failed(long_run, tmp_path, capfd):
    def steps(status: int) -> list:
        code = ("print('first')", f"raise SystemExit({status})", "print('third')")
        made = [long_run.Step(f"step {n}", (sys.executable, "-c", c)) for n, c in enumerate(code, 1)]
        return [*made, long_run.Step("by itself", (sys.executable, "-c", "print('fourth')"), resumes=True)]

    assert long_run.run(steps(3), tmp_path, tmp_path / "state") == 1
    said = capfd.readouterr().out
    assert "first" in said
    assert "third" in said
    assert said.endswith("3 of 4 steps passed\nfailed: step 2\n")
    assert list(json.loads((tmp_path / "state" / "passed.json").read_text())) == ["step 1", "step 3", "by itself"]
    assert long_run.run(steps(0), tmp_path, tmp_path / "state") == 0
    said = capfd.readouterr().out
    assert "passed before: step 1\npassed before: step 3" in said
    assert "first" not in said
    assert "fourth" in said
    assert said.endswith("4 of 4 steps passed\n")


def test_other_sources_are_run_again(long_run, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("one")
    before = long_run.digest(tmp_path)
    assert long_run.digest(tmp_path) == before
    (tmp_path / "tests" / "test_it.py").write_text("two")
    assert long_run.digest(tmp_path) != before


def test_the_nightly_run_has_every_nightly_test_and_the_fuzzer(long_run, tmp_path):
    (tmp_path / "tests").mkdir()
    for name, mark in (("slow", "@pytest.mark.nightly"), ("quick", "")):
        text = f"import pytest\n{mark}\n@pytest.mark.parametrize('n', range(2))\ndef test_it(n): pass\n"
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly\naddopts = -m 'not nightly'\n")
    steps = long_run.nightly_steps(tmp_path, "7", tmp_path)
    assert [step.name for step in steps] == ["pytest tests/test_slow.py", "fuzz 20000 --seed 7"]
