"""Cases that do nothing, of which case 1 ends its process or never ends; apart, so that a process starts fast."""

from __future__ import annotations

import os
import time
from typing import Any


def dies(task: tuple[int, str]) -> dict[str, Any]:
    """The record of a case without work."""
    if task[0] == 1:
        os._exit(9)
    return {"n": task[0], "kind": "operator", "verdict": "accepted", "seconds": 0.0, "met": {}, "detail": ""}


def spins(task: tuple[int, str]) -> dict[str, Any]:
    """Case 1 computes without an end; the others wait for longer than they may compute."""
    while task[0] == 1:
        pass
    time.sleep(0.3)
    return dies((0, "")) | {"n": task[0]}
