"""Smaller tiles, other warps and fewer stages, for GPUs whose matrix units keep a product's tiles in registers.

Hopper's groups of warps read factors from shared memory, and data-center Blackwell keeps sums in tensor memory: the
sizes that `default_config` chooses are measured there, except for wide backward passes, whose tiles would not fit.
All other GPUs hold factors and sums in registers, and many have less shared memory.  The sizes below are not measured,
they are compiled: with them neither ptxas 12.8 nor LLVM spills registers in any operator that is not listed in
`tests/machine_code/test_targets.py`; wide backward passes on Hopper spill at most 128 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.templates.nest_reads import folds_columns, matrices_read
from neptune_lab.loop_schedule.templates.nest_shape import (
    NestConfig,
    accumulated,
    columns_of,
    folded,
    has_few_rows,
    has_product,
    is_vector_product,
    multiplies_eights,
    multiplies_float32,
    multiplies_twice,
    others,
    rows_of,
)
from neptune_lab.target import MATRIX_UNITS


@dataclass(frozen=True, slots=True)
class UnitTiles:
    """The largest tiles of a product, and its launch hints.

    Args:
        rows, columns: of the product's tile, at most.
        warps: at most.
        rows_per_warp: fewer warps for fewer rows, but at least 4.
        stages: of the pipeline.
    """

    rows: int
    columns: int
    warps: int
    rows_per_warp: int
    stages: int


@dataclass(frozen=True, slots=True)
class _Case:
    """The products that some tiles are for: their widest factor or accumulator in elements, at most, and the rows that
    are chosen by shape, at least."""

    width: int
    rows: int
    tiles: UnitTiles


# Of products in 16 bits, by matrix unit; the first case that holds.  The last is for all wider ones, too.  (ptxas keeps
# more of a width that is no power of two in registers.)
_HALVES: Mapping[str, tuple[_Case, ...]] = MappingProxyType(
    {
        "mma": (
            _Case(64, 1, UnitTiles(128, 64, 8, 16, 2)),
            _Case(128, 1, UnitTiles(128, 32, 8, 8, 2)),
            _Case(255, 1, UnitTiles(32, 32, 4, 8, 2)),
            _Case(256, 1, UnitTiles(64, 32, 8, 8, 2)),
        ),
        "mfma": (
            _Case(64, 1, UnitTiles(64, 64, 4, 16, 2)),
            _Case(256, 1, UnitTiles(64, 32, 4, 16, 2)),
        ),
        "wmma": (
            _Case(64, 1, UnitTiles(128, 64, 8, 16, 1)),
            _Case(128, 128, UnitTiles(64, 32, 8, 8, 1)),
            _Case(128, 1, UnitTiles(32, 32, 8, 4, 1)),
            _Case(256, 1, UnitTiles(32, 16, 8, 4, 1)),
        ),
    }
)
# Of products in 8 bits: registers for addresses are scarce.
_EIGHTS: Mapping[str, UnitTiles] = MappingProxyType({"mfma": UnitTiles(64, 32, 4, 16, 1)})
# Of products in float32: of 64 elements, four warps would spill 8 bytes on sm_120; of 128, eight would on sm_80.
_FLOAT32: Mapping[str, tuple[_Case, ...]] = MappingProxyType(
    {
        "mma": (_Case(64, 1, UnitTiles(16, 32, 8, 2, 1)), _Case(256, 1, UnitTiles(16, 32, 4, 16, 1))),
        "tcgen05": (_Case(256, 1, UnitTiles(16, 32, 4, 16, 1)),),
        "wmma": (_Case(256, 1, UnitTiles(16, 16, 8, 2, 1)),),
    }
)
# Of products of single rows, and of few.  What RDNA 3 loads ahead is in registers, so that it has no pipeline.
_VECTORS: Mapping[str, tuple[int, int]] = MappingProxyType({"wmma": (4, 1)})
_FEW_ROWS: Mapping[str, UnitTiles] = MappingProxyType({"wmma": UnitTiles(64, 32, 8, 8, 1)})
# Of products without rows whose sums have at least so many elements (the performer's keys with values).
_SUMMED = 4096
_SUMS: Mapping[str, UnitTiles] = MappingProxyType(
    {"mfma": UnitTiles(64, 16, 4, 16, 1), "tcgen05": UnitTiles(64, 32, 4, 16, 1), "wmma": UnitTiles(64, 16, 8, 8, 1)}
)
# Of nests with two products per tile before the one that accumulates (backward passes): whole rows of several factors
# are held at a time.  The first number is the width up to which other tiles do: on Hopper, the tiles of narrower ones
# would take more shared memory than a block has, and spill.
_TWICE: Mapping[str, tuple[int, UnitTiles]] = MappingProxyType(
    {
        "wgmma": (128, UnitTiles(64, 64, 8, 8, 2)),
        "tcgen05": (128, UnitTiles(64, 64, 4, 16, 2)),
        "wmma": (0, UnitTiles(32, 16, 8, 4, 1)),
    }
)
# The same for a split nest on Hopper, whose partial sums pass through shared memory beside the factors.
_TWICE_SPLIT = UnitTiles(64, 32, 8, 8, 2)
# Of nests that would add up more elements in a thread than its registers hold beside the rest (the gradient of absorbed
# MLA's latents, 512 wide).
_ADDED = 128
_WIDE_SUMS: Mapping[str, UnitTiles] = MappingProxyType(
    {"wgmma": UnitTiles(64, 64, 8, 8, 2), "tcgen05": UnitTiles(64, 64, 8, 8, 2)}
)
# Elements of a tile without a product, if it is a part of a row or there are several; of more, a program of NVIDIA's
# has too few registers.
_ROW_ELEMENTS = 1 << 14
# Elements of a tile without a product that a program of four warps holds, those that each value folds counted: 64 in a
# thread, and 128 on Hopper. On an H100, maxima of 264 matrices of 2048 x 64 take 90 us with them, 128 us with half as
# many, 79 us with twice as many and 1013 us with one tile of all rows, whose registers spill; sums over the first two
# axes of 100 x 64 x 6400 take 71 us in tiles of 16 columns and 185 us in tiles of one.
_HELD: Mapping[str, int] = MappingProxyType(dict.fromkeys(MATRIX_UNITS, 1 << 13) | {"wgmma": 1 << 14})
# Rows that are neighbours in memory, and columns of their tiles, which are halved last.
_NEIGHBOURS, _FEW_COLUMNS = 16, 8


def suited(
    program: Program, nest: NestPlan, config: NestConfig, matrix_unit: str, *, split: bool = False
) -> NestConfig:
    """`config` for a GPU with another matrix unit than Hopper, and for wide backward passes on Hopper.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        config: chosen by shape; without launch hints that a caller chose.
        matrix_unit: one of `target.MATRIX_UNITS`.
        split: whether the columns of the nest may be split among programs.

    Returns:
        The config; `config` itself if nothing is smaller on such a GPU.
    """
    if is_vector_product(program, nest):
        warps, stages = _VECTORS.get(matrix_unit, (config.num_warps, config.num_stages))
        return replace(config, num_warps=warps, num_stages=stages)
    if not has_product(program, nest):
        beside = others(program, nest) * max(1, folded(program, nest) // columns_of(program, nest))
        if beside > 1:
            return _held(program, nest, config, beside, matrix_unit)
        several = not config.one_tile or matrices_read(program, nest) > 1
        if matrix_unit == "wgmma" or config.block_q > 1 or config.block_kv <= _ROW_ELEMENTS or not several:
            return config
        return replace(config, block_kv=_ROW_ELEMENTS, one_tile=False)
    tiles = _tiles(program, nest, config, matrix_unit, split)
    if tiles is None:
        return config
    rows, columns = min(config.block_q, tiles.rows), min(config.block_kv, tiles.columns)
    warps = min(tiles.warps, max(4, rows // tiles.rows_per_warp))
    whole = config.one_tile and columns >= columns_of(program, nest)
    return replace(config, block_q=rows, block_kv=columns, num_warps=warps, num_stages=tiles.stages, one_tile=whole)


def held(rows: int, columns: int, beside: int, matrix_unit: str, *, neighbours: bool = False) -> tuple[int, int]:
    """The rows and columns of a tile without a product, such that four warps can hold it.

    Args:
        rows, columns: chosen by shape.
        beside: elements that the tile has for each row and column, such as those that a value folds.
        matrix_unit: one of `target.MATRIX_UNITS`.
        neighbours: whether rows, not columns, lie beside each other in memory.

    Returns:
        Both; the same ones, if they fit.

    >>> held(16, 256, 64, "mma"), held(16, 16, 1, "mma"), held(16, 256, 64, "wgmma")
    ((1, 128), (16, 16), (1, 256))
    >>> held(64, 64, 64, "mma", neighbours=True)
    (16, 8)
    """
    fewest = _NEIGHBOURS if neighbours else 1
    while rows * columns * beside > _HELD[matrix_unit] and rows * columns > 1:
        if rows > fewest or (columns <= _FEW_COLUMNS and rows > 1):
            rows = -(-rows // 2)
        else:
            columns = -(-columns // 2)
    return rows, columns


def _held(program: Program, nest: NestPlan, config: NestConfig, beside: int, matrix_unit: str) -> NestConfig:
    """The config of a nest without a product, whose tiles have `beside` elements for each row and column."""
    width, fixed = columns_of(program, nest), nest.row_size or 1
    chosen = rows_of(program, nest, config) // fixed, min(config.block_kv, width)
    neighbours = folds_columns(program, nest)
    rows, columns = held(*chosen, beside * fixed, matrix_unit, neighbours=neighbours)
    if (rows, columns) == chosen:
        return config
    return replace(config, block_q=rows, block_kv=columns, one_tile=config.one_tile and columns == width)


def _tiles(program: Program, nest: NestPlan, config: NestConfig, unit: str, split: bool) -> UnitTiles | None:
    """The tiles of a nest with a product; None: as chosen by shape."""
    read, added = folded(program, nest), accumulated(program, nest)
    if multiplies_float32(program, nest):
        return _case(_FLOAT32.get(unit, ()), max(read, added), config.block_q)
    if nest.row_axis is None and unit in _SUMS and added >= _SUMMED:
        return _SUMS[unit]
    if has_few_rows(nest):
        return _FEW_ROWS.get(unit)
    if unit in _EIGHTS and multiplies_eights(program, nest):
        return _EIGHTS[unit]
    if unit in _TWICE and multiplies_twice(program, nest) and read > _TWICE[unit][0]:
        return _TWICE_SPLIT if split and unit == "wgmma" else _TWICE[unit][1]
    per_thread = config.block_q * added / (32 * (config.num_warps or 4))
    if unit in _WIDE_SUMS and added < _SUMMED and per_thread > _ADDED:
        return _WIDE_SUMS[unit]
    return _case(_HALVES.get(unit, ()), max(read, added), config.block_q)


def _case(cases: tuple[_Case, ...], width: int, rows: int) -> UnitTiles | None:
    """The tiles of the first case that holds, or of the last one; None if there are none."""
    found = (case.tiles for case in cases if width <= case.width and rows >= case.rows)
    return next(found, cases[-1].tiles if cases else None)


__all__ = ["UnitTiles", "held", "suited"]
