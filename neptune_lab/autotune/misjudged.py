"""Which choices of the tuner's space the calibrated model misjudges, by measurements; they are not ranked."""

from __future__ import annotations

from math import prod

from neptune_lab.autotune.cost_model import Machine
from neptune_lab.autotune.nests import DEFAULT_WARPS, Nests, entry, splits_of
from neptune_lab.autotune.shared_memory import GROUP_ROWS, GROUP_WARPS
from neptune_lab.choice import Choice
from neptune_lab.htile.aligned import AT_ONCE


def is_misjudged(nests: Nests, candidate: Choice, machine: Machine) -> bool:
    """Whether a choice takes surely longer than the model says."""
    return _is_crowded(nests, candidate) or _splits_unaligned_rows(nests, candidate, machine)


def _is_crowded(nests: Nests, candidate: Choice) -> bool:
    """Whether a group of four warps has more rows than two products at a time: hardly another program then fits beside
    it, and the warps wait for each other's products, which the model does not count.  On an H200, 4 x 32 heads of 135
    queries took 19.4 us in tiles of 256 rows and 7.7 in tiles of 64, 8 x 16 of 196 took 31.7 and 13.9."""
    sizes = candidate.sizes
    for n, nest in enumerate(nests.of(candidate)):
        warps = entry(sizes.num_warps, n) or DEFAULT_WARPS
        if nest.has_product and (entry(sizes.block_q, n) or 1) * GROUP_WARPS > 2 * GROUP_ROWS * warps:
            return True
    return False


def _splits_unaligned_rows(nests: Nests, candidate: Choice, machine: Machine) -> bool:
    """Whether rows that begin anywhere between multiples of 16 bytes are split, though a row per multiprocessor is work
    for at least half of them: the parts are read element by element, which the model does not count; whole rows are
    not (`htile_passes.align_row_loops`).  On an H200, the loss of 125 rows of 124,823 float16 took 20.4 us in 4 splits
    and 11.5 in whole rows."""
    for n, nest in enumerate(nests.of(candidate)):
        columns = nest.extent(nest.column)
        sizes = [t.itemsize for t in nest.chain.tensors if nest.column in t.loops]
        rows = nest.extent(nest.row) * prod(nest.extent(loop) for loop in nest.batch)
        if nest.has_product or splits_of(candidate, n) == 1 or 2 * rows < machine.multiprocessors:
            continue
        if any(columns * size % AT_ONCE for size in sizes):
            return True
    return False


__all__ = ["is_misjudged"]
