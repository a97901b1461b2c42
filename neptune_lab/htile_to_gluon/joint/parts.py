"""Sums along the diagonals of tiles, as the kernel of two nests stores them, and the kernel that adds them up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from neptune_lab.htile import nodes as ir
from neptune_lab.htile_to_gluon.joint.diagonals import Diagonals
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel

# Rows of a warp, columns of a tile, and numbers of a tile's diagonals that a warp stores.
WARP_ROWS, TILE_COLUMNS, NUMBERS = 16, 64, 80
# Of these, those of diagonals that begin before the tile's first column.
BEFORE = 16
# Rows of `parts` that a program of the sum adds up at once.
TOGETHER = 16
# Rows of a row block of keys.
ROW_BLOCK = 128
_OF_TILES = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "floormod", "min": "min", "max": "max"}


def parts_shape(pairs: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `parts` for a tensor of pairs (…, queries, keys).

    Raises:
        UnsupportedKernel: its last dimensions are not whole tiles.
    """
    *outer, queries, keys = pairs
    if queries % TILE_COLUMNS or keys % (2 * TILE_COLUMNS):
        raise UnsupportedKernel(f"pairs of {queries} queries and {keys} keys are not whole tiles")
    return (*outer, keys // WARP_ROWS, queries // TILE_COLUMNS * NUMBERS)


def sum_of_parts(program: ir.Program, found: Diagonals, pairs: ir.Tensor, parts: str) -> tuple[ir.Kernel, ir.Tensor]:
    """The kernel that adds up `parts` in place of the one that sums diagonals, and its tile.

    The diagonal i - j = d of the rows 16 w to 16 w + 15 of keys is e = d + 16 w of these rows.  Of e = 64 t + r with
    0 <= r < 64, the tile t has the number 16 + r, and the tile t + 1 the number r - 48 if that is not negative.
    """
    queries, keys = pairs.shape[-2:]
    (*_, places) = found.output.target.index
    assert isinstance(places, ir.Slice)
    accumulated = ir.Tensor(f"{parts}_tile", (TOGETHER, places.extent), "float32", "chip")
    rows = ir.Iota((ir.Slice(_times(ir.Name("w0"), TOGETHER), TOGETHER, "w1"), ir.NewAxis()))
    # e + keys, which is not negative.
    diagonal = _add(_int("mul", rows, _literal(WARP_ROWS)), ir.Iota((ir.NewAxis(), places)))
    diagonal = _add(diagonal, _literal(keys - found.offset))
    tile, rest = (_int(op, diagonal, _literal(TILE_COLUMNS)) for op in ("floordiv", "floormod"))
    number = _add(_int("mul", tile, _literal(NUMBERS)), rest)
    first = BEFORE - keys // TILE_COLUMNS * NUMBERS
    sample = (ir.Scalar(ir.Name("sample")),) if found.samples else ()
    outer = (*sample, *(ir.Scalar(index) for index in found.outer))
    row_block = _int("floordiv", rows, _literal(ROW_BLOCK // WARP_ROWS))
    low, high = (_of_rows(bound, found.row, row_block) for bound in found.visited)
    zero = ir.Literal(0.0, "float32")

    def read(more: int) -> ir.TileExpr:
        """What the tile t + `more` has."""
        at = _add(number, _literal(first + more * (NUMBERS - TILE_COLUMNS)))
        conditions: list[ir.TileExpr] = []
        if found.visited != (ir.Int(0), ir.Int(queries // TILE_COLUMNS)):
            this = _add(tile, _literal(more - keys // TILE_COLUMNS))
            conditions += [_condition("ge", this, low), _condition("lt", this, high)]
        if more:
            conditions.append(_condition("ge", rest, _literal(TILE_COLUMNS - BEFORE)))
        value: ir.TileExpr = ir.Gather(parts, (*outer, rows, at))
        if conditions:
            kept = reduce(partial(_condition, "and"), conditions)
            value = ir.Elementwise("where", (kept, value, zero), "float32")
        return value

    whole = ir.Access(accumulated.name, (ir.Slice(ir.Int(0), TOGETHER, "t0"), ir.Slice(ir.Int(0), places.extent, "t1")))
    added = ir.Elementwise("add", (whole, ir.Elementwise("add", (read(0), read(1)), "float32")), "float32")
    node, origin = found.output.node_id, found.output.origin
    # The least and the greatest d of the places, and so the rows of which a tile may have one of them.
    least = ir.Arith("-", places.start, ir.Int(found.offset))
    span = WARP_ROWS * TOGETHER
    before = ir.Arith("-", ir.Int(-BEFORE - places.extent), least)
    start = ir.Arith("//", ir.Arith("max", ir.Int(0), before), ir.Int(span))
    after = ir.Arith("+", ir.Arith("max", ir.Int(-span), ir.Arith("-", ir.Int(queries), least)), ir.Int(span))
    stop = ir.Arith("min", ir.Int(-(-keys // span)), ir.Arith("//", after, ir.Int(span)))
    sums = ir.Reduce("sum", whole, 0)
    dtype = program.tensor(found.output.target.tensor).dtype
    loop = ir.For(f"for:w0@{node}", "w0", start, stop, (ir.Store(f"{node}.parts", whole, added, origin),), origin)
    if found.samples:
        loop = ir.For(f"for:sample@{node}", "sample", ir.Int(0), ir.Int(found.samples), (loop,), origin)
    body = (
        ir.Store(f"{node}.start", whole, zero, origin),
        loop,
        replace(found.output, value=sums if dtype == "float32" else ir.Cast(sums, dtype)),
    )
    return replace(found.kernel, body=body), accumulated


def _of_rows(index: ir.IndexExpr, name: str, value: ir.TileExpr) -> ir.TileExpr:
    """An index, of which `name` is a value for each row, as a tile.

    Raises:
        UnsupportedKernel: it has an operation that tiles have not.
    """
    match index:
        case ir.Int(value=number):
            return _literal(number)
        case ir.Name(name=found) if found == name:
            return value
        case ir.Arith(op=op, a=a, b=b) if op in _OF_TILES:
            return _int(_OF_TILES[op], _of_rows(a, name, value), _of_rows(b, name, value))
        case _:
            raise UnsupportedKernel(f"the bounds of a loop depend on more than {name}")


def _literal(value: int) -> ir.TileExpr:
    return ir.Literal(value, "int32")


def _condition(op: str, a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
    return ir.Elementwise(op, (a, b), "bool")


def _int(op: str, a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
    return ir.Elementwise(op, (a, b), "int32")


def _add(a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
    return _int("add", a, b)


def _times(index: ir.IndexExpr, factor: int) -> ir.IndexExpr:
    return ir.Arith("*", index, ir.Int(factor))


__all__ = ["NUMBERS", "TILE_COLUMNS", "WARP_ROWS", "parts_shape", "sum_of_parts"]
