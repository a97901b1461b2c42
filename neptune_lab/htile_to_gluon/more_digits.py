"""Products of weights of 8 bits of which the first keys of a tile have more digits (htile/rounded_weights.py)."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, expression
from neptune_lab.htile.rounded_weights import (
    HALF,
    all_rounded,
    exact_keys,
    first_in_halves,
    first_keys,
    others_rounded,
    remainder,
)
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile_to_gluon.structure import Product, UnsupportedKernel

LEAST_KEYS = 32  # that one instruction sums, of floats of 8 bits


def weights_of(program: ir.Program, dot: ir.Dot, other: ir.Dot) -> ir.TileExpr:
    """The weights in 8 bits whose product `dot` and the product that it is added to may be."""
    return all_rounded(dot.a, program) if dtype_of(other.a, program) == HALF else other.a


def with_more_digits(program: ir.Program, product: Product, dot: ir.Dot, other: ir.Dot) -> Product:
    """`product`, of weights of 8 bits, as the sum of `dot` and `other`.

    Formal statement: the left factor of `other` is that of `product`, and that of `dot` is its `remainder`, of the same
    tile of values.  Or the left factors are `first_in_halves` and `others_rounded` of that of `product`: each key's
    weight is in one of them, and instructions may leave out the keys that are 0 in the other.  The right factor of the
    weights of float16 is 0 for those keys too.  One instruction sums `LEAST_KEYS` keys, so as many are the first keys,
    or a multiple of it.

    Raises:
        UnsupportedKernel: the two are none of these.
    """
    weights = product.a
    added = f"the product {product.target} is added to another product"
    if other.acc is not None:
        raise UnsupportedKernel(added)
    if dtype_of(other.a, program) != HALF:
        if dot.b != other.b or dot.a != remainder(weights, program):
            raise UnsupportedKernel(added)
        return replace(product, exact=_exact(program, product, "has a remainder for"))
    match other.b:
        case ir.Elementwise(op="where", args=(condition, ir.Access() as values, ir.Literal(value=0))):
            pass
        case _:
            raise UnsupportedKernel(added)
    apart = dot.a == others_rounded(weights, program) and other.a == first_in_halves(weights, program)
    if not apart or condition != first_keys(weights, program, 0):
        raise UnsupportedKernel(added)
    exact = _exact(program, product, "multiplies in float16")
    *leading, keys, width = values.index
    halves = replace(values, index=(*leading, _part_of(keys, 0, exact), width))
    rest = shape_of(weights, program)[-1] - exact
    others = replace(product.b, index=(*product.b.index[:-1], _part_of(product.b.index[-1], exact, rest)))
    return replace(product, b=others, exact=exact, halves=halves)


def _part_of(index: ir.Index, start: int, extent: int) -> ir.Slice:
    assert isinstance(index, ir.Slice)
    return ir.Slice(expression(affine(index.start) + start), extent, index.axis)


def _exact(program: ir.Program, product: Product, what: str) -> int:
    """The number of first keys of a tile."""
    exact = exact_keys(product.a, program)
    if exact % LEAST_KEYS:
        raise UnsupportedKernel(
            f"the product {product.target} {what} {exact} keys; expected a multiple of {LEAST_KEYS}",
            help=f"choose block_kv={2 * LEAST_KEYS}",
        )
    return exact


__all__ = ["weights_of", "with_more_digits"]
