"""The warps and pipeline stages of a nest whose tile sizes are chosen."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import NestPlan, parallelism
from neptune_lab.loop_schedule.templates.nest_reads import has_uneven_work, matrices_read, reads_vector
from neptune_lab.loop_schedule.templates.nest_shape import (
    COLUMNS,
    LARGE_TILE,
    ROWS,
    NestConfig,
    accumulated,
    has_product,
    is_vector_product,
    rows_of,
    tile_elements,
)
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import BESIDE_TWO_ROWS, NVIDIA_REGISTERS

# Elements of a tile without a product per lane of a warp: if many programs share a multiprocessor, and if few do.
MANY_PROGRAMS, FEW_PROGRAMS = 64, 32
# The most if many programs each read several rows, which take as many registers: 32, or up to 45 since warps are a
# power of two. On an H200 the gradient of a softmax of 4096 x 4096 takes 24.5 us with one row in 4 warps, and 27.2 us
# with two; a layer_norm's of 2048 x 16384 127 us with 16 warps, 140 us with 8; a log-softmax's of 4096 x 11000 64.5 us
# with 8, 67.9 us with 16, and of 1596 x 27504 67.8 us with 32, 70.8 us with 16.
SEVERAL_ROWS = 45
# Programs per multiprocessor from which on there are many.
CROWDED = 4
# Programs per multiprocessor from which on there are many turns; and the fewest warps that halving may leave.
MANY_TURNS, FEWEST_HALVED = 16, 4
# Elements that a lane loads at once; programs of which one reads while another one writes; the warps of those of few
# turns that are halved if as many programs have room; and the bytes of an element of rows that were measured.
AT_ONCE, SEVERAL, MANY_WARPS, HALF = 8, 2, 16, 2
# Elements per lane of rows of at most so many elements, whose starts are aligned (`warps_of_short_rows`).
FEW_ELEMENTS, LONGEST_SHORT = 20, 6144
# Pipeline stages of products of few rows whose programs have unequal work: of programs with fewer stages, more share a
# multiprocessor.
UNEVEN_STAGES = 2
# Warps and pipeline stages of a loop of vector products. Its tiles are small, two programs share a multiprocessor, and
# the next two tiles are loaded meanwhile. On an H200 decoding takes 0.46 to 0.93 of the time of four warps that load
# one tile at a time.
VECTOR_WARPS, VECTOR_STAGES = 2, 3


def with_hints(program: Program, nest: NestPlan, config: NestConfig, multiprocessors: int) -> NestConfig:
    """The config with the launch hints that it leaves open.

    - Products of single rows (decoding): 2 warps and 3 stages. Of few rows with unequal work: 2 stages.
    - 128 rows of a product: 8 warps (a group of four warps multiplies 64 rows), unless a row accumulates at most 64
      elements; 8 too for large tiles of a product without rows.
    - Tiles without a product: 64 elements per lane if every multiprocessor has four programs that hold one row each, 45
      in 2 warps at least if they hold several (gradients of rows; 20 of short ones), else 32 in 4 warps at least.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        config: the nest's tile sizes, and the hints that the caller chose.
        multiprocessors: of the GPU.

    Returns:
        The config; hints that are still None are the emitter's defaults.
    """
    warps = config.num_warps or _warps(program, nest, config, multiprocessors)
    return replace(config, num_warps=warps, num_stages=config.num_stages or _stages(program, nest))


def _stages(program: Program, nest: NestPlan) -> int | None:
    if is_vector_product(program, nest):
        return VECTOR_STAGES
    if has_uneven_work(program, nest):
        return UNEVEN_STAGES
    return None


def _warps(program: Program, nest: NestPlan, config: NestConfig, multiprocessors: int) -> int | None:
    size = tile_elements(program, nest, config)
    if is_vector_product(program, nest):
        return VECTOR_WARPS
    if has_product(program, nest):
        if nest.row_axis is None:
            return 8 if size >= LARGE_TILE else None
        wide = config.block_kv > COLUMNS or accumulated(program, nest) > COLUMNS
        return 8 if wide and rows_of(program, nest, config) >= 2 * ROWS else None
    programs = parallelism(program, nest, config.block_q)
    if programs >= CROWDED * multiprocessors and config.one_tile:
        if matrices_read(program, nest, beside=True) < 2:
            return warps_for(size, MANY_PROGRAMS, 1)
        warps = warps_for(size, SEVERAL_ROWS, 2)
        few = programs < MANY_TURNS * multiprocessors
        matrices = [b for b in program.buffers if b.name in program.inputs and len(b.shape) > 1]
        wide = any(itemsize(b.dtype) > HALF for b in matrices)
        if reads_vector(program, nest) or (wide and not few):
            return warps
        return max(with_more_rows(size, warps, few), 1 if wide else warps_of_short_rows(size))
    return warps_for(size, FEW_PROGRAMS, 4) if size > ROWS * COLUMNS else None


def with_more_rows(elements: int, warps: int, few: bool) -> int:
    """Half of the warps if a multiprocessor then runs more such programs.

    On an H200 the gradient of a softmax takes, in half of the usual warps and in these: of 700 x 9000 9.9 and 11.2 us,
    of 1100 x 7000 10.5 and 10.8, of 600 x 12001 11.6 and 16.4, of 1100 x 5000 8.8 and 7.5, of 2807 x 13330 54.2 and
    67.3.

    Args:
        elements: of a row, of which each program has one of each of two tensors.
        warps: the usual ones.
        few: programs run in few turns.

    >>> [with_more_rows(n, warps, True) for n, warps in ((12001, 16), (9000, 8), (16000, 16), (5000, 4))]
    [8, 4, 16, 4]
    >>> [with_more_rows(n, warps, False) for n, warps in ((13330, 16), (8704, 8), (7000, 8), (16000, 16))]
    [8, 8, 8, 16]
    """
    half, usual, of_half = warps // 2, _resident(elements, warps), _resident(elements, warps // 2)
    if few:
        more = of_half > usual or (warps >= MANY_WARPS and of_half >= SEVERAL)
        return half if half >= FEWEST_HALVED and more else warps
    return half if usual < SEVERAL <= of_half else warps


def warps_of_short_rows(elements: int) -> int:
    """The fewest warps of programs that each hold such a row of two tensors, of 16 bits: 20 elements per lane.

    More loads are under way so, and the last programs end sooner: on an H200 the gradient of a softmax takes, in half
    of these warps and in these: of 1674 x 3792 8.2 and 6.5 us, of 1233 x 5208 9.9 and 6.9, of 2000 x 3000 7.7 and 5.9,
    of 4000 x 2000 12.1 and 10.8, of 5978 x 1344 12.1 and 11.2, of 2400 x 4000 14.4 and 14.2. In 16 warps, 1233 x 5208
    takes 8.0 us. It is 1, no bound, of longer rows and of those whose starts are not aligned: of 5326 x 1340 2 warps
    take 8.7 us and 4 take 10.6.

    >>> [warps_of_short_rows(n) for n in (1024, 1344, 2504, 3792, 5208, 6000, 7000, 1340)]
    [2, 4, 4, 8, 8, 8, 1, 1]
    """
    if elements % AT_ONCE or elements > LONGEST_SHORT:
        return 1
    return min(8, warps_for(elements, FEW_ELEMENTS, 2))


def _resident(elements: int, warps: int) -> int:
    """How many programs that hold two rows run at a time, with the registers of `htile_to_triton.several_rows`."""
    threads = 32 * warps
    registers = 2 * AT_ONCE * -(-elements // (AT_ONCE * threads)) + BESIDE_TWO_ROWS
    return NVIDIA_REGISTERS // (threads * registers)


def warps_for(elements: int, per_lane: int = FEW_PROGRAMS, least: int = 4) -> int:
    """Warps for a tile.

    Args:
        elements: elements of the tile.
        per_lane: elements for each of the 32 lanes of a warp.
        least: the fewest warps.

    Returns:
        The number of warps, a power of two, at most 32.

    >>> [warps_for(n) for n in (256, 4096, 16384, 20000, 1 << 20)]
    [4, 4, 16, 32, 32]
    """
    return min(32, max(least, power_of_two(-(-elements // (32 * per_lane)))))


__all__ = ["CROWDED", "warps_for", "with_hints", "with_more_rows"]
