"""Flags of columns, such as those of a mask of keys, and the tiles of a loop from the first to the last with a flag.

The mask of a static cache is a tensor of booleans, one for each key.  What a program's tiles have of it is tiny beside
the keys and the values, so it is read before them.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile.walk import names_of_index
from neptune_lab.htile_passes.position_limits import Around, Ends, Tiles, tiles_of

# The most flags that a program reads, and the dtypes of theirs.
MOST_FLAGS = 4096
# The dimension of tiles.
TILES = "tiles"
_FLAGS = ("bool", "uint8", "int8", "int32")


@dataclass(frozen=True, slots=True)
class Flag:
    """`access != 0`, a conjunct of a mask: an element of an input for each column, the same for all rows."""

    access: ir.Access
    columns: ir.Slice


def flag_of(conjunct: ir.TileExpr, around: Around) -> Flag | None:
    """A conjunct of a mask as a flag of its columns; None if it is none."""
    match conjunct:
        case ir.Elementwise(op="ne", args=(ir.Access() as access, ir.Literal(value=0))):
            pass
        case ir.Access() as access:
            pass
        case _:
            return None
    if access.tensor not in around.fixed or around.program.tensor(access.tensor).space == "chip":
        return None
    slices = [index for index in access.index if isinstance(index, ir.Slice)]
    others = [index for index in access.index if not isinstance(index, ir.Slice)]
    if len(slices) != 1 or not isinstance(access.index[-1], ir.Slice):
        return None
    if any(around.var in names_of_index(index) for index in others) or dtype_of(access, around.program) not in _FLAGS:
        return None
    return Flag(access, slices[0])


def is_few_flags(conjunct: ir.TileExpr, around: Around, count: int) -> bool:
    """Whether a conjunct is a flag of the columns of a loop of `count` tiles, few enough that a program reads them."""
    flag = flag_of(conjunct, around)
    tiles = None if flag is None else tiles_of(flag.columns, around.var, count)
    return flag is not None and tiles is not None and flagged_tiles(flag, tiles, around.program) is not None


def flagged_tiles(flag: Flag, tiles: Tiles, program: ir.Program) -> ir.TileExpr | None:
    """1 for each tile with a flag and 0 for each other one, int32[tiles]; None if there are too many flags to read.

    A column past the end of the tensor reads as 0, which is no flag.
    """
    width = flag.columns.extent
    if not 1 < tiles.count <= MOST_FLAGS // width:
        return None
    number = ir.Iota((ir.Slice(ir.Int(0), tiles.count, TILES), ir.NewAxis()))
    column: ir.TileExpr = ir.Iota((ir.NewAxis(), ir.Slice(tiles.start, width, flag.columns.axis)))
    own = ir.Elementwise("mul", (number, ir.Literal(tiles.step, "int32")), "int32")
    column = ir.Elementwise("add", (own, column), "int32")
    indices = tuple(
        column if isinstance(index, ir.Slice) else ir.Scalar(index)
        for index in flag.access.index
        if not isinstance(index, ir.NewAxis)
    )
    dtype = program.tensor(flag.access.tensor).dtype
    read: ir.TileExpr = ir.Gather(flag.access.tensor, indices)
    shown = read if dtype == "bool" else ir.Elementwise("ne", (read, ir.Literal(0, dtype)), "bool")
    one, none = ir.Literal(1, "int32"), ir.Literal(0, "int32")
    return ir.Reduce("max", ir.Elementwise("where", (shown, one, none), "int32"), 1)


def ends_of_flags(flagged: ir.Access, count: int) -> Ends:
    """The tiles from the first to the last one that is 1 in `flagged`, a tile int32[count].

    Formal statement: a tile before the first one or after the last one has no flag, so that the conjunct is false in
    all of it.
    """
    number = ir.Iota((ir.Slice(ir.Int(0), count, TILES),))
    shown = ir.Elementwise("ne", (flagged, ir.Literal(0, "int32")), "bool")
    after = ir.Elementwise("add", (number, ir.Literal(1, "int32")), "int32")
    first = ir.Elementwise("where", (shown, number, ir.Literal(count, "int32")), "int32")
    last = ir.Elementwise("where", (shown, after, ir.Literal(0, "int32")), "int32")
    return Ends(ir.Reduce("min", first, 0), ir.Reduce("max", last, 0))


__all__ = ["TILES", "Flag", "ends_of_flags", "flag_of", "flagged_tiles", "is_few_flags"]
