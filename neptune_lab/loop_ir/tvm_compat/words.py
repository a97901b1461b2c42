"""Names that both directions share: operators, functions, and the form of TVM's error messages."""

# TVM's type annotations are narrower than what its functions accept.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from neptune_lab.scalar_ops import OPERATIONS, compose, rows


def build(name: str, operands: Sequence[Any]) -> Any:
    """An operation on TVM's expressions: a node, a call, or a formula of these."""
    row = OPERATIONS[name]
    if row.tvm == "pow":  # (TVM's own function writes a warning to stderr for every constant of 3 and more)
        return tirx.call_intrin(operands[0].ty.dtype, "tirx.pow", *operands)
    if row.tvm:
        return getattr(tirx, row.tvm)(*operands)
    assert row.formula is not None, f"the table has no TVM form of {name}"
    return compose(row.formula, operands, build, lambda value: tirx.const(value, operands[0].ty.dtype))


# Integers of the size of a float.
_BITS = {"float16": "int16", "float32": "int32", "float64": "int64"}


def build_as_written(name: str, operands: Sequence[Any]) -> Any:
    """As `build`, for native code: TVM, which simplifies floats over the reals, finds nothing to simplify.

    It would make `x - x` 0, `(x + 1e30) - 1e30` x, and `2 / (x - x)` an internal error, a division by 0.  So operands
    are read back from their bits, the second twice: no two look alike to it, and none is a sum or a constant.
    """
    row = OPERATIONS[name]
    if row.tvm == "Not":  # not (x < 1) would be x >= 1, which differs at NaN
        return tirx.NE(tirx.bitwise_xor(tirx.Cast("int32", operands[0]), tirx.const(1, "int32")), 0)
    if row.formula is not None and not row.tvm:
        return compose(row.formula, operands, build_as_written, lambda v: tirx.const(v, operands[0].ty.dtype))
    if row.tvm[:1].isupper() and len(operands) == 2:
        operands = _opaque(operands[0]), _opaque(_opaque(operands[1]))
    if name in ("max", "min") and "float" in str(operands[0].ty.dtype):
        return _extremum(name, *operands)
    return build(name, operands)


def _extremum(name: str, a: Any, b: Any) -> Any:
    """The larger or smaller of two floats; NaN if one of them is, where TVM's is b if a is NaN."""
    dtype = str(a.ty.dtype)
    if dtype in ("float32", "float64"):
        return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}imum", a, b)
    return tirx.Cast(dtype, _extremum(name, tirx.Cast("float32", a), tirx.Cast("float32", b)))


def _opaque(e: Any) -> Any:
    """A float in a form that TVM cannot simplify; LLVM makes nothing of it."""
    dtype = str(e.ty.dtype)
    if dtype == "bfloat16":  # which TVM computes in float32
        return tirx.Cast(dtype, _opaque(tirx.Cast("float32", e)))
    return tirx.reinterpret(dtype, tirx.reinterpret(_BITS[dtype], e)) if dtype in _BITS else e


def node_names() -> dict[str, str]:
    """The operation of each class of nodes, by the class's name."""
    return {row.tvm: row.name for row in rows("loop") if row.tvm[:1].isupper()}


def call_names() -> dict[str, str]:
    """The operation of each call, by the name of what is called."""
    return {row.tvm: row.name for row in rows("loop") if row.tvm[:1].islower()} | _ALIASES


# TVM compiles its `round` and `nearbyint` to the same rounding, ties to even.
_ALIASES = {"fabs": "abs", "nearbyint": "round"}
THREAD_BINDING = 1  # IterVar kind of a thread axis


def first_line(error: BaseException) -> str:
    """What an error of TVM says, without its trace: the line of its message, else its last line."""
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
