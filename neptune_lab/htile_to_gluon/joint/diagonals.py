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
differ by rounding only.  The kernel of both nests visits each pair once but those that the mask hides, where x is 0, so
what it visits of `parts` is stored once, and the rest is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.walk import evaluate, names_of_index, read_tensors, stores


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
        samples: how many samples, the first dimension, are summed before; 0: none are.
        before: the kernel that does so, and the tensor of its sums.
        tile: the tile of the transposed nest that has the same values; "" before it is known.
        visited: the first of the tiles that a row block visits there, and the one after the last, by the number `row`
            of the row block; in all others, values are 0.
    """

    stored: ir.Store
    maker: str
    kernel: ir.Kernel
    output: ir.Store
    outer: tuple[ir.IndexExpr, ...]
    offset: int
    samples: int = 0
    before: tuple[str, ...] = ()
    tile: str = ""
    row: str = ""
    visited: tuple[ir.IndexExpr, ir.IndexExpr] = (ir.Int(0), ir.Int(0))

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
        stored = [(k, loop, s) for k in program.kernels for loop, s in _in_loops(k) if s.target.tensor == tensor.name]
        reader = _only_reader(program, tensor.name)
        if len(stored) != 1 or reader is None:
            continue
        ((maker, loop, store),) = stored
        chip = isinstance(store.value, ir.Access) and program.tensor(store.value.tensor).space == "chip"
        if loop is None or store.mask is not None or not chip or maker is reader:
            continue
        found = _sum_of(program, reader, tensor)
        if found is not None:
            return Diagonals(store, maker.name, reader, *found)
        if (summed := _summed_samples(program, reader, tensor)) is None:
            continue
        after = _only_reader(program, summed.name)
        found = None if after is None else _sum_of(program, after, summed)
        if after is not None and found is not None:
            return Diagonals(store, maker.name, after, *found, tensor.shape[0], (reader.name, summed.name))
    return None


def _only_reader(program: ir.Program, name: str) -> ir.Kernel | None:
    readers = [k for k in program.kernels if any(name in read_tensors(s) for s in stores(k.body))]
    return readers[0] if len(readers) == 1 else None


def _summed_samples(program: ir.Program, kernel: ir.Kernel, tensor: ir.Tensor) -> ir.Tensor | None:
    """The tensor of sums over the first dimension of another, if a kernel computes each of them once, in float32, and
    nothing else."""
    match kernel.body:
        case (ir.Store(target=target, value=ir.Reduce(op="sum", arg=arg, dim=0), mask=None),):
            read = arg.arg if isinstance(arg, ir.Cast) and arg.dtype == "float32" else arg
            summed = program.tensor(target.tensor)
        case _:
            return None
    if not isinstance(read, ir.Access) or read.tensor != tensor.name or summed.dtype != "float32":
        return None
    samples, *rest = read.index
    whole = isinstance(samples, ir.Slice) and (samples.start, samples.extent) == (ir.Int(0), tensor.shape[0])
    if not whole or tuple(rest) != target.index or summed.shape != tensor.shape[1:] or summed.space != "global":
        return None
    axes = {axis.var: axis.extent for axis in kernel.grid if axis.size is None}
    named = [names_of_index(index) for index in target.index if not isinstance(index, ir.NewAxis)]
    each = len(named) == len(summed.shape) and sum(map(len, named)) == len({name for names in named for name in names})
    return summed if each and all(map(partial(_covers, axes), target.index, summed.shape)) else None


def _covers(axes: dict[str, int], index: ir.Index, extent: int) -> bool:
    """Whether an index takes each value of a dimension once, as an axis of the grid does."""
    match index:
        case ir.Slice(start=ir.Int(0), extent=width):
            return width == extent
        case ir.Slice(start=ir.Arith("*", ir.Name(name), ir.Int(step)), extent=width):
            return step == width and axes.get(name, 0) == -(-extent // width)
        case ir.Name(name):
            return axes.get(name, 0) == extent
        case _:
            return extent == 1 and index == ir.Int(0)


def without(program: ir.Program, found: Diagonals) -> ir.Program:
    """The program without the tensor, the statement that stores it and the kernels that sum it."""
    kernels = tuple(
        replace(kernel, body=_dropped(kernel.body, found.stored)) if kernel.name == found.maker else kernel
        for kernel in program.kernels
        if kernel is not found.kernel and kernel.name not in found.before
    )
    tensors = tuple(tensor for tensor in program.tensors if tensor.name not in (found.pairs, *found.before[1:]))
    return replace(program, kernels=kernels, tensors=tensors)


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
        added = _summed_reads(program, store, sums, tensor, loop)
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


def _summed_reads(
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
            yield from ((stmt, inner) for inner in stores(stmt.body))


def _dropped(body: tuple[ir.Stmt, ...], stored: ir.Store) -> tuple[ir.Stmt, ...]:
    return tuple(
        replace(stmt, body=_dropped(stmt.body, stored)) if isinstance(stmt, ir.For) else stmt
        for stmt in body
        if stmt is not stored
    )


__all__ = ["Diagonals", "diagonals_of", "without"]
