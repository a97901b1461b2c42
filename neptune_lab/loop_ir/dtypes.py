"""The dtypes of scalar expressions, and of the factors of a matrix product."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Program, Var
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.dtypes import EIGHTS, HALVES


def dtype_of(expr: Expr, program: Program) -> str:
    """The dtype of a scalar expression."""
    match expr:
        case Const(_, dtype) | Cast(dtype, _):
            return dtype
        case Var():
            return "int32"
        case Load(buffer, _) | Previous(buffer, _, _):
            return program.buffer(buffer).dtype
        case Op(name, _) if OPERATIONS[name].kind in ("comparison", "logic"):
            return "bool"
        case Op("select", (_, a, _)):
            return dtype_of(a, program)
        case Op(_, args):
            return dtype_of(args[0], program)


def widened(expr: Expr, dtype: str, program: Program) -> Expr:
    """The expression in `dtype` if it is a float of 16 bits and `dtype` a wider one, which holds all its values."""
    return Cast(dtype, expr) if dtype in ("float32", "float64") and dtype_of(expr, program) in HALVES else expr


def as_multiplied(a: Expr, b: Expr, program: Program) -> tuple[Expr, Expr]:
    """The factors of a sum of products as a matrix unit takes them: it multiplies values of one dtype of 8 or 16
    bits and adds in float32, so a conversion of both factors to float32 is dropped."""
    narrow = _narrow(a, program), _narrow(b, program)
    return narrow if dtype_of(narrow[0], program) == dtype_of(narrow[1], program) else (a, b)


def _narrow(expr: Expr, program: Program) -> Expr:
    match expr:
        case Cast("float32", arg) if dtype_of(arg, program) in (*EIGHTS, *HALVES):
            return arg
    return expr
