"""One case, by its number, as the record that is kept of it; a worker process imports this module first."""

from __future__ import annotations

import time
from typing import Any

from fuzz.run_case import make, run


def run_one(task: tuple[int, str]) -> dict[str, Any]:
    """The record of a case.

    Args:
        task: its number, and the seed of the run.
    """
    n, seed = task
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
