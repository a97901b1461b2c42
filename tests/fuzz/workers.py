"""Cases on all cores: each worker is a process, and one that dies or takes too long is a recorded failure."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz.report import Report

# A worker is replaced after so many cases, so that memory that a library keeps does not add up.
_CASES_A_WORKER = 2000


def run_one(n: int, seed: str) -> dict[str, Any]:
    """Case `n` as the record that is kept of it."""
    from fuzz.run_case import make, run

    start = time.process_time()
    case = make(f"{seed}:{n}")
    outcome = run(case)
    return {
        "n": n,
        "kind": case["kind"],
        "verdict": outcome.verdict,
        "fused": outcome.fused,
        "detail": outcome.detail[:2000],
        "met": dict(outcome.met),
        "seconds": round(time.process_time() - start, 4),
    }


def _serve(connection: Connection, seed: str) -> None:
    """A worker: numbers of cases come, records go back; None ends it."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries warn of what a random program does
    while (n := connection.recv()) is not None:
        connection.send(run_one(n, seed))


class _Worker:
    def __init__(self, seed: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, seed), daemon=True)
        self.process.start()
        child.close()
        self.case: int | None = None
        self.started = 0.0
        self.served = 0

    def give(self, n: int) -> None:
        self.case, self.started = n, time.monotonic()
        self.served += 1
        self.connection.send(n)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_cases(count: int, seed: str, jobs: int, state: Path | None, limit: float, report: Report) -> None:
    """Runs the cases that the state file has no record of, and adds all records to `report`.

    Args:
        limit: seconds for one case; the first case of a worker has 60 more, for imports.
    """
    done = _read_state(state, seed)
    for entry in done.values():
        if entry["n"] < count:
            report.add(entry)
    waiting = [n for n in range(count) if n not in done][::-1]
    file = _open_state(state, seed)
    workers = [_Worker(seed) for _ in range(max(1, min(jobs, len(waiting))))] if waiting else []
    for worker in workers:
        worker.give(waiting.pop())

    def record(entry: dict[str, Any]) -> None:
        report.add(entry)
        if file is not None:
            file.write(json.dumps(entry) + "\n")
            file.flush()

    try:
        while any(w.case is not None for w in workers):
            wait([w.connection for w in workers if w.case is not None], timeout=1.0)
            for index, worker in enumerate(workers):
                if worker.case is None:
                    continue
                failure = ""
                try:
                    if worker.connection.poll():
                        record(worker.connection.recv())
                        worker.case = None
                    elif time.monotonic() - worker.started > limit + 60.0 * (worker.served == 1):
                        failure = "late"
                except (EOFError, OSError):
                    failure = "crashed"
                if failure:
                    assert worker.case is not None
                    worker.process.join(1.0)
                    detail = f"{failure}: exit status {worker.process.exitcode}, limit {limit:g} s"
                    record({"n": worker.case, "verdict": failure, "detail": detail})
                    worker.case = None
                if worker.case is None:
                    if failure or worker.served >= _CASES_A_WORKER:
                        worker.end()
                        worker = workers[index] = _Worker(seed)
                    if waiting:
                        worker.give(waiting.pop())
    finally:
        for worker in workers:
            worker.end()
        if file is not None:
            file.close()


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
