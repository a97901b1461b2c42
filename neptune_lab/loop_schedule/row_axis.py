"""The axis of a nest that can be the rows of a tile: in decoding, the heads of a group."""

from __future__ import annotations

from neptune_lab.loop_ir.dimensions import Dimensions
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Op, Var
from neptune_lab.loop_ir.products import axes_of, factors_of, is_product
from neptune_lab.loop_ir.walks import loads, variables


def row_axis_of(
    dims: Dimensions, first: Block, members: list[Block], parallel: tuple[str, ...]
) -> tuple[str | None, int | None]:
    """The innermost parallel axis that can be the rows of a tile, and the size that it must have.

    An axis that both factors of a matrix product have is a batch axis: its products are separate.  A head axis that
    one factor reads as `h // group` is a batch axis per group only.  So the heads of a group can be rows; in decode,
    which has one query per head, they fill the rows of a product.
    """
    for name in reversed(parallel):
        if first.iter(name).extent == 1:
            continue
        groups = {batch_size(b, _name_in(dims, first, name, b)) for b in (first, *members)}
        groups.discard(0)
        if not groups:
            return name, None
        if len(groups) == 1 and (group := groups.pop()) > 1 and first.iter(name).extent % group == 0:
            return name, group
    return None, None


def _name_in(dims: Dimensions, first: Block, name: str, block: Block) -> str:
    return dims.all_of(block)[dims.of(first, name)]


def batch_size(block: Block, name: str) -> int:
    """0 if `name` is no batch axis of a product, 1 if it is, n if only `name // n` is."""
    if not is_product(block):
        return 0
    factors = factors_of(block)
    assert factors is not None
    if not all(name in axes_of(factor) for factor in factors):
        return 0
    sizes = [_group_size(factor, name) for factor in factors]
    return max(sizes) if min(sizes) == 1 else 1


def _group_size(factor: Expr, name: str) -> int:
    """n if every read in `factor` has `name` only as `name // n`; 1 otherwise."""
    sizes = set()
    for read in loads(factor):
        for index in read.indices:
            if name not in variables(index):
                continue
            match index:
                case Op("floordiv", (Var(var), Const(int(size)))) if var == name:
                    sizes.add(size)
                case _:
                    return 1
    return sizes.pop() if len(sizes) == 1 else 1
