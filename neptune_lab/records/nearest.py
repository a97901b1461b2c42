"""Finds a record of the same operator at other sizes, for sizes that have no record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from neptune_lab.records.record import Record

# Parameters that do not affect the choice of tiles.
IGNORED = frozenset({"scale", "eps", "cap"})
# Another dtype counts as much as two doublings of a size.
OTHER_DTYPE = 2.0
# Records at sizes that differ by more doublings than this, in total, are not used.
FARTHEST = 8.0


def distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """How many doublings are between the sizes of two operators; infinite if they differ in more than sizes.

    >>> distance({"batch": 1, "q_len": 2048}, {"batch": 4, "q_len": 1024})
    3.0
    >>> distance({"q_len": 1, "kv_len": 512}, {"q_len": 512, "kv_len": 512})
    inf
    """
    doublings: list[float] = []
    for name in (a.keys() | b.keys()) - IGNORED:
        x, y = a.get(name), b.get(name)
        if x == y:
            continue
        if name == "dtype":
            doublings.append(OTHER_DTYPE)
        elif _is_size(x) and _is_size(y):
            if 1 in (x, y) and name not in ("batch", "heads", "kv_heads"):
                return math.inf  # one query is decoding, which needs other kernels
            doublings.append(abs(math.log2(x / y)))
        else:
            return math.inf
    # (Names come in another order in each process: a plain sum would then make another one of two records nearer.)
    return math.fsum(doublings)


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def closest(records: Iterable[Record], operator: str, params: Mapping[str, Any]) -> Record | None:
    """The timed record of an operator at the nearest sizes, the fastest if there are several; None if none is near."""
    best_rank: tuple[float, float] = (FARTHEST, math.inf)
    best: Record | None = None
    for record in records:
        if record.us is None or record.operator != operator:
            continue
        rank = (distance(record.params, params), record.us)
        if rank <= best_rank:
            best_rank, best = rank, record
    return best
