"""MCFuser's pruning rules 1 to 4 (its section III-C), one function each.

A rule takes a space of (tiling expression, tile sizes) and returns a smaller one; a space that it does not change is
returned as it is.  `waterfall` counts what each of them leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod

from neptune_lab.autotune.expressions import Chain, Tiling, bind, tilings
from neptune_lab.autotune.shared_memory import tiles_in_shared_memory

# The matrix units' smallest tile: every tile size is a multiple of it.
UNIT = 16
# The largest share of padding of a dimension that is not a power of two.
PADDING = 0.05
# Estimates of shared memory may be too high by this factor (MCFuser, VI-E1).
SLACK = 1.2


@dataclass(frozen=True, slots=True)
class TilingSpace:
    """Every combination of an expression and a tile size per loop.

    Args:
        chain: what is tiled.
        expressions: the tiling expressions; after rule 1, sub-tiling expressions of one thread block.
        sizes: for each loop of the chain, in order, the tile sizes to choose from.
        fitting: the combinations of tile sizes that are left; None: all of them.
    """

    chain: Chain
    expressions: tuple[Tiling, ...]
    sizes: tuple[tuple[int, ...], ...]
    fitting: tuple[tuple[int, ...], ...] | None = None

    @property
    def tile_choices(self) -> int:
        """How many combinations of tile sizes there are."""
        return prod(map(len, self.sizes)) if self.fitting is None else len(self.fitting)

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return len(self.expressions) * self.tile_choices


def whole_space(chain: Chain) -> TilingSpace:
    """Every expression with every multiple of 16, up to the first that covers the dimension.

    >>> from neptune_lab.autotune.expressions import gemm_chain
    >>> whole_space(gemm_chain(1024, 1024, 512, 512)).count
    109051904
    """
    sizes = tuple(tuple(range(UNIT, extent + UNIT, UNIT)) for _, extent in chain.extents)
    return TilingSpace(chain, tilings(chain), sizes)


def without_duplicates(space: TilingSpace) -> TilingSpace:
    """Rule 1: expressions that leave one thread block the same sub-tiling expression are one candidate."""
    left = tuple(dict.fromkeys(bind(space.chain, tiling)[1] for tiling in space.expressions))
    return space if left == space.expressions else replace(space, expressions=left)


def without_partial_intermediates(space: TilingSpace) -> TilingSpace:
    """Rule 2: an intermediate tensor is complete before its next tile is begun.

    If a loop that it is folded over is outside a loop that indexes it (k outside n, for C[m, n]), the partial sums of
    all of its tiles have to be kept at once.
    """
    left = tuple(t for t in space.expressions if not keeps_partial_tiles(space.chain, t))
    return space if left == space.expressions else replace(space, expressions=left)


def keeps_partial_tiles(chain: Chain, tiling: Tiling) -> bool:
    """Whether rule 2 refuses the expression.

    >>> from neptune_lab.autotune.expressions import gemm_chain
    >>> [keeps_partial_tiles(gemm_chain(64, 64, 64, 64), Tiling(t)) for t in (("n", "k"), ("k", "n"))]
    [False, True]
    """
    there = set(tiling.loops)
    for computation in chain.computations:
        if computation.output.name not in chain.intermediates:
            continue
        for loop in computation.output.loops:
            if loop in there and set(tiling.around(loop)) & set(computation.reduced):
                return True
    return False


def without_padding(space: TilingSpace) -> TilingSpace:
    """Rule 3: a tile size divides a dimension that is a power of two; other dimensions are padded by less than 5%."""
    left = tuple(
        tuple(size for size in sizes if pads_little(extent, size))
        for (_, extent), sizes in zip(space.chain.extents, space.sizes, strict=True)
    )
    return space if left == space.sizes else replace(space, sizes=left)


def pads_little(extent: int, tile: int) -> bool:
    """Whether rule 3 keeps a tile size.

    >>> pads_little(1024, 128), pads_little(1024, 48), pads_little(80, 48), pads_little(1000, 16)
    (True, False, False, True)
    """
    padding = -extent % tile
    return padding == 0 if extent & (extent - 1) == 0 else padding / extent < PADDING


def within_shared_memory(space: TilingSpace, limit: int) -> TilingSpace:
    """Rule 4: tiles whose estimate (Eq. 1) is at most 1.2 times what a block may have.

    Args:
        space: after rule 3, since this one looks at each combination of tile sizes.
        limit: bytes of shared memory per block.
    """
    every = product(*space.sizes) if space.fitting is None else space.fitting
    loops = space.chain.loops
    left = tuple(
        tiles
        for tiles in every
        if tiles_in_shared_memory(space.chain, dict(zip(loops, tiles, strict=True))) <= SLACK * limit
    )
    return space if len(left) == space.tile_choices else replace(space, fitting=left)
