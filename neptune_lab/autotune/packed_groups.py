"""Attention of few queries in groups of heads: whether the queries of a group are rows of one product, and its tiles.

A program multiplies 64 rows at least.  With 20 queries per head, two thirds of them are padding, and each head of a
group reads the same keys and values again; with the queries of a group in the rows (`attention.general` with
`pack_groups`), neither is so, but a kernel more is needed, which puts the rows back where each head has them.

On an H100 (µs, each head alone | packed, with the tiles of `choice` | cuDNN's graph): 16 x 16 heads in groups of 8, 30
queries, 3012 keys, widths 192 and 128: 156 | 73 | 105; 4 x 32 in 8, 17, 8000, 128: 108 | 40 | 110; 16 x 64 in 8, 40,
1500, 64: 64 | 53 | 132; 8 x 8 in 8, 24, 2500, 256: 44 | 26 | 65; 4 x 64 in 4, 20, 900, 96: 29 | 20 | 34; and with
little to save, 8 x 16 in 4, 33, 1200, 192 and 128: 26 | 32 | 28.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig
from neptune_lab.loop_schedule.templates.nest_shape import columns_of
from neptune_lab.loop_schedule.templates.shown import shown_columns
from neptune_lab.operators.attention_sizes import sizes_of
from neptune_lab.pipeline.choice import Choice

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.target import Target

# Rows of a program of four warps; one of eight has twice as many.
ROWS, COLUMNS = 64, 64
# Queries of a head for which it was measured.
FEWEST_QUERIES, MOST_QUERIES = 17, 63
# The rate of products, in operations per microsecond, and the microseconds that are to be saved: what the kernel that
# puts rows back takes, and adding up splits.
RATE, WORTH = 3e8, 8.0
# Wider rows leave room for one program per multiprocessor, and for two tiles.
WIDE = 128


def suits(apart: Operator) -> bool:
    """Whether attention is faster if the queries of a group are rows of one product.

    Args:
        apart: the operator without `pack_groups`.
    """
    sizes = sizes_of(apart.params)
    if sizes.group == 1 or not FEWEST_QUERIES <= sizes.q_len <= MOST_QUERIES or len(apart.inputs) > 3:
        return False
    own, together = sizes.group * _whole(sizes.q_len, ROWS), _whole(sizes.group * sizes.q_len, ROWS)
    nests = plan(apart.program)
    if len(nests) != 1 or sizes.pages is not None:
        return False
    first, end = shown_columns(apart.program, nests[0])
    width = sizes.head_dim + sizes.v_head_dim
    saved = 2 * sizes.batch * sizes.kv_heads * (own - together) * (end - first) * width / RATE
    return saved >= WORTH


def choice(packed: Operator, target: Target) -> Choice:
    """The tiles of an operator with `pack_groups`: 128 rows if they leave no more of them empty than 64, and as many
    splits as fill the GPU.

    Args:
        packed: the operator.
        target: the GPU.
    """
    sizes = sizes_of(packed.params)
    rows = sizes.group * sizes.q_len
    wide = max(sizes.head_dim, sizes.v_head_dim) > WIDE
    large = _whole(rows, 2 * ROWS) == _whole(rows, ROWS)
    block = 2 * ROWS if large else ROWS
    programs = -(-rows // block) * sizes.batch * sizes.kv_heads
    slots = target.sm_count * (1 if large or wide else 2)
    tiles = -(-columns_of(packed.program, plan(packed.program)[0]) // COLUMNS)
    splits = min(max(1, slots // programs), max(1, tiles // 4))
    given = {"block_q": block, "block_kv": COLUMNS, "num_warps": 8 if large else 4, "num_stages": 2 if wide else 3}
    if splits == 1:
        return Choice("rolling_update", TileConfig(**given))
    return Choice("split_k_update", SplitKConfig(**given, splits=splits))


def _whole(rows: int, block: int) -> int:
    return -(-rows // block) * block


__all__ = ["choice", "suits"]
