"""Sums along diagonals of what two nests compute for each pair, such as the gradient of `bias[h, q - kv + S]`.

    nest over keys                              => for the kernel of both nests
        for j: t[i, j] = x[i, j]                       for i: x[j, i] as before
    for i: d[p] = d[p] + t[i, i + c - p]                      parts[j // 16, …] = sums along diagonals of 16 rows
                                                   for w: d[p] = d[p] + parts[w, …]

So no value per pair goes through memory.  Sixteen rows are those of a warp, which sums a tile of theirs in registers:
a tile of 16 x 64 has 79 diagonals, and an element of `parts` for each.

Legality.  Formal statement: t is stored by one statement, from the tile x, and read by one kernel, whose result d[p] is
the sum of t[i, i + c - p] over all i for which that element exists: the kernel visits each of them once (tried for all
its programs), and where a condition leaves one out, it is outside of t.  Sums of the same numbers in another order
differ by rounding only.  The kernel of both nests visits each pair once, so each element of `parts` is stored, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.walk import evaluate, names_of_index, subexpressions
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel

# Rows of a warp, columns of a tile, and numbers of a tile's diagonals that a warp stores.
WARP_ROWS, TILE_COLUMNS, NUMBERS = 16, 64, 80
# Of these, those of diagonals that begin before the tile's first column.
BEFORE = 16
# Rows of `parts` that a program of the sum adds up at once.
TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Diagonals:
    """A tensor of pairs of which only sums along diagonals are read.

    Args:
        stored: the statement that stores it, in the loop of `maker`.
        maker: the name of that kernel.
        kernel: the one that sums diagonals.
        output: its store of the sums.
        outer: the indices of the tensor's other dimensions there.
        offset: c, where the sum at p is of the elements [i, i + c - p].
        tile: the tile of the transposed nest that has the same values; "" before it is known.
    """

    stored: ir.Store
    maker: str
    kernel: ir.Kernel
    output: ir.Store
    outer: tuple[ir.IndexExpr, ...]
    offset: int
    tile: str = ""

    @property
    def pairs(self) -> str:
        """The tensor."""
        return self.stored.target.tensor


def diagonals_of(program: ir.Program) -> Diagonals | None:
    """The tensor of pairs of a program of which only sums along diagonals are read; None if there is none."""
    if program.sizes:
        return None
    for tensor in program.tensors:
        if tensor.space != "global" or len(tensor.shape) < 2 or tensor.strides is not None:
            continue
        readers = [k for k in program.kernels if any(tensor.name in _reads(s) for s in _stores(k.body))]
        stored = [(k, loop, s) for k in program.kernels for loop, s in _in_loops(k) if s.target.tensor == tensor.name]
        if len(readers) != 1 or len(stored) != 1:
            continue
        (maker, loop, store), (reader,) = stored[0], readers
        chip = isinstance(store.value, ir.Access) and program.tensor(store.value.tensor).space == "chip"
        if loop is None or store.mask is not None or not chip or maker is reader:
            continue
        found = _sum_of(program, reader, tensor)
        if found is not None:
            return Diagonals(store, maker.name, reader, *found)
    return None


def without(program: ir.Program, found: Diagonals) -> ir.Program:
    """The program without the tensor, the statement that stores it and the kernel that sums it."""
    kernels = tuple(
        replace(kernel, body=_dropped(kernel.body, found.stored)) if kernel.name == found.maker else kernel
        for kernel in program.kernels
        if kernel is not found.kernel
    )
    tensors = tuple(tensor for tensor in program.tensors if tensor.name != found.pairs)
    return replace(program, kernels=kernels, tensors=tensors)


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
    rows = ir.Slice(_times(ir.Name("w0"), TOGETHER), TOGETHER, "w1")
    # e + keys, which is not negative.
    diagonal = _add(_int("mul", ir.Iota((rows, ir.NewAxis())), _literal(WARP_ROWS)), ir.Iota((ir.NewAxis(), places)))
    diagonal = _add(diagonal, _literal(keys - found.offset))
    tile, rest = (_int(op, diagonal, _literal(TILE_COLUMNS)) for op in ("floordiv", "floormod"))
    number = _add(_int("mul", tile, _literal(NUMBERS)), rest)
    first = BEFORE - keys // TILE_COLUMNS * NUMBERS
    outer = tuple(ir.Scalar(index) for index in found.outer)

    def read(more: int) -> ir.TileExpr:
        return ir.Gather(parts, (*outer, ir.Iota((rows, ir.NewAxis())), _add(number, _literal(first + more))))

    late = ir.Elementwise("ge", (rest, _literal(TILE_COLUMNS - BEFORE)), "bool")
    zero = ir.Literal(0.0, "float32")
    after = ir.Elementwise("where", (late, read(NUMBERS - TILE_COLUMNS), zero), "float32")
    whole = ir.Access(accumulated.name, (ir.Slice(ir.Int(0), TOGETHER, "t0"), ir.Slice(ir.Int(0), places.extent, "t1")))
    added = ir.Elementwise("add", (whole, ir.Elementwise("add", (read(0), after), "float32")), "float32")
    node, origin = found.output.node_id, found.output.origin
    # The least and the greatest d of the places, and so the rows of which a tile may have one of them.
    least = ir.Arith("-", places.start, ir.Int(found.offset))
    span = WARP_ROWS * TOGETHER
    low = ir.Arith("-", ir.Int(-BEFORE - places.extent), least)
    start = ir.Arith("//", ir.Arith("max", ir.Int(0), low), ir.Int(span))
    high = ir.Arith("+", ir.Arith("max", ir.Int(-span), ir.Arith("-", ir.Int(queries), least)), ir.Int(span))
    count = -(-keys // span)
    stop = ir.Arith("min", ir.Int(count), ir.Arith("//", high, ir.Int(span)))
    sums = ir.Reduce("sum", whole, 0)
    dtype = program.tensor(found.output.target.tensor).dtype
    body = (
        ir.Store(f"{node}.start", whole, zero, origin),
        ir.For(f"for:w0@{node}", "w0", start, stop, (ir.Store(f"{node}.parts", whole, added, origin),), origin),
        replace(found.output, value=sums if dtype == "float32" else ir.Cast(sums, dtype)),
    )
    return replace(found.kernel, body=body), accumulated


def _sum_of(
    program: ir.Program, kernel: ir.Kernel, tensor: ir.Tensor
) -> tuple[ir.Store, tuple[ir.IndexExpr, ...], int] | None:
    """The store of the sums of diagonals that a kernel computes of a tensor and nothing else; the indices of the other
    dimensions; and the offset.  None if it computes something else."""
    sums: dict[ir.Access, list[tuple[ir.For | None, ir.Gather]]] = {}
    output: ir.Store | None = None
    loops = [stmt for stmt in kernel.body if isinstance(stmt, ir.For)]
    if any(loop.within or loop.listed or any(isinstance(s, ir.For) for s in loop.body) for loop in loops):
        return None
    for loop, store in _in_loops(kernel):
        if store.mask is not None or output is not None:
            return None
        added = _added(program, store, sums, tensor, loop)
        if added is None:
            return None
        if program.tensor(store.target.tensor).space == "chip":
            sums[store.target] = added
        else:
            output, of_output = store, added
    if output is None or not of_output:
        return None
    last = output.target.index[-1]
    forms = {_form(gather, loop, last) for loop, gather in of_output}
    if len(forms) != 1 or (form := next(iter(forms))) is None:
        return None
    outer, offset = form
    grid = {axis.var for axis in kernel.grid}
    if any(names_of_index(index) - grid for index in outer) or not isinstance(last, ir.Slice):
        return None
    return (output, outer, offset) if _visits_all(program, kernel, output, of_output, tensor, offset) else None


def _added(
    program: ir.Program,
    store: ir.Store,
    sums: dict[ir.Access, list[tuple[ir.For | None, ir.Gather]]],
    tensor: ir.Tensor,
    loop: ir.For | None,
) -> list[tuple[ir.For | None, ir.Gather]] | None:
    """The reads of which a tile, as stored, is the sum; None if it is something else."""

    def of(expr: ir.TileExpr) -> list[tuple[ir.For | None, ir.Gather]] | None:
        match expr:
            case ir.Literal(value=0) if loop is None:
                return []
            case ir.Cast(arg=arg, dtype=dtype) if dtype == "float32" or program.tensor(store.target.tensor).space != (
                "chip"
            ):
                return of(arg)
            case ir.Access() if expr in sums and (loop is None or expr == store.target):
                return sums[expr]
            case ir.Reduce(op="sum", arg=arg, dim=0) if loop is None:
                return of(arg)
            case ir.Elementwise(op="add", args=args, dtype="float32"):
                terms = [of(arg) for arg in args]
                return None if None in terms else [one for term in terms for one in term or ()]
            case ir.Elementwise("where", (condition, kept, ir.Literal(value=0))) if (reads := of(kept)) is not None:
                inside = all(_holds_inside(condition, read, tensor) for _, read in reads)
                return reads if inside and not isinstance(kept, ir.Access) else None
            case ir.Gather(tensor=name) if name == tensor.name:
                return [(loop, expr)]
            case _:
                return None

    found = of(store.value)
    inside = loop is not None and program.tensor(store.target.tensor).space == "chip"
    accumulates = isinstance(store.value, ir.Elementwise) and store.target in store.value.args
    return found if loop is None or (inside and accumulates) else None


def _holds_inside(condition: ir.TileExpr, read: ir.Gather, tensor: ir.Tensor) -> bool:
    """Whether a condition is true wherever what is read exists."""
    match condition:
        case ir.Elementwise(op="and", args=args):
            return all(_holds_inside(arg, read, tensor) for arg in args)
        case ir.Elementwise("ge", (index, ir.Literal(value=0))) | ir.Elementwise("le", (ir.Literal(value=0), index)):
            return index == read.indices[-1]
        case ir.Elementwise("lt", (index, ir.Literal(value=end))):
            return index == read.indices[-1] and end == tensor.shape[-1]
        case _:
            return False


def _form(read: ir.Gather, loop: ir.For | None, places: ir.Index) -> tuple[tuple[ir.IndexExpr, ...], int] | None:
    """The outer indices and c of a read of [i, i + c - p], where i runs over rows and p over `places`."""
    match read.indices:
        case (
            *outer,
            ir.Iota(index=(ir.Slice() as row, ir.NewAxis())),
            ir.Elementwise("sub", (ir.Iota(index=(ir.Slice() as moved, ir.NewAxis())), ir.Iota(index=place)), "int32"),
        ) if place[:1] == (ir.NewAxis(),) and isinstance(places, ir.Slice) and isinstance(place[1], ir.Slice):
            shift = affine(ir.Arith("-", moved.start, row.start))
            own = {loop.var} if loop is not None else set[str]()
            alike = (place[1].start, place[1].extent, row.extent) == (places.start, places.extent, moved.extent)
            if not alike or shift.terms or not names_of_index(row.start) <= own:
                return None
            same = [_same_for_all(index) for index in outer]
            scalars = tuple(index for index in same if index is not None)
            return (scalars, shift.constant) if len(scalars) == len(outer) else None
        case _:
            return None


def _same_for_all(index: ir.TileExpr) -> ir.IndexExpr | None:
    """An index that is the same for a whole tile; None if it is not."""
    match index:
        case ir.Scalar(value=value):
            return value
        case ir.Literal(value=int(value), dtype="int32"):
            return ir.Int(value)
        case _:
            return None


def _visits_all(
    program: ir.Program,
    kernel: ir.Kernel,
    output: ir.Store,
    reads: list[tuple[ir.For | None, ir.Gather]],
    tensor: ir.Tensor,
    offset: int,
) -> bool:
    """Whether the programs read each element of a diagonal of `output` once, for all places."""
    queries, keys = tensor.shape[-2:]
    (*_, places) = output.target.index
    assert isinstance(places, ir.Slice)
    names = names_of_index(places.start)
    axes = [axis for axis in kernel.grid if axis.var in names]
    if len(names) != 1 or len(axes) != 1 or any(axis.size is not None for axis in kernel.grid):
        return False
    (axis,) = axes
    length, covered = program.tensor(output.target.tensor).shape[-1], set[int]()
    for number in range(axis.extent):
        env = {axis.var: number}
        start = evaluate(places.start, env)
        covered |= {*range(start, start + places.extent)}
        seen: list[int] = []
        for loop, read in reads:
            row = next(i for i in read.indices[-2].index if isinstance(i, ir.Slice))  # type: ignore[union-attr]
            steps = [{}] if loop is None else [{loop.var: n} for n in _steps(loop, env)]
            seen += [i for step in steps for i in _rows(row, env | step)]
        end = min(start + places.extent, length)
        needed = range(max(0, start - offset), min(queries, keys + end - 1 - offset))
        if len({*seen}) != len(seen) or not {*needed} <= {*seen}:
            return False
    return covered >= {*range(length)}


def _steps(loop: ir.For, env: dict[str, int]) -> range:
    return range(evaluate(loop.start, env), evaluate(loop.stop, env))


def _rows(row: ir.Slice, env: dict[str, int]) -> range:
    start = evaluate(row.start, env)
    return range(start, start + row.extent)


def _in_loops(kernel: ir.Kernel) -> Iterator[tuple[ir.For | None, ir.Store]]:
    """The statements of a kernel and the loop around each; of nested loops, the statements have none."""
    for stmt in kernel.body:
        if isinstance(stmt, ir.Store):
            yield None, stmt
        else:
            yield from ((stmt, inner) for inner in _stores(stmt.body))


def _stores(body: tuple[ir.Stmt, ...]) -> Iterator[ir.Store]:
    for stmt in body:
        if isinstance(stmt, ir.Store):
            yield stmt
        else:
            yield from _stores(stmt.body)


def _reads(store: ir.Store) -> set[str]:
    """The tensors that a statement reads."""
    return {e.tensor for e in subexpressions(store.value) if isinstance(e, ir.Access | ir.Gather)}


def _dropped(body: tuple[ir.Stmt, ...], stored: ir.Store) -> tuple[ir.Stmt, ...]:
    return tuple(
        replace(stmt, body=_dropped(stmt.body, stored)) if isinstance(stmt, ir.For) else stmt
        for stmt in body
        if stmt is not stored
    )


def _literal(value: int) -> ir.TileExpr:
    return ir.Literal(value, "int32")


def _int(op: str, a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
    return ir.Elementwise(op, (a, b), "int32")


def _add(a: ir.TileExpr, b: ir.TileExpr) -> ir.TileExpr:
    return _int("add", a, b)


def _times(index: ir.IndexExpr, factor: int) -> ir.IndexExpr:
    return ir.Arith("*", index, ir.Int(factor))


__all__ = [
    "NUMBERS",
    "TILE_COLUMNS",
    "WARP_ROWS",
    "Diagonals",
    "diagonals_of",
    "parts_shape",
    "sum_of_parts",
    "without",
]
