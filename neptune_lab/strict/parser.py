"""Runs Python's parser in one thread at a time, if this Python has the fault gh-106905.

CPython before 3.11.8 and 3.12.2 counts the depth of every thread's syntax tree in one place. If the garbage collector
interrupts the parser in order to run Python code, and another thread parses meanwhile, the first raises SystemError
("AST constructor recursion depth mismatch") or RecursionError. Whoever compiles in several threads parses in many
places: emitted modules and expressions in this package, kernels in Triton, signatures in `inspect`, functions in torch,
tracebacks in TVM. All of them call `ast.parse`, so `ast.parse` is replaced.
"""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from neptune_lab.strict.forks import fork_waits_for

FAULTY = sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2)

# Reentrant: a signal handler may parse too.
_parsing = threading.RLock()


def mend_parser() -> None:
    """Replace `ast.parse` by a version that threads may call, in a Python that has the fault; otherwise does nothing.

    Source: https://github.com/python/cpython/issues/106905
    """
    if not FAULTY or hasattr(ast.parse, "__wrapped__"):
        return
    ast.parse = one_at_a_time(ast.parse)
    fork_waits_for(_parsing)  # a child process begins with the lock free and the collector as it was


def one_at_a_time(parse: Callable[..., ast.AST]) -> Callable[..., ast.AST]:
    """`parse`, called by one thread at a time and without the collector, which could let another thread in."""

    @wraps(parse)
    def parse_alone(*args: Any, **kwargs: Any) -> ast.AST:
        with _parsing:
            collecting = gc.isenabled()
            gc.disable()
            try:
                return parse(*args, **kwargs)
            finally:
                if collecting:
                    gc.enable()

    return parse_alone
