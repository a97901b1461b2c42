"""The matrix of a vector repair, as scalar expressions: how each sum of a family moves from r to r'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, transform
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.repair import VectorRepair

if TYPE_CHECKING:
    from sympy import Symbol


def reference_step(term: VectorRepair, reference: Expr | None, values: Mapping[Symbol, Expr], dtype: str) -> Expr:
    """u(r') - u(r), by which the matrix moves the sums; `values` says what r and r' stand for."""

    def at(r: Symbol) -> Expr:
        if reference is None:
            return lower(term.reference_at(r), dict(values), dtype)
        return transform(reference, lambda e: values[r] if isinstance(e, Load) else e)

    return Op("sub", (at(term.r_now), at(term.r)))


def moved_sum(row: int, sums: Sequence[Expr], term: VectorRepair, values: Mapping[Symbol, Expr], dtype: str) -> Expr:
    """Row `row` of A(r, r') times the sums: the sum of one component, taken from r to r', as a scalar expression.

    Args:
        sums: the sum of every component at r, in order.
        values: what r and r' stand for (`repairing.producer_values`), and `term.step` (`reference_step`).

    A combine step needs no more than this: with a split's own sums, its own r as the previous value and the global r as
    the current one, row 0 is the split's share of the global sum.
    """
    result: Expr | None = None
    for entry, total in zip(term.entries(row), sums, strict=True):
        if entry == 0:
            continue
        minus = result is not None and entry.could_extract_minus_sign()
        factor = -entry if minus else entry
        product = total if factor == 1 else Op("mul", (lower(factor, dict(values), dtype), total))
        result = product if result is None else Op("sub" if minus else "add", (result, product))
    assert result is not None  # A is invertible
    return transform(result, _power_as_product)


def _power_as_product(e: Expr) -> Expr:
    """x ** 5 as products: a power function has no value at negative x on some targets."""
    match e:
        case Op("pow", (base, Const(exponent))) if float(exponent).is_integer() and exponent > 0:
            result = base
            for _ in range(int(exponent) - 1):
                result = Op("mul", (result, base))
            return result
    return e
