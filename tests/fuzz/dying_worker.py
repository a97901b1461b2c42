"""A worker that ends in the middle of case 1, for the test of the pool; a module of its own, so that it starts fast."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

from fuzz import workers


def _dies(n: int, seed: str) -> dict[str, Any]:
    if n == 1:
        os._exit(9)
    return {"n": n, "kind": "operator", "verdict": "accepted", "seconds": 0.0, "met": {}, "detail": ""}


_serve = workers._serve


def serve(connection: Connection, seed: str) -> None:
    """`workers._serve` with cases that do nothing, but for case 1."""
    workers.run_one = _dies
    _serve(connection, seed)
