"""Checks that two nests have the form of which the joint kernel is written."""

from __future__ import annotations

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile_to_gluon.structure import Structure, UnsupportedKernel
from neptune_lab.strict.dtypes import HALVES

CONSUMERS = 2
KEYS = 128  # rows of a program, 64 of each consumer
WIDTHS = (64, 128)  # of the heads


def check_form(program: ir.Program, kernel: ir.Kernel, mine: Structure, theirs: Structure) -> None:
    """Raises UnsupportedKernel unless the nests have the products, sums, tiles and dtypes that the joint kernel has.

    Args:
        kernel: the nest over queries, of the structure `mine`.
        theirs: the structure of the nest over keys.
    """
    counts = [(len(s.first.leading), len(s.first.trailing)) for s in (mine, theirs)]
    if counts != [(2, 2), (2, 1)] or mine.eights or theirs.eights or mine.promoted or theirs.promoted:
        raise UnsupportedKernel(f"{kernel.name} has other products than two of scores and two sums")
    if mine.rows != KEYS:
        raise UnsupportedKernel(f"{kernel.name} has {mine.rows} rows per program; expected {KEYS}", help="block_q=128")
    if any(part.after for s in (mine, theirs) for part in s.parts):
        raise UnsupportedKernel(f"{kernel.name} computes after its sums")
    if len(theirs.after) != 1 or theirs.after[0].mask is not None:
        raise UnsupportedKernel("the nest over keys stores more than one output")
    if not _sums_begin_at_zero(mine):
        raise UnsupportedKernel(f"{kernel.name} has sums that do not begin at 0, or are scaled")
    if not _sums_begin_at_zero(theirs):
        raise UnsupportedKernel("the sum of the nest over keys does not begin at 0, or is scaled")
    _check_tiles(program, kernel, mine, theirs)


def _sums_begin_at_zero(structure: Structure) -> bool:
    """Whether products are added to tiles that begin at 0, as they are."""
    zero = {s.target.tensor for s in structure.before if isinstance(s.value, ir.Literal) and s.value.value == 0}
    return all(p.target in zero and isinstance(p.acc, ir.Access) for p in structure.first.trailing)


def _check_tiles(program: ir.Program, kernel: ir.Kernel, mine: Structure, theirs: Structure) -> None:
    """Raises UnsupportedKernel unless the tiles have the shapes and dtypes of the joint kernel's."""
    widths = {shape_of(p.store.target, program)[1] for p in (*mine.first.trailing, *theirs.first.trailing)}
    columns = {shape_of(p.store.target, program)[1] for p in mine.first.leading}
    if len(widths) != 1 or not widths <= {*WIDTHS} or columns not in ([{64}] if widths == {128} else [{64}, {128}]):
        raise UnsupportedKernel(
            f"{kernel.name} has heads of {sorted(widths)} columns and tiles of {sorted(columns)} queries; expected "
            "heads of 128 and 64 queries, or heads of 64 and 64 or 128 queries"
        )
    loaded = [p.b for p in (*mine.first.leading, *mine.first.trailing)]
    if {dtype_of(b, program) for b in loaded} - {*HALVES}:
        raise UnsupportedKernel(f"{kernel.name} multiplies other dtypes than float16 and bfloat16")
    if len({b.tensor for b in loaded}) != 2:
        raise UnsupportedKernel(f"{kernel.name} loads other tiles than queries and their cotangents")


__all__ = ["CONSUMERS", "KEYS", "WIDTHS", "check_form"]
