"""Vectors beside the queries of a tile, which come to shared memory with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import reads, rewrite_store, same_index, tile_dims
from neptune_lab.htile_to_gluon.structure import LoopPart, Structure
from neptune_lab.htile_to_triton.context import HostDescriptor
from neptune_lab.htile_to_triton.descriptors import ALIGNMENT, BYTES
from neptune_lab.htile_to_triton.scope import UniqueNames


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector beside the queries of a tile, which is copied with it.

    Args:
        tensor: where it comes from, contiguous, seen as one vector; `outer`: the indices of its other dimensions.
        tile: the on-chip tile that stands for it in the row work.
        descriptor: of the tensor; None: vectors do not begin at multiples of 16 bytes, as the copy engine needs, or
            need not at some size, so the producer loads them.
        ring, name: names of its ring buffer and of its variable.
        early: whether early row work reads it.
    """

    tensor: ir.Tensor
    outer: tuple[ir.IndexExpr, ...]
    tile: str
    descriptor: HostDescriptor | None
    ring: str
    name: str
    early: bool


def columns_of(this: LoopPart) -> ir.Slice:
    """The queries of a tile."""
    return next(i for i in tile_dims(this.leading[0].store.target.index)[1:] if isinstance(i, ir.Slice))


def late_tiles(this: LoopPart) -> set[str]:
    """The tiles of a part that depend on the second product of scores."""
    late = {this.leading[1].target}
    for stmt in this.middle:
        if late & {a.tensor for a in reads(stmt)}:
            late.add(stmt.target.tensor)
    return late


def with_vectors(
    program: ir.Program, structure: Structure, queries: int, names: UniqueNames
) -> tuple[ir.Program, Structure, tuple[Vector, ...]]:
    """The structure with on-chip tiles in place of vectors that lie beside the queries of a tile in global memory."""
    vectors: dict[tuple[str, tuple[ir.IndexExpr, ...]], Vector] = {}
    parts: list[LoopPart] = []
    for this in structure.parts:
        columns, late, moved = columns_of(this), late_tiles(this), []
        for stmt in this.middle:

            def visit(
                expr: ir.TileExpr, early: bool = stmt.target.tensor not in late, at: ir.Slice = columns
            ) -> ir.TileExpr:
                found = _outer_of(program, expr, at)
                if found is None:
                    return expr
                assert isinstance(expr, ir.Access)
                key = (expr.tensor, found)
                if key not in vectors:
                    tensor = program.tensor(expr.tensor)
                    elements = prod(tensor.shape)
                    name = names.fresh(f"{tensor.name}_rows")
                    rows = HostDescriptor(name, tensor.name, (1, elements), 1, (1, queries), is_vector=True)
                    aligned = tensor.sizes is None and tensor.shape[-1] * BYTES[tensor.dtype] % ALIGNMENT == 0
                    made = (names.fresh(f"{tensor.name}_{what}") for what in ("tile", "ring", "row"))
                    tile, ring, name = made
                    vectors[key] = Vector(tensor, found, tile, rows if aligned else None, ring, name, early)
                elif early and not vectors[key].early:
                    vectors[key] = replace(vectors[key], early=True)
                return ir.Access(vectors[key].tile, (ir.NewAxis(), at))

            moved.append(rewrite_store(stmt, visit))
        parts.append(replace(this, middle=tuple(moved)))
    tensors = tuple(ir.Tensor(v.tile, (queries,), "float32", "chip") for v in vectors.values())
    program = replace(program, tensors=(*program.tensors, *tensors))
    return program, replace(structure, parts=tuple(parts), first=parts[0]), tuple(vectors.values())


def _outer_of(program: ir.Program, expr: ir.TileExpr, columns: ir.Slice) -> tuple[ir.IndexExpr, ...] | None:
    """The other indices of a vector of float32 in global memory beside a tile's queries; None if it is none."""
    if not isinstance(expr, ir.Access):
        return None
    tensor = program.tensor(expr.tensor)
    if tensor.space == "chip" or tensor.dtype != "float32" or tensor.strides is not None or tensor.steps is not None:
        return None
    *outer, last = (i for i in expr.index if not isinstance(i, ir.NewAxis))
    beside = isinstance(last, ir.Slice) and same_index(ir.Slice(last.start, last.extent, columns.axis), columns)
    if not beside or any(isinstance(i, ir.Slice) for i in outer):
        return None
    if tile_dims(expr.index)[:1] != (ir.NewAxis(),):
        return None
    return tuple(i for i in outer if not isinstance(i, ir.Slice | ir.NewAxis))


__all__ = ["Vector", "columns_of", "late_tiles", "with_vectors"]
