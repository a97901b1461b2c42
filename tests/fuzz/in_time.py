"""A case in a process whose CPU time is limited: what is late then depends on the case, not on what else runs."""

from __future__ import annotations

import importlib
import signal
from typing import Any

# A name of the case's function ("package.module:name"), CPU seconds, the case's number and the seed.
Task = tuple[str, float, int, str]


def run_in_time(task: Task) -> dict[str, Any]:
    """The record of a case; past its CPU time, the process ends by SIGPROF.  Imports are not part of the time."""
    name, seconds, n, seed = task
    module, _, function = name.partition(":")
    case = getattr(importlib.import_module(module), function)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return case((n, seed))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
