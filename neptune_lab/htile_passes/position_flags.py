"""Flags of columns, such as those of a mask of keys, and the tiles of a loop from the first to the last with a flag.

The mask of a static cache is a tensor of booleans, one for each key.  What a program's tiles have of it is tiny beside
the keys and the values, so it is read before them.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile.walk import names_of_access, names_of_index
from neptune_lab.htile_passes.position_limits import Around, Ends, Tiles, tiles_of

# The most flags that a program reads, and the dtypes of theirs.
MOST_FLAGS = 4096
# The dimension of tiles.
TILES = "tiles"
_FLAGS = ("bool", "uint8", "int8", "int32")
_EQUAL = ("int8", "int16", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Flag:
    """`access != 0` or `access == value`, a conjunct of a mask: an element of an input for each column, the same for
    all rows.

    Args:
        value: an element of an input, such as the document of the only row; None: what is not 0 is a flag.
    """

    access: ir.Access
    columns: ir.Slice
    value: ir.Access | None = None

    def __str__(self) -> str:
        """What an element of a tile that is left has."""
        what = "not 0" if self.value is None else f"an element of {self.value.tensor}"
        return f"an element of {self.access.tensor} is {what}"


def flag_of(conjunct: ir.TileExpr, around: Around) -> Flag | None:
    """A conjunct of a mask as a flag of its columns; None if it is none."""
    match conjunct:
        case ir.Elementwise(op="ne", args=(ir.Access() as access, ir.Literal(value=0))):
            return _flag(access, None, around)
        case ir.Elementwise(op="eq", args=(ir.Access() as a, ir.Access() as b)):
            for access, other in ((a, b), (b, a)):
                value = _of_the_row(other, around)
                if value is not None and (found := _flag(access, value, around)) is not None:
                    return found
            return None
        case ir.Access() as access:
            return _flag(access, None, around)
        case _:
            return None


def _of_the_row(access: ir.Access, around: Around) -> ir.Access | None:
    """The element of an input that a tile of rows has in the only row that is stored; None if it has several."""
    access = around.loaded.get(access.tensor, access)
    if access.tensor not in around.fixed or around.program.tensor(access.tensor).space == "chip":
        return None
    if dtype_of(access, around.program) not in _EQUAL or around.var in names_of_access(access):
        return None
    index: list[ir.Index] = []
    for part in access.index:
        if isinstance(part, ir.Slice):
            if part.extent not in (1, around.padded):
                return None
            index.append(part.start)
        elif not isinstance(part, ir.NewAxis):
            index.append(part)
    return ir.Access(access.tensor, tuple(index))


def _flag(access: ir.Access, value: ir.Access | None, around: Around) -> Flag | None:
    if access.tensor not in around.fixed or around.program.tensor(access.tensor).space == "chip":
        return None
    slices = [index for index in access.index if isinstance(index, ir.Slice)]
    others = [index for index in access.index if not isinstance(index, ir.Slice)]
    if len(slices) != 1 or not isinstance(access.index[-1], ir.Slice):
        return None
    dtypes = _FLAGS if value is None else _EQUAL
    if any(around.var in names_of_index(index) for index in others) or dtype_of(access, around.program) not in dtypes:
        return None
    return None if around.var not in names_of_index(slices[0]) else Flag(access, slices[0], value)


def is_few_flags(conjunct: ir.TileExpr, around: Around, count: int) -> bool:
    """Whether a conjunct is a flag of the columns of a loop of `count` tiles, few enough that a program reads them."""
    flag = flag_of(conjunct, around)
    tiles = None if flag is None else tiles_of(flag.columns, around.var, count)
    return flag is not None and tiles is not None and flagged_tiles(flag, tiles, around.program) is not None


def flagged_tiles(flag: Flag, tiles: Tiles, program: ir.Program) -> ir.TileExpr | None:
    """1 for each tile with a flag and 0 for each other one, int32[tiles]; None if there are too many flags to read.

    A column past the end of the tensor reads as 0, which is no flag, or one too many if that is the row's value.
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
    if flag.value is not None:
        shown: ir.TileExpr = ir.Elementwise("eq", (read, flag.value), "bool")
    else:
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
