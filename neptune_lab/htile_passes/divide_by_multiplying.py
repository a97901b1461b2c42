"""A tile divided by a value a row is multiplied by its reciprocal: one division a row."""

from __future__ import annotations

import math
from dataclasses import replace

from neptune_lab.htile.nodes import Cast, Elementwise, Program, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile_passes.constants import float32, number
from neptune_lab.htile_passes.rewrite import rewrite_expressions

NARROW = frozenset({"float16", "bfloat16"})


def divide_by_multiplying(program: Program) -> Program:
    """Before => after, where `out` is narrower than float32:

        out[...] = float16(acc[...] / s[..., NewAxis])   =>   out[...] = float16(acc[...] * (1.0 / s[..., NewAxis]))

    Two roundings in float32 in place of one, which a result of 8 or 11 bits does not show, nor one that is rounded to
    whole numbers (quantisation) but next to a tie; so a result in float32 keeps its division.

    Measured on an H200: at most 1% of attention, whose only such quotient is its last statement.
    """

    def visit(expr: TileExpr) -> TileExpr:
        match expr:
            case Cast(arg=Elementwise(op="div") as quotient, dtype=dtype) if dtype in NARROW:
                found = _product(quotient, program)
                return expr if found is None else replace(expr, arg=found)
            case Elementwise(op="round", args=(Elementwise(op="div") as quotient,), dtype="float32"):
                found = _product(quotient, program)
                return expr if found is None else replace(expr, args=(found,))
            case _:
                return expr

    return rewrite_expressions(program, visit)


def _product(quotient: Elementwise, program: Program) -> Elementwise | None:
    """`a * (1 / b)` for `a / b`; None where `b` has as many elements as the quotient, or is a constant."""
    a, b = quotient.args
    if quotient.dtype != "float32" or number(b) is not None:
        return None
    if math.prod(shape_of(b, program)) >= math.prod(shape_of(quotient, program)):
        return None
    return Elementwise("mul", (a, Elementwise("div", (float32(1.0), b), "float32")), "float32")
