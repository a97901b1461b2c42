"""Dimension order reconciliation: squeeze, permute, unsqueeze (paper, section 5.1)."""

from __future__ import annotations

from neptune_lab.htile.nodes import Access, IndexExpr, Iota, NewAxis, Permute, Slice, TileExpr


def reconcile_dimension_order(tensor: str, region: tuple[IndexExpr | Slice, ...], axes: tuple[str, ...]) -> TileExpr:
    """The tile access with its dimensions in the order of `axes`.

    Indices without an inner loop are scalars in `region`, so they are squeezed already.  The other dimensions are
    permuted into the order of `axes`, and a missing axis becomes a `NewAxis`:

        x[i0, 0:N] under (i1, j1), with 0:N over i1   =>  x[i0, 0:N, NewAxis]
        y[bj:ej, bi:ei] over (j1, i1)                 =>  permute(y[bj:ej, bi:ei], (1, 0))

    Args:
        tensor: its name.
        region: one index or slice per dimension.
        axes: the inner loops, in the order of the result's dimensions.
    """
    order = [s.axis for s in region if isinstance(s, Slice)]
    wanted = [a for a in axes if a in order]
    if not order:
        return Access(tensor, region)
    missing = [a for a in axes if a not in order]
    if order == wanted:
        index: list = []
        pending = list(axes)
        for part in region:
            if isinstance(part, Slice):
                while pending and pending[0] != part.axis:
                    pending.pop(0)
                    index.append(NewAxis())
                pending.pop(0)
            index.append(part)
        index += [NewAxis() for _ in pending]
        return Access(tensor, tuple(index))
    tile = Access(tensor, (*region, *(NewAxis() for _ in missing)))
    have = [*order, *missing]
    return Permute(tile, tuple(have.index(a) for a in axes))


def positions(start: IndexExpr, extent: int, axis: str, axes: tuple[str, ...]) -> Iota:
    """The values start, start + 1, … along `axis`, with extents of 1 along the others."""
    return Iota(tuple(Slice(start, extent, axis) if a == axis else NewAxis() for a in axes))
