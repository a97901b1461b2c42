"""Rules that refuse a candidate of our templates before anything is compiled: MCFuser's rules 3 and 4 for the kernels
that we emit, registers, and the requirements of code options.

Each rule takes the nests of an operator and one candidate, and returns the reason in a sentence, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TypeAlias

from neptune_lab.autotune.dag import trip_counts
from neptune_lab.autotune.nests import DEFAULT_WARPS, NestChain, entry, splits_of
from neptune_lab.autotune.rules import pads_little
from neptune_lab.autotune.shared_memory import GROUP_ROWS, GROUP_WARPS
from neptune_lab.choice import Choice, CodeOptions
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.target import Target

Rule: TypeAlias = Callable[[tuple[NestChain, ...], Choice, Target], str | None]

# The most numbers of tiles per thread. On an H200, attention kernels with 192 of them hardly spill (234 to 255
# registers), those with 256 do; if rows are too few for a group of warps, operands are in registers too.
HELD_A_THREAD, HELD_A_THREAD_FEW_ROWS = 200, 128
# The same without products: a thread holds its part of one tile in several forms.
HELD_A_THREAD_PLAIN = 64
# With fewer numbers per thread than this, threads are idle.
LEAST_A_THREAD = 4
# A usual side of a product's tile.
USUAL_TILE = 64
# Tiles with fewer columns than this are for short columns and few rows.
SMALL_COLUMNS, LONG_COLUMN = 32, 1024
# The least rows of a half of an interleaved program.
HALF_ROWS = 64


def little_padding(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """MCFuser's rule 3 for rows and columns, except that the padding of tiles of 64 is always allowed: for some
    lengths, only tiles that are too small otherwise would keep the rule.  A single tile counts as the whole
    dimension."""
    for n, nest in enumerate(nests):
        tiles = nest.tiles(candidate.sizes, n)
        for loop in (nest.row, nest.column):
            extent = nest.extent(loop)
            if loop is None or pads_little(extent, tiles[loop]):
                continue
            if -extent % tiles[loop] > -extent % USUAL_TILE:
                return f"tiles of {tiles[loop]} pad {loop}, which has {extent}, too much"
    return None


def shared_memory(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """MCFuser's rule 4, with the estimate for the kernels that we emit, and so without its slack of 1.2."""
    limit = target.shared_memory
    for n, nest in enumerate(nests):
        taken = nest.shared_bytes(candidate, n)
        if taken > limit:
            return f"about {taken} bytes of shared memory; a block can have {limit}"
    return None


def registers(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """Accumulators fit in the registers, and every thread has a part of them."""
    for n, nest in enumerate(nests):
        held = nest.values_per_thread(candidate.sizes, n)
        many = nest.tiles(candidate.sizes, n).get(nest.row or "", GROUP_ROWS) >= GROUP_ROWS
        most = (HELD_A_THREAD if many else HELD_A_THREAD_FEW_ROWS) if nest.has_product else HELD_A_THREAD_PLAIN
        if not LEAST_A_THREAD <= held <= most:
            warps = entry(candidate.sizes.num_warps, n) or DEFAULT_WARPS
            return f"{held:.0f} numbers per thread with {warps} warps; expected {LEAST_A_THREAD} to {most}"
    return None


def stages(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """A loop with products has at most as many stages as iterations, and at least two if it has two; `num_stages`
    has no effect on a loop without products, nor `loop_stages` on one with products."""
    plain = any(not nest.has_product and _trips(nest, candidate, n) > 1 for n, nest in enumerate(nests))
    if candidate.code.loop_stages is not None and not plain:
        return "loop_stages without a loop that has no product"
    for n, nest in enumerate(nests):
        count = entry(candidate.sizes.num_stages, n)
        trips = _trips(nest, candidate, n) if nest.has_product else 1
        if count is not None and (count > trips or (count == 1 and trips > 1)):
            return f"{count} stages for a loop of {trips} iterations"
    return None


def splits(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """Every split has at least one tile, and the template that splits does split a nest."""
    if candidate.template != "split_k_update":
        return None
    counts = [splits_of(candidate, n) for n in range(len(nests))]
    if all(count == 1 for count in counts):
        return "no nest is split: that is rolling_update"
    for n, (nest, count) in enumerate(zip(nests, counts, strict=True)):
        if count is not None and count > (
            tiles := trip_counts(nest.chain, nest.tiles(candidate.sizes, n))[nest.column]
        ):
            return f"{count} splits of {tiles} tiles"
    return None


def useful_tiles(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """Tiles are small only if large ones would leave multiprocessors idle, and the other way round."""
    config = candidate.sizes
    for n, nest in enumerate(nests):
        tiles = nest.tiles(config, n)
        rows, columns = tiles.get(nest.row or "", 1), tiles[nest.column]
        if columns < SMALL_COLUMNS and nest.extent(nest.column) >= LONG_COLUMN:
            return f"tiles of {columns} columns, of {nest.extent(nest.column)}"
        if nest.row is None or nest.row_size is not None:
            continue
        blocks = blocks_of(nest, config, n) * (splits_of(candidate, n) or 1)
        least = GROUP_ROWS if nest.has_product else 1
        if rows < least and blocks >= 8 * target.sm_count:
            return f"tiles of {rows} rows in {blocks} blocks: larger ones fill the device too"
        if rows > least and 4 * blocks < target.sm_count:
            return f"tiles of {rows} rows in {blocks} blocks: most multiprocessors stay idle"
        if not nest.has_product or rows < GROUP_ROWS:
            continue
        if (entry(config.num_warps, n) or DEFAULT_WARPS) < GROUP_WARPS:
            return f"tiles of {rows} rows with fewer than {GROUP_WARPS} warps, which multiply together"
        if columns < SMALL_COLUMNS and nest.extent(nest.column) > columns:
            return f"tiles of {columns} columns for {rows} rows: loads would not hide behind products"
    return None


def own_descriptors(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """Kernels that overlap do not create their descriptors in the same memory."""
    if candidate.code.dependent_launch and candidate.code.loads == "descriptors":
        return "dependent_launch overwrites descriptors that are made in the kernel"
    return None


def one_launch(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """The last program combines what was stored through pointers, and there are splits to combine."""
    if candidate.code.combine == "kernel":
        return None
    if candidate.code.loads != "pointers" or candidate.code.dependent_launch:
        return "combine='last_program' is for loads through pointers, by a kernel that starts when the last one ended"
    if all((splits_of(candidate, n) or 1) == 1 for n in range(len(nests))):
        return "combine='last_program' without splits"
    return None


def rings(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """The rule of warp-specialised kernels: there is a loop, and its pipelined buffers fit in shared memory."""
    if _trips(nests[0], candidate, 0) < 2:
        return "one tile: there is no loop to specialise"
    limit = target.shared_memory
    config = replace(candidate.sizes, num_stages=candidate.code.ring_stages)
    taken = nests[0].shared_bytes(replace(candidate, config=config, code=CodeOptions(loads="descriptors")), 0)
    return f"about {taken} bytes of shared memory; a block can have {limit}" if taken > limit else None


def halves(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """Each half of an interleaved program has enough rows for a group of warps."""
    if candidate.code.interleave == 1:
        return None
    rows = [nest.tiles(candidate.sizes, n).get(nest.row or "", 1) for n, nest in enumerate(nests) if nest.has_product]
    if max(rows, default=1) < 2 * HALF_ROWS:
        return f"interleave=2 halves tiles of {max(rows, default=1)} rows; each half has at least {HALF_ROWS}"
    return None


def descriptors(nests: tuple[NestChain, ...], candidate: Choice, target: Target) -> str | None:
    """Descriptors are for the loads of products; without a product, the kernel is the same."""
    if candidate.code.loads != "pointers" and not any(nest.has_product for nest in nests):
        return "descriptors without a product"
    return None


RULES: tuple[Rule, ...] = (
    little_padding,
    splits,
    stages,
    halves,
    descriptors,
    own_descriptors,
    one_launch,
    useful_tiles,
    registers,
    shared_memory,
)


GLUON_RULES: tuple[Rule, ...] = (rings,)


def rules_of(candidate: Choice) -> tuple[Rule, ...]:
    """The rules for the candidate: registers and tiles of warp-specialised kernels are fixed."""
    return GLUON_RULES if candidate.code.code == "gluon" else RULES


def blocks_of(nest: NestChain, config: TileConfig, n: int = 0) -> int:
    """Thread blocks of a nest that rolls."""
    trips, tiling = trip_counts(nest.chain, nest.tiles(config, n)), nest.tiling(config, n)
    return prod(trips[loop] for loop in tiling.nested[: tiling.nested.index(nest.column)])


def _trips(nest: NestChain, candidate: Choice, n: int) -> int:
    """Iterations of the loop over the columns of one thread block."""
    tiles = trip_counts(nest.chain, nest.tiles(candidate.sizes, n))[nest.column]
    return -(-tiles // min(tiles, splits_of(candidate, n) or 1))
