"""Tiles of pairs in global memory that row work reads, such as those of `bias[h, q, kv]`: the copy engine loads them.

One nest reads such a tile as it is in memory, and the other transposes it.  For the matcher, a transposed tile is one
of a tensor whose last two dimensions are exchanged (`exchanged`), which exists nowhere; loads from shared memory
exchange them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import expressions, names_of_index, rewrite_store, same_index, tile_dims
from neptune_lab.htile_to_gluon.joint.vectors import columns_of
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer, ring_names
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure, UnsupportedKernel
from neptune_lab.htile_to_triton.descriptors import leaves_matrix
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.strict.dtypes import HALVES


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Tensors with exchanged dimensions, and the names of those that exist."""

    tensors: tuple[ir.Tensor, ...] = ()
    originals: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """Of each, the name of the tensor that exists."""
        return {tensor.name: name for tensor, name in zip(self.tensors, self.originals, strict=True)}


def exchanged(program: ir.Program, kernel: ir.Kernel) -> tuple[ir.Program, ir.Kernel, Exchanged]:
    """The program and a kernel of it with tiles of exchanged tensors where it transposes tiles in its row work.

    Formal statement: transpose(t[…, a:a+m, b:b+n]) is u[…, b:b+n, a:a+m], where u[…, j, i] = t[…, i, j].
    """
    names = UniqueNames([tensor.name for tensor in program.tensors])
    made: dict[str, ir.Tensor] = {}

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        match expr:
            case ir.Permute(arg=ir.Access(tensor=name, index=index), order=(1, 0)):
                slices = [isinstance(i, ir.Slice) for i in index]
                tensor = program.tensor(name)
                if tensor.space == "chip" or slices != [False] * (len(index) - 2) + [True, True]:
                    return expr
                if name not in made:
                    *outer, rows, columns = tensor.shape
                    shape = (*outer, columns, rows)
                    made[name] = ir.Tensor(names.fresh(f"{name}_exchanged"), shape, tensor.dtype, "input")
                return ir.Access(made[name].name, (*index[:-2], index[-1], index[-2]))
            case _:
                return expr

    def changed(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(
            replace(stmt, body=changed(stmt.body))
            if isinstance(stmt, ir.For)
            else stmt
            if isinstance(stmt.value, ir.Dot)
            else rewrite_store(stmt, visit)
            for stmt in body
        )

    kernel = replace(kernel, body=changed(kernel.body))
    program = replace(program, tensors=(*program.tensors, *made.values()))
    return program, kernel, Exchanged(tuple(made.values()), tuple(made))


@dataclass(frozen=True, slots=True)
class Square:
    """A tile of pairs that row work reads.

    Args:
        tensor: where it comes from; `outer`: the indices of its other dimensions.
        is_exchanged: whether the tensor's rows are the queries, which are the columns of row work.
        tile: the on-chip tile that stands for it in the row work.
        ring: where the copy engine puts it.
    """

    tensor: ir.Tensor
    outer: tuple[ir.IndexExpr, ...]
    is_exchanged: bool
    tile: str
    ring: RingBuffer

    def access(self, this: LoopPart) -> ir.Access:
        """The tile in global memory."""
        rows, columns = _rows(this), columns_of(this)
        return ir.Access(self.tensor.name, (*self.outer, *((columns, rows) if self.is_exchanged else (rows, columns))))

    def part(self, consumer: str) -> str:
        """A consumer's rows of the tile, in shared memory."""
        part = f".slice({consumer} * {ROWS}, {ROWS}, dim={int(self.is_exchanged)})"
        return self.ring.tile + part + (".permute((1, 0))" if self.is_exchanged else "")


def _rows(this: LoopPart) -> ir.Slice:
    return next(i for i in tile_dims(this.leading[0].store.target.index) if isinstance(i, ir.Slice))


def _outer_of_square(
    program: ir.Program, expr: ir.TileExpr, own: tuple[ir.Slice, ir.Slice]
) -> tuple[ir.IndexExpr, ...] | None:
    """The other indices of a tile in global memory of the pairs that row work computes; None if it is none."""
    if not isinstance(expr, ir.Access) or program.tensor(expr.tensor).space == "chip":
        return None
    slices = [i for i in expr.index if isinstance(i, ir.Slice)]
    if len(slices) != 2 or not all(map(same_index, slices, own)):
        return None
    return tuple(i for i in expr.index if not isinstance(i, ir.Slice | ir.NewAxis))


def shared_first(program: ir.Program, structure: Structure, kernel: ir.Kernel, row: str) -> ir.Kernel:
    """The kernel with the axes of its grid first along which programs read the same tiles of pairs, after `row`.

    So these programs, samples that share a bias, run at the same time, and the cache holds what they share.
    """
    names: set[str] = set()
    for this in structure.parts:
        own = _rows(this), columns_of(this)
        every = [
            outer for stmt in this.middle for e in expressions(stmt) if (outer := _outer_of_square(program, e, own))
        ]
        names |= {name for outer in every for index in outer for name in names_of_index(index)}
    if not names:
        return kernel
    order = sorted(kernel.grid, key=lambda axis: (axis.var != row, axis.var in names))
    return replace(kernel, grid=tuple(order))


def with_squares(
    program: ir.Program, structure: Structure, of: Exchanged, names: UniqueNames
) -> tuple[ir.Program, Structure, tuple[Square, ...]]:
    """The structure with on-chip tiles in place of tiles of pairs in global memory.

    Raises:
        UnsupportedKernel: such a tile is of another dtype than a float of 16 or 32 bits.
    """
    squares: dict[tuple[str, tuple[ir.IndexExpr, ...]], Square] = {}
    parts: list[LoopPart] = []
    for this in structure.parts:
        own = _rows(this), columns_of(this)

        def visit(expr: ir.TileExpr, own: tuple[ir.Slice, ir.Slice] = own) -> ir.TileExpr:
            outer, (rows, columns) = _outer_of_square(program, expr, own), own
            if outer is None or not isinstance(expr, ir.Access):
                return expr
            key = (expr.tensor, outer)
            if key not in squares:
                is_exchanged = expr.tensor in of.names
                tensor = program.tensor(of.names.get(expr.tensor, expr.tensor))
                if tensor.dtype not in (*HALVES, "float32"):
                    raise UnsupportedKernel(f"it reads {tensor.dtype} of {tensor.name} for each pair; expected a float")
                extents = (rows.extent, columns.extent)
                shape = extents[::-1] if is_exchanged else extents
                ring = RingBuffer(
                    tensor.name,
                    shape,
                    tensor.dtype,
                    *ring_names(tensor.name, names),
                    of_matrix=leaves_matrix(tensor, shape),
                    in_halves=False,
                )
                squares[key] = Square(tensor, outer, is_exchanged, names.fresh(f"{tensor.name}_tile"), ring)
            return ir.Access(squares[key].tile, (rows, columns))

        parts.append(replace(this, middle=tuple(rewrite_store(stmt, visit) for stmt in this.middle)))
    tiles = tuple(
        ir.Tensor(s.tile, s.ring.shape[::-1] if s.is_exchanged else s.ring.shape, s.tensor.dtype, "chip")
        for s in squares.values()
    )
    program = replace(program, tensors=(*program.tensors, *tiles))
    return program, replace(structure, parts=tuple(parts), first=parts[0]), tuple(squares.values())


__all__ = ["Exchanged", "Square", "exchanged", "shared_first", "with_squares"]
