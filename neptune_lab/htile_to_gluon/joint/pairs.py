"""The tensor of the cotangents of scores, which the kernel of two nests stores in place of the nest over keys.

    nest over keys                              => for the kernel of both nests
        for j: x[i, j] = …                             for i: x[j, i] = …
               t[i, j] = x[i, j]                              t[i, j] = transpose(x[j, i])
               y[i] = y[i] + x[i, j] @ k[j]                   total[i] += transpose(x[j, i]) @ k[j]

The kernel of both nests has x in shared memory, for the other consumer, from where the copy engine stores it.  If t is
of float32, x is rounded for the products only, and t has what is rounded, from shared memory of its own.

Legality.  Formal statement: each part of the nest over keys stores t once, unconditionally, for the pairs that it
visits, and its value is the tile x that is the left operand of the sum, or the tile of float32 of which x is a
rounding; nothing else stores t.  Both nests compute x from the same terms (match.py).  The kernel of both visits each
pair that the nest over keys visits, so whatever was stored is stored, with the same value.  What it visits besides was
never stored, so nobody reads it.

Under a mask, the nest over keys also visits pairs that the kernel of both leaves out, to store zeros.  Readers then see

    t[i, j]     =>      where(the mask shows (i, j), t[i, j], 0)

Formal statement: the conditions that are asked for here depend on positions only; where one is false, x is 0
(`masks.zero_unless`), and so it is for each pair that is left out.  So where all are true the pair is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile.walk import read_tensors, rewrite_store, same_index, stores, written_tensors
from neptune_lab.htile_to_gluon.joint.masks import as_tile
from neptune_lab.htile_to_gluon.joint.terms import Terms
from neptune_lab.htile_to_gluon.structure import LoopPart, UnsupportedKernel
from neptune_lab.strict.dtypes import HALVES


@dataclass(frozen=True, slots=True)
class Pairs:
    """A tensor of pairs that a nest over keys stores.

    Args:
        stored: the statements of the kernel `maker` that store it, and the loop around each; None: it is outside.
        output: a tensor of the same elements, in the same order, that is stored in its place; "": there is none.
        shown: conditions of positions (masks.py); where one is false, a pair is 0, and need not be stored.
        unrounded: the tile of float32 that is stored, of which the left operand is a rounding; "": that one is stored.
        summed: the dimension along which `output` is the sum of the tensor (pair_sums.py); None: it is none.
    """

    stored: tuple[tuple[ir.For | None, ir.Store], ...]
    maker: str
    output: str = ""
    shown: tuple[Any, ...] = ()
    unrounded: str = ""
    summed: int | None = None

    @property
    def statement(self) -> ir.Store:
        """The first of the statements."""
        return self.stored[0][1]

    @property
    def tensor(self) -> str:
        """The tensor."""
        return self.statement.target.tensor

    @property
    def stored_in(self) -> str:
        """The tensor that the kernel of both nests stores."""
        return self.output or self.tensor


def pairs_of(program: ir.Program) -> Pairs | None:
    """The tensor of pairs that a loop of a program stores; None if there is none."""
    if program.sizes:
        return None
    for kernel in program.kernels:
        found = [*_stores_of_pairs(program, kernel)]
        tensors = {store.target.tensor for _, store in found}
        everywhere = [s for k in program.kernels for s in stores(k.body) if s.target.tensor in tensors]
        if len(tensors) == 1 and len(everywhere) == len(found):
            return Pairs(tuple(found), kernel.name)
    return None


def _stores_of_pairs(program: ir.Program, kernel: ir.Kernel) -> Iterator[tuple[ir.For | None, ir.Store]]:
    """The statements of a kernel with a loop that store on-chip tiles of rows and columns, and the loop around each."""
    loops = [stmt for stmt in kernel.body if isinstance(stmt, ir.For)]
    of_loops = [(loop, stmt) for loop in loops for stmt in loop.body]
    for loop, store in (*of_loops, *((None, stmt) for stmt in kernel.body)) if loops else ():
        if not isinstance(store, ir.Store) or program.tensor(store.target.tensor).space == "chip":
            continue
        places = [isinstance(index, ir.Slice) for index in store.target.index]
        chip = isinstance(store.value, ir.Access) and program.tensor(store.value.tensor).space == "chip"
        if chip and store.mask is None and places == [False] * (len(places) - 2) + [True, True]:
            yield loop, store


def without_stores(program: ir.Program, found: Pairs) -> ir.Program:
    """The program without the statements that store the tensor."""

    def kept(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(
            replace(stmt, body=kept(stmt.body)) if isinstance(stmt, ir.For) else stmt
            for stmt in body
            if all(stmt is not stored for _, stored in found.stored)
        )

    return replace(
        program,
        kernels=tuple(replace(k, body=kept(k.body)) if k.name == found.maker else k for k in program.kernels),
    )


def after_pairs(program: ir.Program, found: Pairs) -> tuple[ir.Kernel, ...]:
    """The kernels that read the tensor, or what these compute from it, in their order."""
    made, late = {found.tensor}, list[ir.Kernel]()
    for kernel in program.kernels:
        if kernel.name != found.maker and any(made & read_tensors(s) for s in stores(kernel.body)):
            late.append(kernel)
            made |= written_tensors(kernel)
    return tuple(late)


def only_shown(program: ir.Program, kernel: ir.Kernel, found: Pairs) -> ir.Kernel:
    """A kernel that reads the tensor, with zeros for the pairs that the mask hides, which are not loaded."""

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        if not isinstance(expr, ir.Access) or expr.tensor != found.tensor:
            return expr
        *_, query, key = (n for n, at in enumerate(expr.index) if not _is_new(at))
        places = (_positions(expr.index, query), _positions(expr.index, key))
        conditions = [as_tile(condition, *places) for condition in found.shown]
        shown = reduce(lambda a, b: ir.Elementwise("and", (a, b), "bool"), conditions)
        indices = (_positions(expr.index, n) for n, at in enumerate(expr.index) if not _is_new(at))
        return ir.Elementwise("where", (shown, ir.Gather(expr.tensor, tuple(indices)), zero), dtype)

    def changed(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(
            replace(stmt, body=changed(stmt.body)) if isinstance(stmt, ir.For) else rewrite_store(stmt, visit)
            for stmt in body
        )

    dtype = program.tensor(found.tensor).dtype
    zero = ir.Literal(0.0, dtype)
    return replace(kernel, body=changed(kernel.body)) if found.shown else kernel


def _positions(index: tuple[ir.Index, ...], place: int) -> ir.TileExpr:
    """The positions at one place of an index, of the shape of what is read."""
    at = index[place]
    if not isinstance(at, ir.Slice):
        assert not isinstance(at, ir.NewAxis)
        return ir.Scalar(at)
    tile = (n for n, one in enumerate(index) if isinstance(one, ir.Slice | ir.NewAxis))
    return ir.Iota(tuple(at if n == place else ir.NewAxis() for n in tile))


def copied(program: ir.Program, found: Pairs) -> tuple[ir.Kernel, str] | None:
    """The kernel that only copies the tensor to another one, and the name of that; None if there is none.

    The gradient of a bias is a sum over samples, of which there may be one:

        s[h, i, j:j+n] = float32(t[0, h, i, j:j+n])
        d[h, i, j:j+n] = bfloat16(s[h, i, j:j+n])

    Formal statement: nothing else reads t.  Each element of d is one of t at the same indices, those of dimensions of
    one element left out; the other dimensions have the same sizes, so d has no fewer elements, and they are in the same
    order.  Both have one dtype, to and from which conversions to float32 are exact.
    """
    tensor = program.tensor(found.tensor)
    if found.shown:  # (what is hidden would not be copied)
        return None
    readers = [k for k in program.kernels if any(found.tensor in read_tensors(s) for s in stores(k.body))]
    if tensor.space != "global" or len(readers) != 1 or tensor.dtype not in (*HALVES, "float32"):
        return None
    (kernel,) = readers
    values: dict[ir.Access, tuple[ir.Index, ...] | None] = {}
    outputs: list[tuple[ir.Access, tuple[ir.Index, ...] | None]] = []
    for stmt in kernel.body:
        if not isinstance(stmt, ir.Store) or stmt.mask is not None:
            return None
        made = _index_of_copied(program, stmt.value, found.tensor, values)
        if program.tensor(stmt.target.tensor).space == "chip":
            values[stmt.target] = None if stmt.target in values else made
        else:
            outputs.append((stmt.target, made))
    if len(outputs) != 1:
        return None
    ((target, index),) = outputs
    if index is None:
        return None
    output = program.tensor(target.tensor)
    kept = tuple((i, extent) for i, extent in zip(index, tensor.shape, strict=True) if extent > 1)
    mine = tuple((i, extent) for i, extent in zip(target.index, output.shape, strict=True) if extent > 1)
    alike = (output.dtype, output.strides, output.sizes, output.steps) == (tensor.dtype, None, None, None)
    elsewhere = [k for k in program.kernels if k is not kernel and output.name in written_tensors(k)]
    return (kernel, output.name) if alike and kept == mine and not elsewhere else None


def _index_of_copied(
    program: ir.Program, expr: ir.TileExpr, name: str, values: dict[ir.Access, tuple[ir.Index, ...] | None]
) -> tuple[ir.Index, ...] | None:
    """The index at which a tile has the elements of a tensor, unchanged; None if it has other values."""
    match expr:
        case ir.Access(tensor=tensor, index=index) if tensor == name and not any(map(_is_new, index)):
            return index
        case ir.Access():
            return values.get(expr)
        case ir.Cast(arg=arg, dtype=dtype) if dtype in ("float32", program.tensor(name).dtype):
            return _index_of_copied(program, arg, name, values)
        case _:
            return None


def _is_new(index: ir.Index) -> bool:
    return isinstance(index, ir.NewAxis)


def check_pairs(
    program: ir.Program,
    found: Pairs,
    parts: list[tuple[LoopPart, Terms, ir.TileExpr]],
    outer: tuple[ir.IndexExpr, ...],
    shape: tuple[int, ...],
) -> None:
    """Checks that what a nest over keys stores is the left operand of its sum.

    Args:
        parts: the parts of the nest, the terms of their tiles, and their left operands.
        outer: the indices of the sum's other dimensions.
        shape: the dimensions of heads, and the numbers of queries and keys.

    Raises:
        UnsupportedKernel: it is something else, or not stored once by each part for the pairs that it visits.
    """
    tensor = program.tensor(found.tensor)
    left = [*found.stored]
    for part, terms, value in parts:
        mine = [(loop, stored) for loop, stored in left if _is_of(loop, part) and _is_at(stored, terms)]
        stored = mine[0][1] if len(mine) == 1 else None
        dtype = dtype_of(value, program)
        kept = None if stored is None else terms.of(stored.value)
        rounded = kept if tensor.dtype == dtype else ("cast", dtype, kept)
        if stored is None or rounded != terms.of(value) or tuple(stored.target.index[:-2]) != outer:
            raise UnsupportedKernel(f"{found.tensor} is not the left operand of the sum over keys")
        left.remove(mine[0])
        if tensor.strides is not None or tensor.dtype not in (dtype, "float32") or dtype not in HALVES:
            raise UnsupportedKernel(f"{found.tensor} is not contiguous, or has another dtype than what is stored in it")
    if left or tensor.shape != shape:
        raise UnsupportedKernel(f"{found.tensor} has other pairs than the sum over keys")


def before_rounding(program: ir.Program, stmt: ir.Store) -> str:
    """The tile of float32 that a statement rounds, or what it stores: values are rounded because they are stored, and
    the sum of what is not rounded is closer to the definition's."""
    match stmt.value:
        case ir.Cast(arg=ir.Access(tensor=name, index=index)) if index == stmt.target.index:
            tensor = program.tensor(name)
            return name if (tensor.space, tensor.dtype) == ("chip", "float32") else stmt.target.tensor
        case _:
            return stmt.target.tensor


def unrounded(program: ir.Program, parts: tuple[LoopPart, ...], value: str) -> str:
    """The tile of float32 that each part of a nest rounds to the tile `value`.

    Raises:
        UnsupportedKernel: there is none, or not one in all parts.
    """
    tiles = {before_rounding(program, s) for part in parts for s in part.middle if s.target.tensor == value}
    if len(tiles) != 1 or tiles == {value}:
        raise UnsupportedKernel(f"no tile has what {value} is before it is rounded")
    return tiles.pop()


def _is_of(loop: ir.For | None, part: LoopPart) -> bool:
    """Whether statements in a loop are of a part of a nest."""
    if loop is None or part.loop is None:
        return loop is part.loop
    return (loop.var, loop.start, loop.stop) == (part.loop.var, part.loop.start, part.loop.stop)


def _is_at(stored: ir.Store, terms: Terms) -> bool:
    """Whether a statement stores the pairs of a part where the numbers of their queries and keys say."""
    places = zip(stored.target.index[-2:], (terms.rows, terms.columns), strict=True)
    return all(isinstance(at, ir.Slice) and same_index(at, mine) for at, mine in places)


__all__ = [
    "Pairs",
    "after_pairs",
    "before_rounding",
    "check_pairs",
    "copied",
    "only_shown",
    "pairs_of",
    "unrounded",
    "without_stores",
]
