"""What a kernel of two nests has in shared memory, and the order of its row work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import reads, rewrite_store, same_index, tile_dims
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.joint.match import Joint
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer, left_access, tile_bytes
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import canonicalize
from neptune_lab.htile_to_triton.context import HostDescriptor
from neptune_lab.htile_to_triton.scope import UniqueNames

# Tiles of float32 of the size of a score that late row work may read, beside the product that it waits for.
MOST_READ = 1


@dataclass(frozen=True, slots=True)
class Held:
    """A tile of all keys of a program, which stays in shared memory.

    Args:
        buffer, ready: names of the tile and of its barrier; `own`: of a consumer's rows of it.
    """

    access: ir.Access
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    ready: str
    own: str


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector beside the queries of a tile, which is copied with it.

    Args:
        tensor: where it comes from, contiguous, seen as one vector; `outer`: the indices of its other dimensions.
        tile: the on-chip tile that stands for it in the row work.
        descriptor: of the tensor.
        ring, name: names of its ring buffer and of its variable.
        early: whether early row work reads it.
    """

    tensor: ir.Tensor
    outer: tuple[ir.IndexExpr, ...]
    tile: str
    descriptor: HostDescriptor
    ring: str
    name: str
    early: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel of two nests.

    Args:
        joint: the nests; `structure`: of the one that stays, whose row work reads vectors as on-chip tiles.
        held: the left operands of its products of scores.
        rings: of the tiles of queries, by product of scores.
        queries: how many there are in a tile.
        vectors: copied with the first ring's tiles.
        total: the sum of the other nest, a tensor in global memory that begins at 0, and its descriptor.
        share: columns of it that a consumer adds, or with 128 queries its width: a consumer then adds 64 rows.
        turns, turned: names of the two buffers of tiles that both consumers read, and of their barriers.
        stage: name of the buffer from which a consumer adds to the total.
    """

    joint: Joint
    structure: Structure
    held: tuple[Held, ...]
    rings: tuple[RingBuffer, ...]
    queries: int
    vectors: tuple[Vector, ...]
    total: HostDescriptor
    share: int
    turns: str
    turned: str
    stage: str

    @property
    def by_columns(self) -> bool:
        """Whether each consumer adds half of the total's columns, not half of the queries."""
        return self.queries == ROWS

    @property
    def size(self) -> int:
        """Bytes of shared memory, without barriers."""
        held = sum(tile_bytes(h.shape, h.dtype) for h in self.held)
        rings = 2 * sum(tile_bytes(r.shape, r.dtype) for r in self.rings)
        turns = 2 * tile_bytes((2 * ROWS, self.queries), self.held[0].dtype)
        vectors = 2 * len(self.vectors) * tile_bytes((self.queries,), "float32")
        return held + rings + turns + vectors + 2 * tile_bytes((ROWS, self.share), "float32")

    @property
    def parameters(self) -> list[str]:
        """The parameters of producer and consumers for it."""
        held = [name for h in self.held for name in (h.buffer, h.ready)]
        rings = [name for r in self.rings for name in (r.slots, r.full, r.empty)]
        return [*held, *rings, *(v.ring for v in self.vectors), self.turns, self.turned, self.stage]

    def ring_of(self, product: Product) -> RingBuffer:
        """The ring of a product's right operand."""
        return next(ring for ring in self.rings if ring.tensor == product.b.tensor)

    def held_by(self, product: Product) -> Held:
        """The left operand of a product of scores."""
        access = left_access(self.structure, product)
        return next(held for held in self.held if held.access == access)

    def trailing(self, this: LoopPart) -> tuple[Product, Product]:
        """The sums in registers: the one whose left operand needs only the first product, and the other."""
        first, second = this.trailing
        late = self.late(this)
        tensors = [{a.tensor for a in reads(p.store)} & late for p in (first, second)]
        if not tensors[0]:
            return first, second
        return second, first

    def middle(self, this: LoopPart) -> tuple[tuple[ir.Store, ...], tuple[ir.Store, ...]]:
        """The row work that needs only the first product of scores, and the rest."""
        late = self.late(this)
        return (
            tuple(s for s in this.middle if s.target.tensor not in late),
            tuple(s for s in this.middle if s.target.tensor in late),
        )

    def late(self, this: LoopPart) -> set[str]:
        """The tiles that depend on the second product of scores."""
        return late_tiles(this)

    def row_of_total(self, ctx: GluonContext, this: LoopPart) -> str:
        """The row of the total that belongs to a tile's first query."""
        return _flat(ctx, ctx.program.tensor(self.total.tensor).shape[:-1], (*self._outer(ctx), columns_of(this).start))

    def _outer(self, ctx: GluonContext) -> tuple[ir.IndexExpr, ...]:
        (*outer, _, _) = self.joint.output.target.index
        return tuple(index for index in outer if not isinstance(index, ir.Slice | ir.NewAxis))

    def place_of(self, ctx: GluonContext, vector: Vector, this: LoopPart) -> str:
        """Where a tile's vector begins in its tensor."""
        return _flat(ctx, vector.tensor.shape, (*vector.outer, columns_of(this).start))

    def buffer_for(self, shape: tuple[int, ...], dtype: str, taken: list[str]) -> Held | None:
        """A held tile whose memory an output may take once the loop has ended."""
        return next(
            (h for h in self.held if (ROWS, *h.shape[1:]) == shape and h.dtype == dtype and h.own not in taken), None
        )


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


def _flat(ctx: GluonContext, shape: tuple[int, ...], index: tuple[ir.IndexExpr, ...]) -> str:
    """The text of a position in a contiguous tensor."""
    total: ir.IndexExpr = ir.Int(0)
    for extent, at in zip(shape, index, strict=True):
        total = ir.Arith("+", ir.Arith("*", total, ir.Int(extent)), at)
    return ctx.index(canonicalize(total))


def plan_of(program: ir.Program, joint: Joint, total: str, names: UniqueNames) -> tuple[ir.Program, Plan]:
    """The plan of a kernel of two nests, and the program with an on-chip tile for each vector.

    Args:
        total: the tensor in global memory that the sum of the other nest is added to.
        names: of the module's functions and parameters.

    Raises:
        UnsupportedKernel: the row work reads more than shared memory or registers have space for.
    """
    structure = replace(joint.structure, downward=False)
    if joint.structure.downward:
        structure = replace(structure, parts=structure.parts[::-1])
    structure, first = _ordered(structure), _ordered(structure).parts[0]
    rings = tuple(_ring(program, product, names) for product in first.leading)
    held = tuple(_held(program, left_access(structure, p), names) for p in first.leading)
    queries = shape_of(first.leading[0].store.target, program)[1]
    width = shape_of(first.trailing[0].store.target, program)[1]
    program, structure, vectors = _with_vectors(program, structure, queries, names)
    for this in structure.parts:
        _check_row_work(program, this)
    share = width // 2 if queries == ROWS else width
    shape = program.tensor(total).shape
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    described = HostDescriptor(names.fresh(f"{total}_rows"), total, (rows, shape[-1]), shape[-1], (ROWS, share))
    made = (names.fresh(name) for name in ("turns", "turned", "stage"))
    return program, Plan(joint, structure, held, rings, queries, vectors, described, share, *made)


def _ordered(structure: Structure) -> Structure:
    """The structure with the product first of which a sum in registers depends alone."""

    def swapped(this: LoopPart) -> LoopPart:
        late = late_tiles(this)
        if any(not late & {a.tensor for a in reads(p.store)} for p in this.trailing):
            return this
        other = replace(this, leading=this.leading[::-1])
        late = late_tiles(other)
        if any(not late & {a.tensor for a in reads(p.store)} for p in this.trailing):
            return other
        raise UnsupportedKernel("both sums in registers depend on both products of scores")

    return replace(structure, parts=tuple(map(swapped, structure.parts)), first=swapped(structure.first))


def _held(program: ir.Program, access: ir.Access, names: UniqueNames) -> Held:
    made = (names.fresh(f"{access.tensor}_{what}") for what in ("held", "ready", "own"))
    return Held(access, shape_of(access, program), dtype_of(access, program), *made)


def _ring(program: ir.Program, product: Product, names: UniqueNames) -> RingBuffer:
    made = (names.fresh(f"{product.b.tensor}_{what}") for what in ("ring", "full", "empty", "slot", "phase"))
    shape, dtype = shape_of(product.b, program), dtype_of(product.b, program)
    return RingBuffer(product.b.tensor, shape, dtype, *made, of_matrix=False, in_halves=False)


def _with_vectors(
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
                    elements = 1
                    for extent in tensor.shape:
                        elements *= extent
                    rows = HostDescriptor(
                        names.fresh(f"{tensor.name}_rows"), tensor.name, (1, elements), 1, (1, queries), is_vector=True
                    )
                    made = (names.fresh(f"{tensor.name}_{what}") for what in ("tile", "ring", "row"))
                    tile, ring, name = made
                    vectors[key] = Vector(tensor, found, tile, rows, ring, name, early)
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
    if tensor.space == "chip" or tensor.dtype != "float32" or tensor.strides is not None:
        return None
    *outer, last = (i for i in expr.index if not isinstance(i, ir.NewAxis))
    beside = isinstance(last, ir.Slice) and same_index(ir.Slice(last.start, last.extent, columns.axis), columns)
    if not beside or any(isinstance(i, ir.Slice) for i in outer) or tensor.shape[-1] % columns.extent:
        return None
    if tile_dims(expr.index)[:1] != (ir.NewAxis(),):
        return None
    return tuple(i for i in outer if not isinstance(i, ir.Slice | ir.NewAxis))


def _check_row_work(program: ir.Program, this: LoopPart) -> None:
    """Checks that row work reads no more tiles than there are registers for."""
    late = late_tiles(this)
    kept: set[str] = set()
    for stmt in this.middle:
        for access in reads(stmt):
            tensor = program.tensor(access.tensor)
            shape = shape_of(access, program)
            if tensor.space != "chip" and len(shape) == 2 and shape[1] > 1:
                raise UnsupportedKernel(f"{stmt.target.tensor} reads {access.tensor} from global memory in each step")
            if stmt.target.tensor in late and access.tensor not in late and len(shape) == 2 and shape[0] > 1:
                kept.add(access.tensor)
    if len(kept) > MOST_READ:
        raise UnsupportedKernel(f"{', '.join(sorted(kept))} would be in registers at the same time")
