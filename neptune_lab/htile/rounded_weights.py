"""Softmax weights that are multiplied in 8 bits, and what rounding leaves of them."""

from __future__ import annotations

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import rewrite

DTYPE = "float8_e4m3fn"


def is_rounded(expr: ir.TileExpr) -> bool:
    """Whether it rounds a tile to 8 bits."""
    return isinstance(expr, ir.Cast) and expr.dtype == DTYPE


def unrounded(weights: ir.TileExpr) -> ir.TileExpr:
    """Weights before they are rounded: `w` of `e4m3(w)`, in float32 also if some of them are replaced by 0."""

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Cast(arg=arg) if is_rounded(expr):
                return arg
            case ir.Elementwise(op="where", args=(condition, kept, ir.Literal(value=value)), dtype=dtype):
                if dtype == DTYPE:
                    other = ir.Literal(value, "float32")
                    return ir.Elementwise("where", (condition, kept, other), "float32")
                return expr
            case _:
                return expr

    return rewrite(weights, visit)


def exact_keys(weights: ir.TileExpr, program: ir.Program) -> int:
    """The number of keys of a tile whose weights have a remainder: the first half."""
    return shape_of(weights, program)[-1] // 2


def remainder(weights: ir.TileExpr, program: ir.Program) -> ir.TileExpr:
    """What rounding leaves of the weights of the first keys, in 8 bits; 0 for the others.

    `e4m3(w)` => `e4m3(where(key < exact_keys, w - float32(e4m3(w)), 0))`
    """
    shape = shape_of(weights, program)
    axes = (ir.NewAxis(),) * (len(shape) - 1)
    key = ir.Iota((*axes, ir.Slice(ir.Int(0), shape[-1], "key")))
    first = ir.Elementwise("lt", (key, ir.Literal(exact_keys(weights, program), "int32")), "bool")

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Cast) or not is_rounded(expr):
            return expr
        left = ir.Elementwise("sub", (expr.arg, ir.Cast(expr, "float32")), "float32")
        return ir.Cast(ir.Elementwise("where", (first, left, ir.Literal(0.0, "float32")), "float32"), DTYPE)

    return rewrite(weights, visit)


def is_of_weights(a: ir.TileExpr) -> str | None:
    """The tile of weights if a left operand is `e4m3(weights * 2^n)`, perhaps with some of them replaced by 0."""
    match a:
        case ir.Elementwise(op="where", args=(_, inner, ir.Literal(value=0))):
            return is_of_weights(inner)
        case ir.Cast(arg=ir.Elementwise(op="mul", args=(ir.Access(tensor=name), ir.Literal()))) if is_rounded(a):
            return name
        case _:
            return None


__all__ = ["DTYPE", "exact_keys", "is_of_weights", "remainder", "unrounded"]
