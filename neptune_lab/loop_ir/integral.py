"""Whether an index is an integer, as all analyses of indices require."""

from __future__ import annotations

from collections.abc import Callable

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Var
from neptune_lab.scalar_ops import rows
from neptune_lab.strict.dtypes import INTEGERS

_ARITHMETIC = frozenset(row.name for row in rows("loop") if row.kind in ("number", "integer", "bits"))
_CONDITIONS = frozenset(row.name for row in rows("loop") if row.kind in ("comparison", "logic"))


def not_integral(index: Expr, dtype_of: Callable[[str], str]) -> Expr | None:
    """The first part of an index that is no integer and is not converted to one; None if there is none.

    Args:
        index: an expression over iteration variables or loops.
        dtype_of: the dtype of a buffer, by name.
    """
    match index:
        case Const(value):
            return None if isinstance(value, int) and not isinstance(value, bool) else index
        case Var():
            return None
        case Cast(dtype, _):
            return None if dtype in INTEGERS else index
        case Load(buffer, _) | Previous(buffer, _, _):
            return None if dtype_of(buffer) in INTEGERS else index
        case Op("select", (_, *args)):
            pass
        case Op(name, args) if name in _ARITHMETIC:
            pass
        case Op():
            return index
    return next((part for arg in args if (part := not_integral(arg, dtype_of)) is not None), None)


def not_boolean(condition: Expr) -> bool:
    """Whether a predicate is neither a comparison nor a combination of comparisons."""
    match condition:
        case Const(value):
            return not isinstance(value, bool)
        case Op(name, _):
            return name not in _CONDITIONS
    return True
