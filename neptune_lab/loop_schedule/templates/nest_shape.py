"""What a nest looks like: its products, the extents of its axes, and the elements of one of its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import ml_dtypes  # noqa: F401  (teaches NumPy the name "bfloat16")
import networkx as nx

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.dtypes import as_multiplied, dtype_of
from neptune_lab.loop_ir.nodes import Block, Program
from neptune_lab.loop_ir.products import factors_of, is_product
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.strict.dtypes import EIGHTS, HALVES

# The default rows and columns of a tile.
ROWS, COLUMNS = 64, 64
# A program whose product has a tile of this many elements takes 8 warps and a whole multiprocessor. Of smaller
# programs, two share a multiprocessor.
LARGE_TILE = 8192


@dataclass(frozen=True, slots=True)
class NestConfig:
    """The tile sizes and launch hints of one nest.

    Args:
        block_q: rows per program.
        block_kv: columns per tile.
        block_out: columns of the output per program, if only the last product has them; None: all.
        splits: parts that the reduce axis is split into; 1: the nest rolls; None: chosen when the nest is split.
        num_warps, num_stages: launch hints; None: the emitter's defaults.
        one_tile: one tile holds the whole reduce axis, so that nothing rolls and nothing needs a repair.
    """

    block_q: int
    block_kv: int
    block_out: int | None = None
    splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    one_tile: bool = False


def has_product(program: Program, nest: NestPlan) -> bool:
    """Whether a matrix product is among the nest's blocks.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
    """
    return bool(products(program, nest))


def multiplies_float32(program: Program, nest: NestPlan) -> bool:
    """Whether a matrix product of the nest has factors of float32 or wider."""
    return any(
        dtype_of(as_multiplied(*factors, program)[0], program) not in (*EIGHTS, *HALVES)
        for b in products(program, nest)
        if (factors := factors_of(b)) is not None
    )


def multiplies_eights(program: Program, nest: NestPlan) -> bool:
    """Whether a matrix product of the nest has factors of 8 bits in floating point."""
    return any(
        dtype_of(as_multiplied(*factors, program)[0], program) in EIGHTS
        for b in products(program, nest)
        if (factors := factors_of(b)) is not None
    )


def products(program: Program, nest: NestPlan) -> list[Block]:
    """The nest's blocks that are sums of products."""
    names = {nest.first, *nest.auxiliary_reductions, *nest.reductions}
    return [b for b in tree.blocks(program) if b.name in names and reducer_of(b) == "sum" and is_product(b)]


def accumulates_several(program: Program, nest: NestPlan) -> bool:
    """Whether several products accumulate side by side, such as the gradients of keys and values.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        True if the nest has two matrix products that fold its reduce axis, neither of which reads the other.
    """
    flow = graph(program)
    kept = [b.name for b in products(program, nest) if b.name in nest.reductions]
    return any(not nx.has_path(flow, a, b) for n, a in enumerate(kept) for b in kept[n + 1 :])


def multiplies_twice(program: Program, nest: NestPlan) -> bool:
    """Whether two matrix products are computed per tile that a third one reads, such as the scores and the gradient of
    the weights, which the gradient of the queries needs.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
    """
    return sum(b.name not in nest.reductions for b in products(program, nest)) > 1


def columns_of(program: Program, nest: NestPlan) -> int:
    """The extent of the nest's reduce axis.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        The number of columns.
    """
    return tree.find_block(program, nest.first)[1].iter(nest.reduce_axis).extent


def rows_of(program: Program, nest: NestPlan, config: NestConfig) -> int:
    """Rows of one tile of the nest."""
    if nest.row_axis is None:
        return 1
    return nest.row_size or min(config.block_q, tree.find_block(program, nest.first)[1].iter(nest.row_axis).extent)


def tile_elements(program: Program, nest: NestPlan, config: NestConfig) -> int:
    """Elements of one tile of the nest's first block: rows x columns x the extents of its other axes.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        config: the nest's tile sizes.

    Returns:
        The number of elements.
    """
    first = tree.find_block(program, nest.first)[1]
    columns = min(config.block_kv, first.iter(nest.reduce_axis).extent)
    return columns * rows_of(program, nest, config) * others(program, nest)


def others(program: Program, nest: NestPlan) -> int:
    """Elements of the nest's first block per row and column: the product of the extents of its other axes."""
    first = tree.find_block(program, nest.first)[1]
    kept = {nest.reduce_axis, *nest.parallel_axes, *nest.serial_axes}
    return prod(it.extent for it in first.iters if it.kind == "spatial" and it.name not in kept)


def is_vector_product(program: Program, nest: NestPlan) -> bool:
    """Whether each product of the nest has a vector as one factor: a single row, as in decoding.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        True if it has products, and none with rows and columns for a matrix unit.
    """
    if nest.row_axis is not None or nest.column_axis is not None or not has_product(program, nest):
        return False
    dims = dimensions(program)
    first = tree.find_block(program, nest.first)[1]
    parallel = {dims.of(first, name) for name in nest.parallel_axes}
    return all(
        sum(block.iter(own).extent > 1 for dim, own in dims.all_of(block, "spatial").items() if dim not in parallel) < 2
        for block in products(program, nest)
    )


def has_few_rows(nest: NestPlan) -> bool:
    """Whether a program has a single row, or the few of a group of heads, and cannot have more.

    Args:
        nest: from `plan`.

    Returns:
        True if its number of rows is fixed.
    """
    return nest.column_axis is None and (nest.row_axis is None or nest.row_size is not None)


def folded(program: Program, nest: NestPlan) -> int:
    """How many elements the nest's first block folds into one value.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        The number of elements.
    """
    first = tree.find_block(program, nest.first)[1]
    return prod(it.extent for it in first.iters if it.kind == "reduce")


def accumulated(program: Program, nest: NestPlan) -> int:
    """Elements that the nest's products keep for each row over the loop.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        The number of elements.
    """
    rows = prod(tree.find_block(program, nest.first)[1].iter(name).extent for name in nest.parallel_axes)
    kept = [b for b in products(program, nest) if b.name in nest.reductions]
    return sum(prod(it.extent for it in b.iters if it.kind == "spatial") for b in kept) // rows


__all__ = [
    "COLUMNS",
    "LARGE_TILE",
    "ROWS",
    "NestConfig",
    "accumulated",
    "accumulates_several",
    "columns_of",
    "folded",
    "has_few_rows",
    "has_product",
    "is_vector_product",
    "multiplies_eights",
    "multiplies_float32",
    "multiplies_twice",
    "others",
    "products",
    "rows_of",
    "tile_elements",
]
