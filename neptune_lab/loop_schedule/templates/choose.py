"""Which template suits an operator, by its shape."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import Nest, parallelism, plan
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.knobs import Knobs, columns_of, has_product, knobs_of
from neptune_lab.target import DEFAULT

# Fewer tiles than this are not worth the kernel that combines the splits; nor are fewer than this of a long row, whose
# tiles are long themselves.
TILES_TO_SPLIT, LONG_TILES_TO_SPLIT = 8, 3


def choose_template(program: Program, multiprocessors: int = DEFAULT.sm_count) -> tuple[str, str]:
    """The name of a template for a definition, and the reason in a sentence.

    Rolling update keeps everything in one kernel, but runs along the columns (keys) in order: it suits operators with
    many independent rows (queries).  Split-k update walks the columns in parallel, at the price of storing one
    partial result a split and of a kernel that combines them: it suits few rows and many columns, as in decoding
    (paper, 4.3).
    """
    nests = plan(program)
    if not nests:
        return "rolling_update", "it has no reduction to split"
    knobs = knobs_of(program, nests, TileConfig(multiprocessors=multiprocessors))
    nest, knob = max(zip(nests, knobs, strict=True), key=lambda pair: _tiles(program, *pair))
    programs, tiles = parallelism(program, nest, knob.block_q), _tiles(program, nest, knob)
    rows = f"{programs} program{'s' if programs > 1 else ''} of up to {nest.row_size or knob.block_q} rows"
    if nest.row is None or knob.block_q == 1:
        rows = f"{programs} program{'s' if programs > 1 else ''} of one row"
    if knob.hold:
        return "rolling_update", f"{rows} take all {columns_of(program, nest)} of {nest.column} in one tile"
    if 4 * programs >= 3 * multiprocessors:
        return "rolling_update", f"{rows} are enough to fill a GPU of {multiprocessors} multiprocessors"
    if tiles < (TILES_TO_SPLIT if has_product(program, nest) or knob.block_q > 1 else LONG_TILES_TO_SPLIT):
        few = f"{nest.column} has {tiles} tile{'s' if tiles > 1 else ''} of {knob.block_kv}"
        return "rolling_update", f"{few}: too few to split"
    return "split_k_update", (
        f"{rows} leave most of a GPU of {multiprocessors} multiprocessors idle, and {nest.column} has {tiles} tiles of "
        f"{knob.block_kv} to share out"
    )


def _tiles(program: Program, nest: Nest, knobs: Knobs) -> int:
    return -(-columns_of(program, nest) // knobs.block_kv)
