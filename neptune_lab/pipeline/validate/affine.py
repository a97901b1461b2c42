"""Sums of variables times factors: the elements of a dimension in terms of loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Op, Var
from neptune_lab.loop_ir.walks import variables


@dataclass(frozen=True, slots=True)
class Term:
    """A loop in the binding of an iteration."""

    var: str
    stride: int
    extent: int


def strides_of(block: Block, e: Expr, factor: int = 1) -> Iterator[tuple[str, int]]:
    """Each variable of a sum with its factor.

    Raises:
        ScheduleError: `e` is no such sum.
    """
    match e:
        case Var(name):
            yield name, factor
        case Const(0):
            return
        case Op("add", (left, right)):
            yield from strides_of(block, left, factor)
            yield from strides_of(block, right, factor)
        case Op("mul", (left, Const(int(by)))):
            yield from strides_of(block, left, factor * by)
        case _:
            unclear(block, "a binding is not a sum of loops times factors")


def factors(block: Block, e: Expr) -> frozenset[tuple[str, int]]:
    """The terms of a sum, in a form that does not depend on how it is written."""
    return frozenset(strides_of(block, e))


def products(extents: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The stride of each variable: the product of the extents before it."""
    strides: dict[str, int] = {}
    stride = 1
    for name, extent in extents:
        strides[name] = stride
        stride *= extent
    return strides


def with_strides(e: Expr, strides: Mapping[str, int], factor: int) -> Expr:
    """`e` with the factors changed so that each loop has its stride in `strides`.

    Args:
        factor: the product of the new factors around `e`.
    """
    match e:
        case Op("add", (left, right)):
            return Op("add", (with_strides(left, strides, factor), with_strides(right, strides, factor)))
        case Op("mul", (left, Const(_, dtype))):
            by = max(1, min(strides[name] for name in variables(left)) // factor)
            return Op("mul", (with_strides(left, strides, factor * by), Const(by, dtype)))
    return e


def unclear(block: Block, why: str) -> NoReturn:
    """Refuses to resize a block."""
    raise ScheduleError(
        f"block {block.name!r} cannot be resized: {why}", node=block.name, help="replay the steps at small sizes"
    )
