"""Divides a tile by a row's sum of exponentials through the reciprocal: one division per row."""

from __future__ import annotations

import math
from dataclasses import replace

from neptune_lab.htile.nodes import Access, Cast, Elementwise, Kernel, Program, Reduce, Store, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import map_stores, rewrite_store, stores, subexpressions, with_body
from neptune_lab.htile_passes.constants import float32, number, split_factor
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass
from neptune_lab.strict.dtypes import HALVES


@tile_pass(after="exponentials_to_base_two")
def divide_by_multiplying(program: Program) -> Program:
    """Before => after, where `out` is narrower than float32 and `s` sums exponentials less a maximum:

        out[...] = float16(acc[...] / s[..., NewAxis])   =>   out[...] = float16(acc[...] * (1.0 / s[..., NewAxis]))

    This rounds twice in float32 instead of once, which does not show in a result with 8 or 11 bits of mantissa; a
    result in float32 keeps its division.  One term of the sum is exp(0), so its reciprocal is neither infinite nor 0.
    Other divisors may have such a reciprocal, 1e-39 for example, so they keep the division.

    Measured on an H200: at most 1% of attention, whose only such quotient is its last statement.
    """

    def kernel(kernel: Kernel) -> Kernel:
        every = tuple(stores(kernel.body))

        def visit(expr: TileExpr) -> TileExpr:
            match expr:
                case Cast(arg=Elementwise(op="div") as quotient, dtype=dtype) if dtype in HALVES:
                    product = _product(quotient, program, every)
                    return expr if product is None else replace(expr, arg=product)
                case _:
                    return expr

        return with_body(kernel, map_stores(kernel.body, lambda store: rewrite_store(store, visit)))

    return map_kernels(program, kernel)


def _product(quotient: Elementwise, program: Program, every: tuple[Store, ...]) -> Elementwise | None:
    """`a * (1 / b)` for `a / b`; None if `b` has as many elements as the quotient, or is not such a sum."""
    a, b = quotient.args
    if quotient.dtype != "float32" or number(b) is not None or not _sums_exponentials(b, every):
        return None
    if math.prod(shape_of(b, program)) >= math.prod(shape_of(quotient, program)):
        return None
    return Elementwise("mul", (a, Elementwise("div", (float32(1.0), b), "float32")), "float32")


def _sums_exponentials(divisor: TileExpr, every: tuple[Store, ...]) -> bool:
    """Whether the divisor is a tile that accumulates exponentials of differences from a maximum."""
    if not isinstance(divisor, Access):
        return False
    sources = _sources(divisor.tensor, every)
    sums = [e for e in sources if isinstance(e, Reduce) and e.op == "sum"]
    exponentials = [e for e in sources if isinstance(e, Elementwise) and e.op in ("exp", "exp2")]
    of_difference = any(
        isinstance(x, Elementwise) and x.op == "sub"
        for e in exponentials
        for x in (e.args[0], split_factor(e.args[0])[0])
    )
    maximum = any(
        (isinstance(e, Reduce) and e.op == "max") or (isinstance(e, Elementwise) and e.op == "max") for e in sources
    )
    return bool(sums) and of_difference and maximum


def _sources(name: str, every: tuple[Store, ...]) -> list[TileExpr]:
    """Every expression that the tile `name` is computed from, through other tiles too."""
    sources: list[TileExpr] = []
    names, waiting = {name}, [name]
    while waiting:
        at = waiting.pop()
        for store in every:
            if store.target.tensor == at:
                for expr in subexpressions(store.value):
                    sources.append(expr)
                    if isinstance(expr, Access) and expr.tensor not in names:
                        names.add(expr.tensor)
                        waiting.append(expr.tensor)
    return sources
