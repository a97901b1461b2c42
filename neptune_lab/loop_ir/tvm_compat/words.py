"""The words that both directions share: operators, functions, and how TVM tells of a failure."""

# TVM's own annotations are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

BINARY = {
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "div": tirx.Div,
    "floordiv": tirx.FloorDiv,
    "floormod": tirx.FloorMod,
    "max": tirx.Max,
    "min": tirx.Min,
    "lt": tirx.LT,
    "le": tirx.LE,
    "gt": tirx.GT,
    "ge": tirx.GE,
    "eq": tirx.EQ,
    "ne": tirx.NE,
    "and": tirx.And,
    "or": tirx.Or,
}
BINARY_NAMES = {cls.__name__: name for name, cls in BINARY.items()}
CALLS: dict[str, Callable[..., Any]] = {
    name: getattr(tirx, name)
    for name in [
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "erf",
        "floor",
        "ceil",
        "round",
        "abs",
        "pow",
    ]
}
# TVM compiles its `round` and `nearbyint` to the same rounding, ties to even.
CALL_ALIASES = {"fabs": "abs", "nearbyint": "round", "if_then_else": "select"}
THREAD_BINDING = 1  # IterVar kind of a thread axis


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith("Error message:"):
            return line.removeprefix("Error message:").strip()
    for line in lines:
        if line.startswith("ScheduleError:"):
            return (
                line.removeprefix("ScheduleError:").strip().removeprefix("An error occurred in the schedule primitive ")
            )
    return lines[-1] if lines else type(error).__name__
