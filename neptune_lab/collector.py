"""Switches Python's cyclic garbage collector off during imports and compiles."""

from __future__ import annotations

import gc
import os
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
        global _off
        if not gc.isenabled():
            return work(*args, **named)
        gc.disable()
        _off = True
        try:
            return work(*args, **named)
        finally:
            _off = False
            gc.enable()

    return call


# Whether a thread has switched the collector off; in a forked process, none will switch it on.
_off = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: gc.enable() if _off else None)


__all__ = ["uncollected"]
