"""Combines several constant factors and divisors of a tile into one multiplication."""

from __future__ import annotations

from neptune_lab.htile.nodes import Elementwise, Program, TileExpr
from neptune_lab.htile_passes.constants import float32, may_merge, normal, number, split_factor
from neptune_lab.htile_passes.keep_exact import Use, rewrite_by_use
from neptune_lab.htile_passes.magnitudes import Magnitudes
from neptune_lab.htile_passes.rewrite import tile_pass


@tile_pass(after="keep_exact")
def fold_constant_factors(program: Program) -> Program:
    """Before => after, in float32:

        tanh(x[...] * 0.088 / 50.0)   =>   tanh(x[...] * 0.00176)

    A division by a constant costs several instructions on a GPU, a multiplication one.  The factors are multiplied in
    double precision and rounded once, so the result has no more roundings than before.  Results that are truncated (by
    ceil, for example) are unchanged, since x * (1/7) may truncate to another integer than x / 7.  So are factors of
    which one order overflows or underflows and the other does not: x * 1e30 * 1e-30 is infinite for x = 1e9.

    Measured on an H200: under 1% of attention with a soft cap, whose exponentials take longer than its products.
    """
    largest = Magnitudes(program)
    return rewrite_by_use(program, lambda expr, use: _fold(expr, largest) if use is Use.SMOOTH else expr)


def _fold(expr: TileExpr, largest: Magnitudes) -> TileExpr:
    match expr:
        case Elementwise(op="div", args=(a, b), dtype="float32") if number(a) is None and normal(
            divisor := number(b) or 0.0
        ):
            rest, inner = split_factor(a)
            outer = 1 / divisor
            product = inner / divisor
        case Elementwise(op="mul", args=(_, _), dtype="float32"):
            inside, outer = split_factor(expr)
            rest, inner = split_factor(inside)
            if inside is expr or rest is inside:
                return expr
            product = inner * outer
        case _:
            return expr
    if not may_merge(lambda: largest(rest), inner, outer):
        return expr
    return Elementwise("mul", (rest, float32(product)), "float32")
