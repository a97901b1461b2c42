"""Cases on all cores, in processes: one that dies or takes too long is a recorded failure, and the run goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.in_time import run_in_time
from fuzz.report import Report
from neptune_lab.bench.workers import Lost, run_apart

# The processes are replaced after so many cases, so that memory that a library keeps does not add up.
_BATCH = 2500

# Wall seconds per CPU second of the limit: a case that waits without an end is late too, whatever else runs.
_WAITS = 20

Case = Callable[[tuple[int, str]], dict[str, Any]]


def run_cases(
    count: int, seed: str, jobs: int, state: Path | None, limit: float, report: Report, case: Case | None = None
) -> None:
    """Runs the cases that the state file has no record of, and adds all records to `report`.

    Args:
        limit: CPU seconds for one case.
        case: the record of a case's number and the seed; default: `run_one`.
    """
    if case is None:
        from fuzz.one_case import run_one as case
    done = _read_state(state, seed)
    for entry in done.values():
        if entry["n"] < count:
            report.add(entry)
    name = f"{case.__module__}:{case.__name__}"
    left = [(name, limit, n, seed) for n in range(count) if n not in done]
    file = _open_state(state, seed)
    environment = {name: os.environ.get(name, "1") for name in ("TRITON_INTERPRET", "OMP_NUM_THREADS")}
    try:
        for first in range(0, len(left), _BATCH):
            tasks = left[first : first + _BATCH]
            apart = run_apart(run_in_time, tasks, workers=jobs, timeout_s=_WAITS * limit, environment=environment)
            for (_, _, n, _), found in apart:
                entry = _lost(n, found) if isinstance(found, Lost) else found
                report.add(entry)
                if file is not None:
                    file.write(json.dumps(entry) + "\n")
                    file.flush()
    finally:
        if file is not None:
            file.close()


def _lost(n: int, lost: Lost) -> dict[str, Any]:
    """The record of a case that gave none."""
    late = lost.reason.startswith(("took longer", f"the process ended with status {-signal.SIGPROF:d}"))
    return {"n": n, "verdict": "late" if late else "crashed", "detail": lost.reason}


def _read_state(state: Path | None, seed: str) -> dict[int, dict[str, Any]]:
    """Records by case of a run with the same seed; a line that was cut off is left."""
    found: dict[int, dict[str, Any]] = {}
    if state is None or not state.is_file():
        return found
    lines = state.read_text(encoding="utf-8").splitlines()
    if not lines or json.loads(lines[0]) != {"seed": seed}:
        raise SystemExit(f"{state} is of another seed; give another file, or remove it")
    for line in lines[1:]:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[entry["n"]] = entry
    return found


def _open_state(state: Path | None, seed: str) -> Any:
    if state is None:
        return None
    new = not state.is_file()
    state.parent.mkdir(parents=True, exist_ok=True)
    file = state.open("a", encoding="utf-8")
    if new:
        file.write(json.dumps({"seed": seed}) + "\n")
    else:
        file.write("\n")  # after a line that was cut off
    return file
