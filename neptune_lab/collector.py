"""Python's cyclic garbage collector, which imports and compiles do without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncollected(work: Callable[P, R]) -> Callable[P, R]:
    """`work` without collections of cyclic garbage while it runs.

    Importing TVM and compiling make many objects and few cycles. A full collection walks all objects of the process,
    those of TVM, SymPy and torch too, and took an eighth of the time. Objects without references are freed as always.
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
