"""Limits that masks set to the positions of columns by values of inputs, such as `kv <= q + offset[b]`, and the tiles
of a loop that such limits leave.

A conjunct of a mask is read as `column op value`, with a value of each row.  Over the rows of a tile, the columns for
which it may hold lie on one side of the least or of the largest value, and are an interval for `==`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import Affine, affine, expression
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.tile_bounds import tile_interval
from neptune_lab.htile.walk import names_of_access, names_of_index, subexpressions, tile_dims
from neptune_lab.power_of_two import power_of_two
from neptune_lab.scalar_ops import EXCHANGED

# No sum of as many terms as this leaves int32 if each term is within `SMALL` of 0.
MOST_TERMS = 8
SMALL = 1 << 27
_INTEGERS = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Limit:
    """`column op value`, which is a conjunct of a mask wherever all of `small` are within `SMALL` of 0.

    Args:
        op: "lt", "le", "gt", "ge" or "eq".
        columns: the positions.
        value: of each row, an int32 or int64; the same in all iterations.
        small: terms that were moved from one side of the comparison to the other.  If one of them is large, a sum of
            int32 may have left its range, so that nothing is known of the conjunct.
    """

    op: str
    columns: ir.Slice
    value: ir.TileExpr
    small: tuple[ir.TileExpr, ...] = ()


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of the statements around a mask.

    Args:
        program: that has the mask.
        env: the values of the variables around.
        var: the variable that the columns move with.
        fixed: the tensors that hold the same values whenever the mask is computed: inputs that the kernel does not
            store to, and tiles that are stored once, whole, before it.
        loaded: of these tiles, those that are tiles of inputs, by name.
        padded: the rows of a tile of which only the first is stored, while no rows are combined; 0: no such tiles.
    """

    program: ir.Program
    env: Env
    var: str
    fixed: Collection[str]
    loaded: Mapping[str, ir.Access] = field(default_factory=dict)
    padded: int = 0


def limit_of(conjunct: ir.TileExpr, around: Around, *, by_data: bool = True) -> Limit | None:
    """A conjunct of a mask as a limit of columns by values of inputs; None if it is none.

    Args:
        conjunct: of a mask.
        around: what is known of its place.
        by_data: False: also by positions and numbers alone, whose tiles are known without a look at values.

    Formal statement: `iota op value` is the conjunct itself.  In others the columns are a term of a sum: with all terms
    within `SMALL` of 0 and at most `MOST_TERMS` of them, no partial sum wraps, so terms may change sides.
    """
    if not isinstance(conjunct, ir.Elementwise) or conjunct.op not in EXCHANGED:
        return None
    dtypes = {dtype_of(arg, around.program) for arg in conjunct.args}
    columns = list(dict.fromkeys(_columns(conjunct, around.var)))
    if len(columns) != 1 or len(dtypes) != 1 or not dtypes <= set(_INTEGERS):
        return None
    (column,), (dtype,) = columns, dtypes
    left = list(_terms(conjunct.args[0], 1, around.var, dtype))
    every = left + list(_terms(conjunct.args[1], -1, around.var, dtype))
    moving = [(sign, term) for sign, term in every if any(_columns(term, around.var))]
    if len(moving) != 1 or _uncast(moving[0][1]) != column or len(every) > MOST_TERMS:
        return None
    sign, own = moving[0]
    rest = [(s, term) for s, term in every if term is not own]
    if not all(_is_of_rows(term, column, around) for _, term in rest) or (
        by_data and not any(map(reads_inputs, (term for _, term in rest)))
    ):
        return None
    # sign * column + rest op 0, so that column op' -sign * rest.
    op = conjunct.op if sign > 0 else EXCHANGED[conjunct.op]
    (slice_,) = (part for part in column.index if isinstance(part, ir.Slice))
    first, second = conjunct.args
    if _uncast(first) == column or _uncast(second) == column:
        whole = second if _uncast(first) == column else first
        return Limit(op, slice_, whole)
    if dtype == "int32" and not _is_small(own, around):
        return None
    value: ir.TileExpr = ir.Literal(0, dtype)
    for s, term in rest:
        value = ir.Elementwise("add" if s * sign < 0 else "sub", (value, term), dtype)
    return Limit(op, slice_, value, tuple(term for _, term in rest if not _is_small(term, around)))


def reads_inputs(expr: ir.TileExpr) -> bool:
    """Whether an expression has elements of tensors."""
    return any(isinstance(e, ir.Access | ir.Gather) for e in subexpressions(expr))


def _terms(expr: ir.TileExpr, sign: int, var: str, dtype: str) -> Iterator[tuple[int, ir.TileExpr]]:
    """The terms of a sum, with their signs; a sum of rows alone is one term."""
    match expr:
        case ir.Elementwise(op="add" | "sub" as op, args=(a, b), dtype=own) if own == dtype and any(
            _columns(expr, var)
        ):
            yield from _terms(a, sign, var, dtype)
            yield from _terms(b, sign if op == "add" else -sign, var, dtype)
        case ir.Elementwise(op="neg", args=(a,), dtype=own) if own == dtype and any(_columns(expr, var)):
            yield from _terms(a, -sign, var, dtype)
        case _:
            yield sign, expr


def _columns(expr: ir.TileExpr, var: str) -> Iterator[ir.Iota]:
    for part in subexpressions(expr):
        if isinstance(part, ir.Iota) and any(var in names_of_index(i) for i in part.index):
            yield part


def _uncast(expr: ir.TileExpr) -> ir.TileExpr:
    """What is converted to more bits, or to as many."""
    while isinstance(expr, ir.Cast) and expr.dtype in _INTEGERS:
        expr = expr.arg
    return expr


def _is_small(term: ir.TileExpr, around: Around) -> bool:
    term = _uncast(term)
    if isinstance(term, ir.Literal) and isinstance(term.value, int):
        return abs(term.value) <= SMALL
    found = tile_interval(term, around.env)
    return found is not None and found.lo >= -SMALL and found.hi <= SMALL


def _is_of_rows(value: ir.TileExpr, column: ir.Iota, around: Around) -> bool:
    """Whether a value is the same for all columns, and in all iterations."""
    shape = shape_of(value, around.program)
    dims = tile_dims(column.index)
    after = len(dims) - next(n for n, dim in enumerate(dims) if isinstance(dim, ir.Slice))
    if len(shape) >= after and shape[len(shape) - after] != 1:
        return False
    for part in subexpressions(value):
        match part:
            case ir.Access(tensor=name):
                if name not in around.fixed or around.var in names_of_access(part):
                    return False
            case ir.Gather(tensor=name):
                if name not in around.fixed:
                    return False
            case ir.Iota(index=index):
                if any(around.var in names_of_index(i) for i in index):
                    return False
            case ir.Scalar(value=scalar):
                if around.var in names_of_index(scalar):
                    return False
            case ir.Dot():
                return False
            case _:
                pass
    return True


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a loop, of which each starts the same number of columns after the one before.

    Args:
        start: the first column of tile 0.
        step: columns from the start of one to that of the next; more than a tile has if tiles are dealt to splits.
        count: how many there are.
    """

    start: ir.IndexExpr
    step: int
    count: int


def tiles_of(columns: ir.Slice, var: str, count: int) -> Tiles | None:
    """The tiles that `columns` are in the iterations of `var`, if those of each follow those of the one before; None
    else."""
    form, name = affine(columns.start), ir.Name(var)
    rest = expression(form.without(name))
    step = form.coefficient(name)
    return None if step < columns.extent or var in names_of_index(rest) else Tiles(rest, step, count)


# -- tiles that limits leave ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ends:
    """The tiles from `first` to before `last`, int32 numbers; None: no limit on this side.

    Args:
        first, last: the ends.
        left_out: two numbers as well: the tiles between these ends from the first of them to before the second are not
            among those that are left.
    """

    first: ir.TileExpr | None
    last: ir.TileExpr | None
    left_out: tuple[ir.TileExpr, ir.TileExpr] | None = None


def ends_of(limit: Limit, tiles: Tiles, program: ir.Program) -> Ends:
    """The tiles in which `limit` may hold for some row.

    Formal statement, with w columns per tile that start every s columns, a the first column and z that of the tile
    after the last one, and r the least or the largest value of the rows: c >= r holds for a column of tiles from
    (clamp(r, a, z) - a + s - w) // s on, and c <= r in tiles before (clamp(r, a - 1, z - 1) - a + s) // s.  The clamped
    number is computed in the value's dtype, fits int32, and makes no tile visible that r hides.
    """
    step, whole = tiles.step, affine(tiles.start)
    dtype = dtype_of(limit.value, program)
    begin, end = _scalar(whole, dtype), _scalar(whole + step * tiles.count, dtype)
    before, last = _scalar(whole - 1, dtype), _scalar(whole + (step * tiles.count - 1), dtype)
    between = step - limit.columns.extent  # columns of other splits

    def number(op: str, low: ir.TileExpr, high: ir.TileExpr, more: int) -> ir.TileExpr:
        value = limit.value
        for _ in shape_of(value, program):
            value = ir.Reduce("min" if op == "min" else "max", value, 0)
        inside = ir.Elementwise("min", (ir.Elementwise("max", (value, low), dtype), high), dtype)
        past = ir.Elementwise("sub", (inside, _scalar(whole - more, dtype)), dtype)
        found = past if dtype == "int32" else ir.Cast(past, "int32")
        if power_of_two(step) == step:  # (no negative number, which a division would have to ask)
            return ir.Elementwise("shr", (found, ir.Literal(step.bit_length() - 1, "int32")), "int32")
        return ir.Elementwise("floordiv", (found, ir.Literal(step, "int32")), "int32")

    first = last_ = None
    if limit.op in ("ge", "eq"):
        first = number("min", begin, end, between)
    elif limit.op == "gt":
        first = number("min", before, last, 1 + between)
    if limit.op in ("le", "eq"):
        last_ = number("max", before, last, step)
    elif limit.op == "lt":
        last_ = number("max", begin, end, step - 1)
    return Ends(_if_small(limit, first, 0, program), _if_small(limit, last_, tiles.count, program))


def _if_small(limit: Limit, number: ir.TileExpr | None, otherwise: int, program: ir.Program) -> ir.TileExpr | None:
    """The number if the limit's moved terms are all small; else the one that hides no tile."""
    if number is None or not limit.small:
        return number
    fits: ir.TileExpr | None = None
    for term in limit.small:
        dtype = dtype_of(term, program)
        least = most = term
        for _ in shape_of(term, program):
            least, most = ir.Reduce("min", least, 0), ir.Reduce("max", most, 0)
        for op, value, edge in (("ge", least, -SMALL), ("le", most, SMALL)):
            one = ir.Elementwise(op, (value, ir.Literal(edge, dtype)), "bool")
            fits = one if fits is None else ir.Elementwise("and", (fits, one), "bool")
    assert fits is not None
    return ir.Elementwise("where", (fits, number, ir.Literal(otherwise, "int32")), "int32")


def _scalar(form: Affine, dtype: str) -> ir.TileExpr:
    index = expression(form)
    if isinstance(index, ir.Int):
        return ir.Literal(index.value, dtype)
    return ir.Scalar(index) if dtype == "int32" else ir.Cast(ir.Scalar(index), dtype)


__all__ = ["Around", "Ends", "Limit", "Tiles", "ends_of", "limit_of", "reads_inputs", "tiles_of"]
