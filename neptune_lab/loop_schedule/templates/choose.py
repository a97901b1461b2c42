"""Which template suits an operator, by its shape."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import Nest, parallelism, plan

# A large GPU's multiprocessors; with fewer programs than that, some of them have nothing to do.
MULTIPROCESSORS = 132
ROWS, COLUMNS = 64, 64
# Fewer tiles than this are not worth the kernel that combines the splits.
TILES_TO_SPLIT = 8


def choose_template(program: Program) -> tuple[str, str]:
    """The name of a template for a definition, and the reason in a sentence.

    Rolling update keeps everything in one kernel, but runs along the columns (keys) in order: it suits operators with
    many independent rows (queries).  Split-k update walks the columns in parallel, at the price of storing one
    partial result a split and of a kernel that combines them: it suits few rows and many columns, as in decoding
    (paper, 4.3).
    """
    nests = plan(program)
    if not nests:
        return "rolling_update", "it has no reduction to split"
    nest = max(nests, key=lambda n: _tiles(program, n))
    programs, tiles = parallelism(program, nest, ROWS), _tiles(program, nest)
    rows = f"{programs} program{'s' if programs > 1 else ''} of up to {nest.row_size or ROWS} rows"
    if nest.row is None:
        rows = f"{programs} program{'s' if programs > 1 else ''} of one row"
    if programs >= MULTIPROCESSORS:
        return "rolling_update", f"{rows} are enough to fill a GPU of {MULTIPROCESSORS} multiprocessors"
    if tiles < TILES_TO_SPLIT:
        few = f"{nest.column} has {tiles} tile{'s' if tiles > 1 else ''} of {COLUMNS}"
        return "rolling_update", f"{few}: too few to split"
    return "split_k_update", (
        f"{rows} leave most of a GPU of {MULTIPROCESSORS} multiprocessors idle, and {nest.column} has {tiles} tiles of "
        f"{COLUMNS} to share out"
    )


def _tiles(program: Program, nest: Nest) -> int:
    _, first, _ = tree.find_block(program, nest.first)
    return -(-first.iter(nest.column).extent // COLUMNS)
