"""The choice of a template, by an operator's shape."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import NestPlan, parallelism, plan
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.nest_config import nest_configs
from neptune_lab.loop_schedule.templates.nest_reads import folds_columns, has_uneven_work
from neptune_lab.loop_schedule.templates.nest_shape import NestConfig, columns_of, has_product, is_vector_product
from neptune_lab.loop_schedule.templates.shown import shown_columns
from neptune_lab.loop_schedule.templates.splits import RESIDENT_SUMS, UNEVEN_PROGRAMS
from neptune_lab.target import DEFAULT

# With fewer tiles, splits save less time than the kernel that combines them takes. The second number is for rows
# without a product, whose tiles are long.
TILES_TO_SPLIT, LONG_TILES_TO_SPLIT = 8, 3


def choose_template(program: Program, multiprocessors: int = DEFAULT.sm_count) -> tuple[str, str]:
    """The name of a template for a definition, and the reason.

    Rolling update is one kernel that visits the columns (keys) in order: it suits operators with many independent rows
    (queries).  Split-k update visits the columns in parallel, but stores one partial result per split and needs a
    kernel that combines them: it suits few rows and many columns, as in decoding (paper, 4.3).

    Args:
        program: the definition, before any step.
        multiprocessors: of the GPU.

    Returns:
        "rolling_update" or "split_k_update", and the reason as one sentence.
    """
    nests = plan(program)
    if not nests:
        return "rolling_update", "it has no reduction to split"
    configs = nest_configs(program, nests, TileConfig(multiprocessors=multiprocessors))
    nest, config = max(zip(nests, configs, strict=True), key=lambda pair: _tiles(program, *pair))
    programs, tiles = parallelism(program, nest, config.block_q), _tiles(program, nest, config)
    axis = nest.reduce_axis
    rows = f"{programs} program{'s' if programs > 1 else ''} of up to {nest.row_size or config.block_q} rows"
    if nest.row_axis is None or config.block_q == 1:
        rows = f"{programs} program{'s' if programs > 1 else ''} of one row"
    hold, leave = ("holds", "leaves") if programs == 1 else ("hold", "leave")
    if config.one_tile:
        return "rolling_update", f"{rows} {hold} all {columns_of(program, nest)} elements of {axis} in one tile"
    if programs >= _filling(program, nest) * multiprocessors:
        return "rolling_update", f"{rows} are enough to fill a GPU of {multiprocessors} multiprocessors"
    least = TILES_TO_SPLIT if has_product(program, nest) or config.block_q > 1 else LONG_TILES_TO_SPLIT
    if tiles < least:
        few = f"{axis} has {tiles} tile{'s' if tiles > 1 else ''} of {config.block_kv}"
        return "rolling_update", f"{few}: too few to split"
    if (shown := _shown_tiles(program, nest, config)) < least:
        return "rolling_update", f"of {axis}, masks show at most {shown} tiles of {config.block_kv}: too few to split"
    return "split_k_update", (
        f"{rows} {leave} most of a GPU of {multiprocessors} multiprocessors idle, and {axis} has {tiles} tiles of "
        f"{config.block_kv} that can be split among more programs"
    )


def _shown_tiles(program: Program, nest: NestPlan, config: NestConfig) -> int:
    """The most tiles that masks of positions show to a program, of the first one, one in the middle and the last."""
    rows = tree.find_block(program, nest.first)[1].iter(nest.row_axis).extent if nest.row_axis else 1
    size = min(rows, nest.row_size or config.block_q)
    most = 0
    for start in {0, (rows - size) // 2, rows - size}:
        first, end = shown_columns(program, nest, range(start, start + size))
        most = max(most, -(-end // config.block_kv) - first // config.block_kv)
    return most


def _filling(program: Program, nest: NestPlan) -> float:
    """Programs per multiprocessor that fill a GPU: two share one if each multiplies single rows, and more are wanted if
    some have less work than others."""
    if has_uneven_work(program, nest):
        return UNEVEN_PROGRAMS
    if folds_columns(program, nest):
        return RESIDENT_SUMS / 2
    return 1.5 if is_vector_product(program, nest) else 0.75


def _tiles(program: Program, nest: NestPlan, config: NestConfig) -> int:
    return -(-columns_of(program, nest) // config.block_kv)
