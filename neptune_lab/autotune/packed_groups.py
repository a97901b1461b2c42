"""Attention of few queries in groups of heads: whether the queries of a group are rows of one product, and its tiles.

A program multiplies 64 rows.  With 20 queries per head, two thirds of them are padding, and each head of a group reads
the same keys and values again; with the queries of a group in the rows (`attention.general` with `pack_groups`),
neither is so, but a kernel more is needed, which puts the rows back where each head has them.

On an H200 (the last three on an H100), in microseconds, causal or full:

    batch x heads, group, queries x keys, widths     each head alone    packed    cuDNN's graph
    16 x 16, 8, 30 x 3012, 192/128                               156        72              105
    16 x 64, 8, 25 x 266, 256                                     82        53               96
    8 x 32, 8, 4 x 8000, 128                                     131        43              201
    16 x 16, 8, 8 x 3000, 128                                     61        22               82
    4 x 64, 8, 2 x 6000, 128                                     116        32              151
    2 x 64, 8, 55 x 11168, 192/128 (not packed)                  170       301              181
    4 x 32, 8, 17 x 8000, 128                                    108        40              110
    16 x 64, 8, 40 x 1500, 64                                     64        53              132
    8 x 16, 4, 33 x 1200, 192/128 (not packed)                    26        32               28
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neptune_lab.choice import Choice
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig
from neptune_lab.loop_schedule.templates.nest_shape import columns_of
from neptune_lab.loop_schedule.templates.shown import shown_columns
from neptune_lab.operators.attention_sizes import sizes_of
from neptune_lab.strict.dtypes import FLOATS

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.target import Target

# Rows of a program of four warps; one of eight has twice as many.
ROWS, COLUMNS = 64, 64
# Rows of a program that has up to 16 queries of a head: matrix units multiply 16, about half as fast each.
FEW_QUERIES, FEW_ROWS = 16, 32
# Queries of a head for which it was measured: with one, heads are rows in any case.
FEWEST_QUERIES, MOST_QUERIES = 2, 63
# The rate of products, in operations per microsecond, and the microseconds that are to be saved: what the kernel that
# puts rows back takes, and adding up splits.  The rows that are left are at most this part, of wide rows in
# programs of 64 the second.
RATE, WORTH, LEFT, LEFT_WIDE = 3e8, 8.0, 0.75, 0.5
# Wider rows leave room for one program per multiprocessor, and for two tiles.  Programs of 64 such rows take so much
# longer than those of 128 that some more rows may be empty.
WIDE, WORTH_IN_ROWS = 128, 1.25


def suits(apart: Operator) -> bool:
    """Whether attention is faster if the queries of a group are rows of one product.

    Args:
        apart: the operator without `pack_groups`.
    """
    sizes = sizes_of(apart.params)
    if sizes.group == 1 or sizes.pages is not None or not FEWEST_QUERIES <= sizes.q_len <= MOST_QUERIES:
        return False
    if any(len(captured.shape) > 1 or captured.dtype not in FLOATS for captured in apart.inputs[3:]):
        return False  # (tiles that documents hide are not skipped in rows of several heads; a bias is read for each)
    rows = FEW_ROWS if sizes.q_len <= FEW_QUERIES else _round_up(sizes.q_len, ROWS)
    own, together = sizes.group * rows, _round_up(sizes.group * sizes.q_len, ROWS)
    nests = plan(apart.program)
    wide = max(sizes.head_dim, sizes.v_head_dim) > WIDE
    left = LEFT_WIDE if wide and not _is_large(sizes.group * sizes.q_len, wide) else LEFT
    if len(nests) != 1 or together > left * own:
        return False
    first, end = shown_columns(apart.program, nests[0])
    width = sizes.head_dim + sizes.v_head_dim
    saved = 2 * sizes.batch * sizes.kv_heads * (own - together) * (end - first) * width / RATE
    return saved >= WORTH


def choice(packed: Operator, target: Target) -> Choice:
    """The tiles of an operator with `pack_groups`: 128 rows if they leave no more of them empty than 64, or a few more
    of wide ones; and as many splits as fill the GPU.

    Args:
        packed: the operator.
        target: the GPU.
    """
    sizes = sizes_of(packed.params)
    rows = sizes.group * sizes.q_len
    wide = max(sizes.head_dim, sizes.v_head_dim) > WIDE
    large = _is_large(rows, wide)
    block = 2 * ROWS if large else ROWS
    programs = -(-rows // block) * sizes.batch * sizes.kv_heads
    slots = target.sm_count * (1 if large or wide else 2)
    tiles = -(-columns_of(packed.program, plan(packed.program)[0]) // COLUMNS)
    splits = min(max(1, slots // programs), max(1, tiles // 4))
    given: dict[str, Any] = {
        "block_q": block,
        "block_kv": COLUMNS,
        "num_warps": 8 if large else 4,
        "num_stages": 2 if wide else 3,
    }
    if splits == 1:
        return Choice("rolling_update", TileConfig(**given))
    return Choice("split_k_update", SplitKConfig(**given, splits=splits))


def _is_large(rows: int, wide: bool) -> bool:
    """Whether programs get twice 64 rows."""
    return _round_up(rows, 2 * ROWS) <= (WORTH_IN_ROWS if wide else 1) * _round_up(rows, ROWS)


def _round_up(rows: int, block: int) -> int:
    return -(-rows // block) * block


__all__ = ["choice", "suits"]
