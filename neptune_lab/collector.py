"""Switches Python's cyclic garbage collector off during imports and compiles."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncollected(work: Callable[P, R]) -> Callable[P, R]:
    """`work`, which runs without collections of cyclic garbage.

    Importing TVM and compiling create many objects and few cycles. Full collections, which walk all objects of the
    process, including those of TVM, SymPy and torch, took an eighth of the time. Objects without references are freed
    as always.
    """

    @wraps(work)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if not gc.isenabled():
            return work(*args, **named)
        gc.disable()
        try:
            return work(*args, **named)
        finally:
            gc.enable()

    return call


__all__ = ["uncollected"]
