"""The matrix of a vector repair as scalar expressions, which move each of its sums from r to r'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op
from neptune_lab.loop_ir.walks import transform
from neptune_lab.loop_to_repair.lower import lower
from neptune_lab.repair import VectorRepair

if TYPE_CHECKING:
    from sympy import Symbol


def reference_step(term: VectorRepair, reference: Expr | None, values: Mapping[Symbol, Expr], dtype: str) -> Expr:
    """u(r') - u(r), on which the matrix depends; `values` has the expressions of r and r'."""

    def at(r: Symbol) -> Expr:
        if reference is None:
            return lower(term.reference_at(r), dict(values), dtype)
        return transform(reference, lambda e: values[r] if isinstance(e, Load) else e)

    return Op("sub", (at(term.r_now), at(term.r)))


def moved_sum(row: int, sums: Sequence[Expr], term: VectorRepair, values: Mapping[Symbol, Expr], dtype: str) -> Expr:
    """Row `row` of A(r, r') times the sums: the sum of one component, taken from r to r', as a scalar expression.

    Args:
        row: the component.
        sums: the sum of every component at r, in order.
        term: the vector repair.
        values: the expressions of r and r' (`guards.producer_values`), and of `term.step` (`reference_step`).
        dtype: of the sums.

    To combine splits, take a split's own sums, its own r as the previous value and the global r as the current one:
    row 0 is the split's part of the global sum.
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
    """x ** 5 as products: the power function of some targets is NaN at negative x."""
    match e:
        case Op("pow", (base, Const(exponent))) if float(exponent).is_integer() and exponent > 0:
            result = base
            for _ in range(int(exponent) - 1):
                result = Op("mul", (result, base))
            return result
    return e
