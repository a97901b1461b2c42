"""How many programs share the columns of a nest: splits that run in whole waves."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import NestPlan, parallelism
from neptune_lab.loop_schedule.templates.nest_reads import element_bytes, folds_columns, has_uneven_work, writes_rows
from neptune_lab.loop_schedule.templates.nest_shape import (
    LARGE_TILE,
    NestConfig,
    columns_of,
    has_product,
    others,
    tile_elements,
)
from neptune_lab.strict.dtypes import itemsize

# The tile and the warps of few long rows of 16 bits that are written, which are split, and how many of their programs
# a multiprocessor runs at a time. On an H200 softmax of 35 x 119623 takes 11.2 us so and 15.5 in tiles of 32768, of
# 60 x 200001 30.8 and 34.8, of 33 x 40000 4.5, and 5.0 in tiles of 16384.
SPLIT_ROW, SPLIT_ROW_WARPS, SPLIT_ROW_RESIDENT = 8192, 16, 4


# Programs per multiprocessor if the values of an input decide how much work each has, and the fewest tiles of each: on
# an H200, caches of 32 sequences whose lengths differ by a factor of two are read 1.25 times as fast as by one or two.
UNEVEN_PROGRAMS, FEWEST_TILES = 16, 4


# Programs of a sum of columns that a multiprocessor runs at a time: few registers, and memory to wait for.
RESIDENT_SUMS = 8


def splits_written_rows(program: Program, nest: NestPlan, programs: int, multiprocessors: int) -> bool:
    """Whether few long rows of 16 bits are read and written in 16 bits, without a vector along them: a softmax."""
    few = 4 * programs < 3 * multiprocessors and others(program, nest) == 1 and not has_product(program, nest)
    if not few or element_bytes(program, nest) > 2 or not writes_rows(program, nest):
        return False
    plain = not any(b.shape == (columns_of(program, nest),) for b in program.buffers if b.name in program.inputs)
    return plain and all(itemsize(b.dtype) == 2 for b in program.buffers if b.name in program.outputs)


# In units of the time of one tile: the time of a program outside its loop, and the time to combine one more split.
_START, _COMBINE = 1.0, 0.05


def balanced_splits(programs: int, tiles: int, slots: int) -> int:
    """The number of splits for `programs` programs of `tiles` tiles each, so that they run in whole waves of `slots`.

    It minimises a model of the time: waves x (tiles per split + `_START`) + splits x `_COMBINE`.

    Args:
        programs: programs without splits.
        tiles: tiles of each program.
        slots: programs that the GPU runs at a time.

    Returns:
        The number of splits, at least 1.

    >>> balanced_splits(32, 512, 264), balanced_splits(8, 512, 132), balanced_splits(8, 4, 132)
    (8, 16, 4)
    """

    def cost(each: int) -> float:
        count = -(-tiles // each)
        return -(-programs * count // slots) * (each + _START) + count * _COMBINE

    return -(-tiles // min(range(1, tiles + 1), key=cost))


def splits_of(program: Program, nest: NestPlan, config: NestConfig, multiprocessors: int) -> tuple[int, int]:
    """The number of splits of a nest, and the tiles in each.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        config: the nest's tile sizes, and the number of splits if the caller chose it.
        multiprocessors: of the GPU.

    Returns:
        (splits, tiles per split); no split is empty.
    """
    tiles = -(-columns_of(program, nest) // config.block_kv)
    splits = config.splits
    if splits is None and has_uneven_work(program, nest):
        wanted = -(-UNEVEN_PROGRAMS * multiprocessors // parallelism(program, nest, config.block_q))
        splits = max(1, min(wanted, tiles // FEWEST_TILES))
    elif splits is None:
        resident = 1 if tile_elements(program, nest, config) >= LARGE_TILE else 2
        resident = RESIDENT_SUMS if folds_columns(program, nest) else resident
        programs = parallelism(program, nest, config.block_q)
        if config.block_kv == SPLIT_ROW and splits_written_rows(program, nest, programs, multiprocessors):
            resident = SPLIT_ROW_RESIDENT
        splits = balanced_splits(programs, tiles, multiprocessors * resident)
    each = -(-tiles // splits)
    return -(-tiles // each), each
