"""`make` removes what it made, and nothing else: with a made-up Python, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Stands for Python and for the one in the environment: everything succeeds at once, and `-m venv` as `venv` says.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
  {venv}
  touch "$3/pyvenv.cfg"
fi
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make setup` and `make clean` need of a clone."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("neptune_lab", "widgets", "tests", "notebooks", "docs"):
        (tmp_path / name).mkdir()
    return tmp_path


def make(clone: Path, *arguments: str, venv_works: bool = True) -> subprocess.CompletedProcess[str]:
    python = clone / "made-up-python"
    python.write_text(PYTHON.format(venv="" if venv_works else "exit 1"))
    python.chmod(0o755)
    command = ["make", "-C", str(clone), f"PYTHON={python}", *arguments]
    # Under `make test`, the variables of that make would make this one keep going.
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(command, capture_output=True, text=True, env=own)


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def mine(clone: Path) -> Path:
    """A folder with work of the user's, which is no virtual environment."""
    folder = clone / "mine"
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "chapter1.tex").write_text("years of work")
    return folder


@pytest.mark.parametrize("venv_works", [True, False])
def test_a_folder_with_files_is_refused_and_kept(clone: Path, mine: Path, venv_works: bool):
    done = make(clone, "setup", "VENV=mine", venv_works=venv_works)
    assert files(mine) == {"thesis/chapter1.tex": "years of work"}
    assert done.returncode
    assert (
        "error: VENV=mine exists and is no working virtual environment: nothing was changed; give a new" in done.stderr
    )


def test_a_folder_with_a_python_that_is_no_environment_is_refused(clone: Path, mine: Path):
    """As /usr is: pip would install into the system."""
    (mine / "bin").mkdir()
    (mine / "bin" / "python").write_text("#!/bin/sh\n")
    (mine / "bin" / "python").chmod(0o755)
    before = files(mine)
    done = make(clone, "setup", "VENV=mine")
    assert done.returncode
    assert "is no working virtual environment" in done.stderr
    assert files(mine) == before


@pytest.mark.parametrize("venv", ["mine/thesis/chapter1.tex", "mine", "mine/"])
def test_distclean_keeps_what_make_did_not_make(clone: Path, mine: Path, venv: str):
    done = make(clone, "distclean", f"VENV={venv}")
    assert files(mine) == {"thesis/chapter1.tex": "years of work"}
    assert done.returncode
    assert "was not made by `make setup`: it was not removed" in done.stderr


def test_distclean_follows_no_link(clone: Path, mine: Path):
    assert make(clone, "setup", "VENV=made").returncode == 0
    (clone / "made").rename(clone / "moved")
    (clone / "made").symlink_to("moved")
    assert make(clone, "distclean", "VENV=made/").returncode
    assert (clone / "moved" / "bin" / "python").is_file()


@pytest.mark.parametrize("venv", ["", "mine too", "mine ", ". mine"])
def test_a_name_that_is_not_one_folder_is_refused(clone: Path, mine: Path, venv: str):
    for target in ("setup", "distclean", "clean"):
        done = make(clone, target, f"VENV={venv}", venv_works=False)
        assert files(mine) == {"thesis/chapter1.tex": "years of work"}
        if venv.split() != ["mine"]:
            assert "expected one folder without spaces in its name" in done.stderr


def test_a_folder_that_make_made_goes_where_venv_fails(clone: Path):
    done = make(clone, "setup", "VENV=new", venv_works=False)
    assert "error: could not make new; on Debian and Ubuntu the package python3-venv is needed" in done.stderr
    assert not (clone / "new").exists()


def test_an_empty_folder_of_the_users_stays_where_venv_fails(clone: Path):
    (clone / "empty").mkdir()
    assert make(clone, "setup", "VENV=empty", venv_works=False).returncode
    assert (clone / "empty").is_dir()


def test_an_environment_is_made_used_and_removed(clone: Path):
    done = make(clone, "setup")
    assert done.returncode == 0, done.stderr
    assert (clone / ".venv" / "share/jupyter/lab/settings/overrides.json").is_file()
    assert "Nothing to be done for 'setup'." in make(clone, "setup").stdout
    assert make(clone, "distclean").returncode == 0
    assert not (clone / ".venv").exists()
    assert make(clone, "distclean").returncode == 0


def test_what_an_interrupted_set_up_left_is_made_again(clone: Path):
    assert make(clone, "setup").returncode == 0
    (clone / ".venv" / "bin" / "python").unlink()
    (clone / ".venv" / ".neptune_lab-is-set-up").unlink()
    done = make(clone, "setup")
    assert done.returncode == 0, done.stderr
    assert (clone / ".venv" / "bin" / "python").is_file()


def test_an_environment_of_the_users_is_used_and_kept(clone: Path, mine: Path):
    assert make(clone, "setup", "VENV=made").returncode == 0
    for path in (clone / "made").iterdir():
        if "neptune_lab" not in path.name:
            path.rename(mine / path.name)
    settings = mine / "share/jupyter/lab/settings/overrides.json"
    settings.write_text("my own settings")
    assert make(clone, "setup", "VENV=mine").returncode == 0
    assert settings.read_text() == "my own settings"
    assert make(clone, "distclean", "VENV=mine").returncode
    assert files(mine)["thesis/chapter1.tex"] == "years of work"


def test_clean_removes_what_make_made_by_name(clone: Path):
    kept = (
        "build/tuned/records.sqlite",
        "build/student/00_tour.ipynb",
        "dist/backup.tar",
        "notebooks/.ipynb_checkpoints/mine.ipynb",
        "mine.egg-info/notes",
        "docs/page.md",
    )
    gone = (
        "build/docs/index.html",
        "docs/generated/passes.md",
        "docs/course/00_tour.ipynb",
        "tests/__pycache__/x.pyc",
        ".ruff_cache/x",
    )
    for name in (*kept, *gone):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(name)
    assert make(clone, "clean").returncode == 0
    assert [name for name in kept if not (clone / name).is_file()] == []
    assert [name for name in gone if (clone / name).exists()] == []


def test_help_lists_every_target():
    done = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    assert listed == set(phony.split()[1:])
    assert {"fuzz", "nightly"} <= listed


@pytest.mark.parametrize("failing", ["", "lint-imports", "python"])
def test_make_test_runs_linters_and_tests_and_fails_with_either(clone: Path, failing: str):
    assert make(clone, "setup").returncode == 0
    (clone / "scripts" / "system_packages.sh").write_text("")
    for name in ("ruff", "lint-imports", "pyright", "python"):
        tool = clone / ".venv" / "bin" / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> "{clone}/ran"\nexit {int(name == failing)}\n')
        tool.chmod(0o755)
    done = make(clone, "test", "ARGS=-k 'a or b'")
    assert (done.returncode != 0) == bool(failing)
    ran = (clone / "ran").read_text().splitlines()
    assert any(line.startswith("python -m pytest ") and line.endswith(" -k a or b") for line in ran)
    assert "lint-imports --no-logo" in ran
    assert not any(line.startswith("pyright ") for line in ran)
    (clone / "ran").unlink()
    assert (make(clone, "check").returncode != 0) == (failing == "lint-imports")
    ran = (clone / "ran").read_text().splitlines()
    assert any(line.startswith("pyright ") for line in ran) == (failing != "lint-imports")
