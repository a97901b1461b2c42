"""What a nest reads of memory and writes: along which axes, how wide, and by which blocks."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (teaches NumPy the name "bfloat16")
import numpy as np

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import Dimension, dimensions
from neptune_lab.loop_ir.nodes import Block, Load, Op, Program, Var
from neptune_lab.loop_ir.positions import ORDERED
from neptune_lab.loop_ir.walks import loads, variables, walk
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.templates.nest_shape import columns_of, has_few_rows, has_product, products
from neptune_lab.strict.dtypes import INTEGERS

# The widest rows that two products read whole: 64 of them, of 16 bits an element, are 64 KiB.
LONGEST_SHARED = 512


def is_read_whole(program: Program, nest: NestPlan, name: str) -> bool:
    """Whether another product of the nest reads the rows whole that the first block folds: the latents of MLA, which
    are keys and values.  A tile of them is on chip in any case, and one load serves both if neither cuts it.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        name: the axis that the first block folds.
    """
    first = tree.find_block(program, nest.first)[1]
    extent = first.iter(name).extent
    folded = {(r.buffer, n) for r in loads(first.body.value) for n, i in enumerate(r.indices) if i == Var(name)}
    if extent > LONGEST_SHARED:
        return False
    for block in products(program, nest):
        own = {it.name for it in block.iters if it.kind == "spatial" and it.extent == extent}
        for read in loads(block.body.value):
            places = enumerate(read.indices)
            if any((read.buffer, n) in folded and isinstance(i, Var) and i.name in own for n, i in places):
                return True
    return False


def has_uneven_work(program: Program, nest: NestPlan) -> bool:
    """Whether the values of an input decide how much of its work a program of few rows has: beside a product, a block
    compares positions with integers of an input, such as the lengths of sequences.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        True if such a comparison is found.
    """
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers if buffer.name in program.params}
    return (has_product(program, nest) and has_few_rows(nest)) and any(
        isinstance(side, Load) and dtypes.get(side.buffer) in INTEGERS
        for block in _blocks_of(program, nest)
        for part in walk(block.body.value)
        if isinstance(part, Op) and part.name in ORDERED
        for side in part.args
    )


def writes_rows(program: Program, nest: NestPlan) -> bool:
    """Whether an output has the nest's reduce axis, so that its columns are read again after the reductions.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        True for a softmax, False for a sum.
    """
    dims = dimensions(program)
    column = dims.of(tree.find_block(program, nest.first)[1], nest.reduce_axis)
    return any(
        column in dims.all_of(block, "spatial")
        for block in tree.blocks(program)
        if block.body.buffer in program.outputs
    )


def folds_columns(program: Program, nest: NestPlan) -> bool:
    """Whether neighbours in memory are rows of the nest: it folds columns of matrices (the gradient of a norm's scale).

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        True if an input with rows and columns is read with the row axis last, and none with the reduce axis last.
    """
    dims = dimensions(program)
    first = tree.find_block(program, nest.first)[1]
    if nest.row_axis is None:
        return False
    row, column = dims.of(first, nest.row_axis), dims.of(first, nest.reduce_axis)
    last: set[Dimension] = set()
    for block in _blocks_of(program, nest):
        own = {name: dimension for dimension, name in dims.all_of(block).items()}
        for read in loads(block.body.value):
            if read.buffer in program.params and len(read.indices) > 1:
                there = {own[name] for index in read.indices for name in variables(index) if name in own}
                ends = {own[name] for name in variables(read.indices[-1]) if name in own}
                last |= ends if column in there else ends - {row}
    return row in last and column not in last


def reads_diagonals(program: Program, nest: NestPlan) -> bool:
    """Whether a nest folds diagonals of matrices, such as the gradient of a bias of relative positions: one index of a
    read depends on both the row axis and the reduce axis.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
    """
    both = {nest.row_axis, nest.reduce_axis}
    first = tree.find_block(program, nest.first)[1]
    reads = loads(first.body.value)
    return any(both <= variables(index) for read in reads if read.buffer != first.writes for index in read.indices)


def reads_per_pair(program: Program, nest: NestPlan) -> bool:
    """Whether a map of the nest reads an element per pair of row and column that no tile of a tensor holds, such as a
    bias of relative positions: each is loaded through a pointer of its own.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
    """
    reads = [read for name in nest.maps for read in loads(tree.find_block(program, name)[1].body.value)]
    return any(len(variables(index)) > 1 for read in reads for index in read.indices)


def element_bytes(program: Program, nest: NestPlan) -> int:
    """Bytes of an element of the widest input that the nest reads.

    Args:
        program: the definition, before any step.
        nest: from `plan`.

    Returns:
        The number of bytes.
    """
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers if buffer.name in program.inputs}
    parts = (part for block in _blocks_of(program, nest) for part in walk(block.body.value))
    read = {dtypes[part.buffer] for part in parts if isinstance(part, Load) and part.buffer in dtypes}
    return max((np.dtype(dtype).itemsize for dtype in read - INTEGERS), default=4)


def matrices_read(program: Program, nest: NestPlan, *, beside: bool = False) -> int:
    """How many inputs with rows and columns the nest reads.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        beside: count those of other blocks with the same columns too, such as a map of the nest's results.
    """
    blocks = _blocks_of(program, nest)
    if beside:
        dims = dimensions(program)
        column = dims.of(tree.find_block(program, nest.first)[1], nest.reduce_axis)
        blocks = [b for b in tree.blocks(program) if column in {*dims.all_of(b, "spatial"), *dims.all_of(b, "reduce")}]
    every = (part for block in blocks for part in walk(block.body.value) if isinstance(part, Load))
    return len({part.buffer for part in every if part.buffer in program.params and len(part.indices) > 1})


def reads_vector(program: Program, nest: NestPlan) -> bool:
    """Whether an input is a vector along the rows of the nest.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
    """
    return any(b.shape == (columns_of(program, nest),) for b in program.buffers if b.name in program.inputs)


def _blocks_of(program: Program, nest: NestPlan) -> list[Block]:
    """The nest's blocks."""
    names = {nest.first, *nest.maps, *nest.independent_maps, *nest.auxiliary_reductions, *nest.reductions}
    return [block for block in tree.blocks(program) if block.name in names]


__all__ = [
    "element_bytes",
    "folds_columns",
    "has_uneven_work",
    "is_read_whole",
    "matrices_read",
    "reads_diagonals",
    "reads_per_pair",
    "reads_vector",
    "writes_rows",
]
