"""Softmax weights that are multiplied in 8 bits, and what rounding leaves of them."""

from __future__ import annotations

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import rewrite

DTYPE, HALF = "float8_e4m3fn", "float16"


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


def first_keys(weights: ir.TileExpr, program: ir.Program, dim: int = -1) -> ir.TileExpr:
    """Whether a key is one of the first of its tile, along the dimension `dim` of the tile's."""
    shape = shape_of(weights, program)
    axes: list[ir.Slice | ir.NewAxis] = [ir.NewAxis()] * len(shape)
    axes[dim] = ir.Slice(ir.Int(0), shape[-1], "key")
    return ir.Elementwise("lt", (ir.Iota(tuple(axes)), ir.Literal(exact_keys(weights, program), "int32")), "bool")


def remainder(weights: ir.TileExpr, program: ir.Program) -> ir.TileExpr:
    """What rounding leaves of the weights of the first keys, in 8 bits; 0 for the others.

    `e4m3(w)` => `e4m3(where(key < exact_keys, w - float32(e4m3(w)), 0))`
    """
    first = first_keys(weights, program)

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Cast) or not is_rounded(expr):
            return expr
        left = ir.Elementwise("sub", (expr.arg, ir.Cast(expr, "float32")), "float32")
        return ir.Cast(ir.Elementwise("where", (first, left, ir.Literal(0.0, "float32")), "float32"), DTYPE)

    return rewrite(weights, visit)


def first_in_halves(weights: ir.TileExpr, program: ir.Program) -> ir.TileExpr:
    """The weights of the first keys of a tile in float16; 0 for the others.

    `e4m3(w)` => `float16(where(key < exact_keys, w, 0))`
    """
    return _of_keys(weights, program, HALF, first=True)


def others_rounded(weights: ir.TileExpr, program: ir.Program) -> ir.TileExpr:
    """The weights of all but the first keys of a tile in 8 bits; 0 for these.

    `e4m3(w)` => `e4m3(where(key < exact_keys, 0, w))`
    """
    return _of_keys(weights, program, DTYPE, first=False)


def _of_keys(weights: ir.TileExpr, program: ir.Program, dtype: str, *, first: bool) -> ir.TileExpr:
    chosen, zero = first_keys(weights, program), ir.Literal(0.0, "float32")

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Cast(arg=arg) if is_rounded(expr):
                kept = (chosen, arg, zero) if first else (chosen, zero, arg)
                return ir.Cast(ir.Elementwise("where", kept, "float32"), dtype)
            case ir.Elementwise(op="where", args=(condition, kept, ir.Literal(value=value)), dtype="float8_e4m3fn"):
                return ir.Elementwise("where", (condition, kept, ir.Literal(value, dtype)), dtype)
            case _:
                return expr

    return rewrite(weights, visit)


def all_rounded(others: ir.TileExpr, program: ir.Program) -> ir.TileExpr:
    """The weights in 8 bits of which `others` is `others_rounded`."""
    chosen = first_keys(others, program)

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Cast(arg=ir.Elementwise(op="where", args=(condition, ir.Literal(), arg))) if is_rounded(expr):
                return ir.Cast(arg, DTYPE) if condition == chosen else expr
            case _:
                return expr

    return rewrite(others, visit)


def is_of_weights(a: ir.TileExpr) -> str | None:
    """The tile of weights if a left operand is `e4m3(weights * 2^n)`, perhaps with some of them replaced by 0."""
    match a:
        case ir.Elementwise(op="where", args=(_, inner, ir.Literal(value=0))):
            return is_of_weights(inner)
        case ir.Cast(arg=ir.Elementwise(op="mul", args=(ir.Access(tensor=name), ir.Literal()))) if is_rounded(a):
            return name
        case _:
            return None


__all__ = [
    "DTYPE",
    "HALF",
    "all_rounded",
    "exact_keys",
    "first_in_halves",
    "first_keys",
    "is_of_weights",
    "others_rounded",
    "remainder",
    "unrounded",
]
