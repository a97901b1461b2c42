"""Writes every other softmax weight of a product in 8 bits as the sum of two numbers of 8 bits."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.rounded_weights import exact_keys, is_of_weights, remainder
from neptune_lab.htile.walk import map_stores, rewrite_store, stores, values_by_tensor, with_body
from neptune_lab.htile_passes.drop_dead_tiles import drop_dead_tiles
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass


@tile_pass(after="reread_backwards")
def split_rounded_weights(program: ir.Program) -> ir.Program:
    """Before => after, for exponentials p, a tile of 256 keys:

        z = dot(e4m3(p * 256), v)
        =>
        z = dot(e4m3(where(key < 128, p * 256 - e4m3(p * 256), 0)), v, acc=dot(e4m3(p * 256), v))

    Rounding to e4m3 has a typical relative error of 2.65e-2, independent from key to key.  A weight and what rounding
    leaves of it, in two numbers of 8 bits, have one of less than 2^-8.  If half of the keys have such weights, the
    error of a product with independent values is 2.65e-2 / sqrt(2) = 1.9e-2, whatever the weights are.

    Formal statement: let h = e4m3(w), for w in [0, 448].  w - h is exact in float32, since h is one of the two floats
    of 8 bits beside w; its magnitude is at most w / 16, or 2^-10, and it is rounded once: |w - (h + e4m3(w - h))| is
    at most |w - h| / 16, or 2^-10.  So no weight is further from its value than before.  A masked key has w = 0, and
    both parts are 0.  NaN is NaN in both parts.

    The Gluon emitter takes float16(w) without its last seven digits for h (`_rounded_and_rest`), which is as exact, but
    for weights below 2^-6, 2^-14 of the largest: h is rounded then, and the sum may be off by 2^-9.

    Only for tiles whose every value is an exponential: other factors of 8 bits are what a program asked for.
    """

    def split(kernel: ir.Kernel) -> ir.Kernel:
        weights = exponentials(kernel)
        kernel = read_where_rounded(kernel, weights)

        def visit(expr: ir.TileExpr) -> ir.TileExpr:
            if not isinstance(expr, ir.Dot) or is_of_weights(expr.a) not in weights:
                return expr
            if exact_keys(expr.a, program) == 0:
                return expr
            return ir.Dot(remainder(expr.a, program), expr.b, acc=expr)

        return with_body(kernel, map_stores(kernel.body, lambda store: rewrite_store(store, visit)))

    return without_stored(map_kernels(program, split), program)


def without_stored(rewritten: ir.Program, program: ir.Program) -> ir.Program:
    """A program without the rounded weights that no product reads any longer; `program` is the one before."""
    return program if rewritten is program else drop_dead_tiles(rewritten)


def read_where_rounded(kernel: ir.Kernel, weights: frozenset[str]) -> ir.Kernel:
    """Before => after, in a kernel of one tile, for weights w: `p = e4m3(w * 256); z = dot(p, v)` =>
    `z = dot(e4m3(w * 256), v)`, where the weights before rounding are at hand.

    Formal statement: `w` and `p` are stored once each, `p` outside of loops and so after all of `w`; a product reads
    the region of `p` that was stored.  So `p` is `e4m3(w * 256)` there.
    """
    once = {name for name, values in values_by_tensor(stores(kernel.body)).items() if len(values) == 1}
    rounded = {
        stmt.target.tensor: stmt
        for stmt in kernel.body
        if isinstance(stmt, ir.Store)
        and stmt.mask is None
        and {stmt.target.tensor, is_of_weights(stmt.value)} <= once
        and is_of_weights(stmt.value) in weights
    }

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Dot) or not isinstance(expr.a, ir.Access):
            return expr
        stored = rounded.get(expr.a.tensor)
        return expr if stored is None or stored.target.index != expr.a.index else replace(expr, a=stored.value)

    body = map_stores(kernel.body, lambda store: rewrite_store(store, visit)) if rounded else kernel.body
    return with_body(kernel, body)


def exponentials(kernel: ir.Kernel) -> frozenset[str]:
    """The tiles whose every value is an exponential."""
    values = values_by_tensor(stores(kernel.body))
    return frozenset(name for name, of_tile in values.items() if all(map(_is_exponential, of_tile)))


def _is_exponential(value: ir.TileExpr) -> bool:
    match value:
        case ir.Elementwise(op="exp" | "exp2"):
            return True
        case ir.Elementwise(op="where", args=(_, inner, ir.Literal(value=0))):
            return _is_exponential(inner)
        case _:
            return False
