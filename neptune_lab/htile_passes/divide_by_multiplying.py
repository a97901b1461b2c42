"""Divides a tile by a row's sum of exponentials through the reciprocal: one division per row."""

from __future__ import annotations

import math
from dataclasses import replace

from neptune_lab.htile.nodes import Access, Cast, Elementwise, Kernel, Program, Reduce, Store, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import map_stores, rewrite_store, stores, subexpressions, with_body
from neptune_lab.htile_passes.constants import float32, number, split_factor
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass

NARROW = frozenset({"float16", "bfloat16"})


@tile_pass(after="exponentials_to_base_two")
def divide_by_multiplying(program: Program) -> Program:
    """Before => after, where `out` is narrower than float32 and `s` sums exponentials less a maximum:

        out[...] = float16(acc[...] / s[..., NewAxis])   =>   out[...] = float16(acc[...] * (1.0 / s[..., NewAxis]))

    This has two roundings in float32 instead of one, which a result of 8 or 11 bits does not show; so a result in
    float32 keeps its division.  The sum has exp(0) among its terms: it is neither so small that its reciprocal is
    infinite nor so large that it is 0.  Any other divisor may be, 1e-39 for example, so there the division stays too.

    Measured on an H200: at most 1% of attention, whose only such quotient is its last statement.
    """

    def kernel(kernel: Kernel) -> Kernel:
        every = tuple(stores(kernel.body))

        def visit(expr: TileExpr) -> TileExpr:
            match expr:
                case Cast(arg=Elementwise(op="div") as quotient, dtype=dtype) if dtype in NARROW:
                    found = _product(quotient, program, every)
                    return expr if found is None else replace(expr, arg=found)
                case _:
                    return expr

        return with_body(kernel, map_stores(kernel.body, lambda store: rewrite_store(store, visit)))

    return map_kernels(program, kernel)


def _product(quotient: Elementwise, program: Program, every: tuple[Store, ...]) -> Elementwise | None:
    """`a * (1 / b)` for `a / b`; None where `b` has as many elements as the quotient, or is no such sum."""
    a, b = quotient.args
    if quotient.dtype != "float32" or number(b) is not None or not _sums_exponentials(b, every):
        return None
    if math.prod(shape_of(b, program)) >= math.prod(shape_of(quotient, program)):
        return None
    return Elementwise("mul", (a, Elementwise("div", (float32(1.0), b), "float32")), "float32")


def _sums_exponentials(divisor: TileExpr, every: tuple[Store, ...]) -> bool:
    """Whether the divisor is a tile into which exponentials less a maximum are added."""
    if not isinstance(divisor, Access):
        return False
    found = _made_of(divisor.tensor, every)
    folds = [e for e in found if isinstance(e, Reduce) and e.op == "sum"]
    exponentials = [e for e in found if isinstance(e, Elementwise) and e.op in ("exp", "exp2")]
    less = any(
        isinstance(x, Elementwise) and x.op == "sub"
        for e in exponentials
        for x in (e.args[0], split_factor(e.args[0])[0])
    )
    maximum = any(
        (isinstance(e, Reduce) and e.op == "max") or (isinstance(e, Elementwise) and e.op == "max") for e in found
    )
    return bool(folds) and less and maximum


def _made_of(name: str, every: tuple[Store, ...]) -> list[TileExpr]:
    """Every expression that goes into the tile `name`, through other tiles too."""
    found: list[TileExpr] = []
    names, waiting = {name}, [name]
    while waiting:
        at = waiting.pop()
        for store in every:
            if store.target.tensor == at:
                for expr in subexpressions(store.value):
                    found.append(expr)
                    if isinstance(expr, Access) and expr.tensor not in names:
                        names.add(expr.tensor)
                        waiting.append(expr.tensor)
    return found
