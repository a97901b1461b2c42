"""What a kernel of two nests has in shared memory, and the order of its row work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.substitute import substitute_index
from neptune_lab.htile.walk import evaluate, names_of_index, reads, simplify, tile_dims
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.joint.buffers import Held, held_tile, ring_of, through
from neptune_lab.htile_to_gluon.joint.finish import Finish, head_of
from neptune_lab.htile_to_gluon.joint.form import CONSUMERS, KEYS
from neptune_lab.htile_to_gluon.joint.match import Joint
from neptune_lab.htile_to_gluon.joint.pairs import Pairs
from neptune_lab.htile_to_gluon.joint.parts import NUMBERS, TILE_COLUMNS, WARP_ROWS
from neptune_lab.htile_to_gluon.joint.row_work import check_row_work, ordered, with_factors_apart
from neptune_lab.htile_to_gluon.joint.squares import Square, with_squares
from neptune_lab.htile_to_gluon.joint.vectors import Vector, columns_of, late_tiles, with_vectors
from neptune_lab.htile_to_gluon.launch_helpers import EVEN, ORDERED_BYTES, ORDERED_CACHE, ORDERED_HEADS
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer, left_access, tile_bytes
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, Structure, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import canonicalize
from neptune_lab.htile_to_gluon.turns import usual_heads
from neptune_lab.htile_to_triton.context import ADD, MUL, HostDescriptor, sizes_of
from neptune_lab.htile_to_triton.descriptors import ALIGNMENT, BYTES
from neptune_lab.htile_to_triton.scope import UniqueNames


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel of two nests.

    Args:
        joint: the nests; `structure`: of the one that stays, whose row work reads vectors as on-chip tiles.
        held: the left operands of its products of scores.
        rings: of the tiles of queries, by product of scores.
        queries: how many there are in a tile.
        vectors: copied with the first ring's tiles, or if there are squares, those of early row work with these.
        squares: tiles of pairs that row work reads, and in how many slots; as many for each.
        total: the sum of the other nest, a tensor in global memory that begins at 0, and its descriptor.
        share: columns of it that a consumer adds, or with 128 queries its width: a consumer then adds 64 rows.
        turns, turned: names of the two buffers of tiles that both consumers read, and of their barriers.
        stage, staged, freed: names of the buffers from which adders add to the total what consumers give, and of the
            barriers by which a consumer says that it has, and an adder that it has read it.
        order: the tensor that says which row block added to a tile of the total last, for each consumer; None: programs
            add in any order.
        parts: the tensor of sums along diagonals (diagonals.py); None: there are none.
        pairs: the descriptor through which a consumer stores `joint.pairs`; None: there are none.
        apart: the name of the buffer from which they are stored if they are not what both consumers read; "": they are.
        direct: whether pairs of float32 are stored from registers, since shared memory has no room for them.
        pairs_staged, pairs_freed: if they are added to those of other samples, the names of the barriers by which a
            consumer says that it has stored them there, and an adder that it has read them; "": they are stored.
        finish: how the last row block stores the output; None: another kernel does.
        loaded: of that, the name of the barriers by which consumers see that the total is in their buffers.
    """

    joint: Joint
    structure: Structure
    held: tuple[Held, ...]
    rings: tuple[RingBuffer, ...]
    queries: int
    vectors: tuple[Vector, ...]
    squares: tuple[Square, ...]
    slots: int
    total: HostDescriptor
    share: int
    turns: str
    turned: str
    stage: str
    staged: str
    freed: str
    order: str | None
    parts: str | None = None
    pairs: HostDescriptor | None = None
    apart: str = ""
    direct: bool = False
    pairs_staged: str = ""
    pairs_freed: str = ""
    finish: Finish | None = None
    loaded: str = ""

    @property
    def by_columns(self) -> bool:
        """Whether each consumer adds half of the total's columns, not half of the queries."""
        return self.queries == ROWS

    @property
    def heads_of_tiles(self) -> bool:
        """Whether a program visits all heads of a group at a tile before the next tile, rather than all tiles of a head
        before the next head.

        A row block of few tiles would otherwise wait at the first tile of each head for the row block before it, which
        has more: then all that run take as long as the longest. So it is if they add in order and differ in length.

        Formal statement: for g: for i: body(g, i) is for i: for g: body(g, i), up to the order of the sums in
        registers, if no bound of one loop depends on the other's variable.
        """
        around = self.joint.around
        if around is None or self.order is None or not self.lengths_differ:
            return False
        loops = [part.loop for part in self.structure.parts if part.loop is not None]
        return not any(around.var in names_of_index(loop.start) | names_of_index(loop.stop) for loop in loops)

    @property
    def lengths_differ(self) -> bool:
        """Whether row blocks have different numbers of tiles."""
        loops = (part.loop for part in self.structure.parts)
        return any(loop is not None and self.joint.row in names_of_index(_count(loop)) for loop in loops)

    @property
    def adders(self) -> int:
        """How many warps add to the total: in order, one for what each consumer has of a tile."""
        return 1 if self.order is None else CONSUMERS

    @property
    def size(self) -> int:
        """Bytes of shared memory, without barriers."""
        held = sum(tile_bytes(h.shape, h.dtype) for h in self.held)
        rings = 2 * sum(tile_bytes(r.shape, r.dtype) for r in self.rings)
        turns = 2 * tile_bytes((2 * ROWS, self.queries), self.held[0].dtype)
        vectors = sum(self.slots_of(v) for v in self.vectors) * tile_bytes((self.queries,), "float32")
        squares = self.slots * sum(tile_bytes(s.ring.shape, s.ring.dtype) for s in self.squares)
        apart = tile_bytes((self.queries, KEYS), "float32") if self.apart else 0
        return held + rings + turns + vectors + squares + apart + 2 * tile_bytes((ROWS, self.share), "float32")

    @property
    def parameters(self) -> list[str]:
        """The parameters of producer and consumers for it."""
        held = [name for h in self.held for name in (h.buffer, h.ready)]
        filled = (*self.rings, *(square.ring for square in self.squares))
        rings = [name for r in filled for name in (r.slots, r.full, r.empty)]
        turns = (self.turns, self.turned, *self.for_pairs)
        return [*held, *rings, *(v.ring for v in self.vectors), *turns, *self.for_adder]

    @property
    def for_pairs(self) -> tuple[str, ...]:
        """Those of the adder of pairs, and of consumers for it."""
        return tuple(name for name in (self.apart, self.pairs_staged, self.pairs_freed) if name)

    @property
    def for_adder(self) -> tuple[str, ...]:
        """Those of the adder."""
        return self.stage, self.staged, self.freed, *([] if self.finish is None else [self.loaded])

    def heads_together(self, program: ir.Program) -> int | None:
        """How many heads run at the same time, a divisor of their number; None: as many as in other kernels.

        If programs add in order, as many as fit the cache, so that few row blocks of one head wait for each other.
        Those of a group are visited one after the other, so the cache holds tiles of one, and row blocks of different
        lengths even out only if all multiprocessors run some from the start.
        """
        extent = {axis.var: axis.extent for axis in self.joint.kernel.grid}
        heads = prod(n for var, n in extent.items() if var != self.joint.row)
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        fewest = next((n for n in divisors if n * extent[self.joint.row] >= EVEN // 2), heads)
        (*_, rows, columns) = program.tensor(self.total.tensor).shape
        if self.order is None:
            if self.joint.around is None or not self.lengths_differ:
                return None
            loaded = sum(2 * prod(program.tensor(ring.tensor).shape) for ring in self.rings)
            return max(fewest, usual_heads(extent[self.joint.row], heads, loaded, differ=True))
        group = 1 if self.joint.around is None or self.heads_of_tiles else evaluate(self.joint.around.stop, {})
        most = min(max(1, ORDERED_CACHE // (rows * columns * group * ORDERED_BYTES)), ORDERED_HEADS)
        if self.finish is not None:
            most = min(most, self.finish.slots)
        chosen = max(n for n in divisors if n <= most)
        return max(chosen, fewest) if self.heads_of_tiles else chosen

    def carrier(self, vector: Vector) -> RingBuffer:
        """The ring with whose tiles a vector is copied."""
        return self.squares[0].ring if self.squares and vector.early else self.rings[0]

    def slots_of(self, vector: Vector) -> int:
        """The slots of a vector's ring."""
        return self.slots if self.squares and vector.early else 2

    @property
    def stores_turns(self) -> bool:
        """Whether the tiles that both consumers read are stored, as pairs of queries and keys."""
        return self.pairs is not None and not self.apart

    def tile_of_turn(self, turn: str) -> str:
        """A tile that both consumers read: keys and queries, or if it is stored, queries and keys."""
        tile = f"{self.turns}.index({turn})"
        return self._as_matrix(tile) if self.stores_turns else tile

    def part_of_turn(self, turn: str, consumer: str) -> str:
        """The keys of a consumer in it."""
        if not self.stores_turns:
            return f"{self.tile_of_turn(turn)}.slice({consumer} * {ROWS}, {ROWS}, dim=0)"
        return f"{self.tile_of_turn(turn)}.slice({consumer} * {ROWS}, {ROWS}, dim=1).permute((1, 0))"

    def part_of_apart(self, consumer: str) -> str:
        """The keys of a consumer in the pairs that are stored, if both consumers read others."""
        return f"{self._as_matrix(self.apart)}.slice({consumer} * {ROWS}, {ROWS}, dim=1).permute((1, 0))"

    def _as_matrix(self, tile: str) -> str:
        """Pairs in shared memory, which may be a matrix of one head."""
        matrix = self.pairs is not None and self.pairs.matrices is not None
        return tile + (f".reshape({[self.queries, KEYS]})" if matrix else "")

    def queries_of_turn(self, turn: str) -> str:
        """All of it, with queries as rows."""
        return self.tile_of_turn(turn) + ("" if self.stores_turns else ".permute((1, 0))")

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

    def place_in_total(self, ctx: GluonContext, this: LoopPart, consumer: int | str) -> str:
        """Where what a consumer has of a tile is added: a row and a column, or a matrix, a row and a column."""
        steps = ROWS, self.share
        first, columns = (consumer * n if isinstance(consumer, int) else f"{consumer} * {n}" for n in steps)
        row = f"at + {first}" if first and not self.by_columns else "at"
        column = str(columns if self.by_columns else 0)
        if self.total.matrices is None:
            return f"{row}, {column}"
        shape = sizes_of(ctx.program.tensor(self.total.tensor))
        row = row.replace("at", ctx.index(columns_of(this).start, ADD))
        return f"{flat_place(ctx, shape[:-2], self.joint.heads)}, {row}, {column}"

    def before(self, ctx: GluonContext, this: LoopPart) -> str:
        """The number that a program waits for before it adds to a tile: of its row block, which is the one after the
        row block before it; 0 if that one does not visit the tile."""
        row = ctx.index(ir.Name(self.joint.row), MUL)
        if self.finish is not None:
            return ctx.index(self.finish.number(self.head(ctx), ir.Name(self.joint.row)))
        if self.joint.from_first:
            return row
        at, previous = columns_of(this).start, ir.Arith("-", ir.Name(self.joint.row), ir.Int(1))
        visits: list[str] = []
        for part in self.structure.parts:
            start, loop = columns_of(part).start, part.loop
            ends = (start, start)
            if loop is not None:
                last = ir.Arith("-", loop.stop, ir.Int(1))
                ends = tuple(substitute_index(start, loop.var, end) for end in (loop.start, last))
            low, high = (ctx.index(canonicalize(substitute_index(end, self.joint.row, previous)), ADD) for end in ends)
            here = ctx.index(at, ADD)
            visits.append(f"(({low} <= {here}) & ({here} <= {high}))")
        return f"gl.where({' | '.join(visits)}, {row}, 0)"

    def row_of_total(self, ctx: GluonContext, this: LoopPart) -> str:
        """The row of the total that belongs to a tile's first query."""
        shape = sizes_of(ctx.program.tensor(self.total.tensor))
        heads = self.joint.heads if self.finish is None else (self.finish.slot(self.head(ctx)),)
        return flat_place(ctx, shape[:-1], (*heads, columns_of(this).start))

    def head(self, ctx: GluonContext) -> ir.IndexExpr:
        """The number of a program's head."""
        return head_of(ctx.program.tensor(self.joint.output.target.tensor).shape[:-2], self.joint.heads)

    def place_in_parts(self, ctx: GluonContext, this: LoopPart, consumer: str) -> str:
        """Where a consumer stores sums along diagonals of a tile: of its first sixteen rows."""
        assert self.parts is not None
        shape = sizes_of(ctx.program.tensor(self.parts))
        rows = next(i for i in tile_dims(this.leading[0].store.target.index) if isinstance(i, ir.Slice)).start
        number = ir.Arith("//", rows, ir.Int(WARP_ROWS))
        tile = ir.Arith("*", ir.Arith("//", columns_of(this).start, ir.Int(TILE_COLUMNS)), ir.Int(NUMBERS))
        at = flat_place(ctx, shape, (*self.joint.heads, number, tile))
        return f"{at} + {consumer} * {ROWS // WARP_ROWS * self.numbers(ctx)}"

    def numbers(self, ctx: GluonContext) -> int:
        """How many numbers of sixteen rows `parts` has."""
        assert self.parts is not None
        return ctx.program.tensor(self.parts).shape[-1]

    def place_of(self, ctx: GluonContext, vector: Vector, this: LoopPart) -> str:
        """Where a tile's vector begins in its tensor."""
        return flat_place(ctx, sizes_of(vector.tensor), (*vector.outer, columns_of(this).start))

    def buffer_for(self, shape: tuple[int, ...], dtype: str, taken: list[str]) -> Held | None:
        """A held tile whose memory an output may take once the loop has ended."""
        return next(
            (
                h
                for h in self.held
                if (ROWS, *h.shape[1:]) == shape and h.dtype == dtype and h.own not in taken and not h.of_matrix
            ),
            None,
        )


def _count(loop: ir.For) -> ir.IndexExpr:
    """The number of iterations of a loop."""
    return canonicalize(ir.Arith("-", loop.stop, loop.start))


def flat_place(ctx: GluonContext, shape: tuple[ir.IndexExpr, ...], index: tuple[ir.IndexExpr, ...]) -> str:
    """The text of a position in a contiguous tensor."""
    total: ir.IndexExpr = ir.Int(0)
    for extent, at in zip(shape, index, strict=True):
        total = ir.Arith("+", ir.Arith("*", total, extent), at)
    whole = all(isinstance(extent, ir.Int) for extent in shape[1:])
    return ctx.index(canonicalize(total) if whole else simplify(total))


def plan_of(
    program: ir.Program,
    joint: Joint,
    total: str,
    order: str | None,
    names: UniqueNames,
    parts: str | None = None,
    finish: Finish | None = None,
) -> tuple[ir.Program, Plan]:
    """The plan of a kernel of two nests, and the program with an on-chip tile for each vector.

    Args:
        total: the tensor in global memory that the sum of the other nest is added to.
        order: the tensor that says which row block added last; None: programs add in any order.
        names: of the module's functions and parameters.
        parts: the tensor of sums along diagonals; None: there are none.
        finish: how the last row block stores the output; None: another kernel does.

    Raises:
        UnsupportedKernel: the row work reads more than shared memory or registers have space for.
    """
    # In order, programs that begin at the same tile wait for each other once; at tiles of their own, in each step.
    structure = replace(joint.structure, downward=order is not None and _begin_apart(joint))
    if joint.structure.downward != structure.downward:
        structure = replace(structure, parts=structure.parts[::-1])
    structure = ordered(structure)
    program = replace(program, tensors=(*program.tensors, *joint.exchanged.tensors))
    program, structure = with_factors_apart(program, structure, joint)
    first = structure.parts[0]
    rings = tuple(ring_of(program, product, names) for product in first.leading)
    held = tuple(held_tile(program, left_access(structure, p), names) for p in first.leading)
    queries = shape_of(first.leading[0].store.target, program)[1]
    width = shape_of(first.trailing[0].store.target, program)[1]
    program, structure, vectors = with_vectors(program, structure, queries, names)
    program, structure, squares = with_squares(program, structure, joint.exchanged, names)
    for this in structure.parts:
        check_row_work(program, this)
    share = width // 2 if queries == ROWS else width
    described = through(program.tensor(total), (ROWS, share), (queries, width), names)
    pairs = None if joint.pairs is None else _of_pairs(program, joint.pairs, queries, names)
    made = (names.fresh(name) for name in ("turns", "turned", "stage", "staged", "freed"))
    more: dict[str, Any] = {"finish": finish, "loaded": names.fresh("loaded")} if finish is not None else {}
    if joint.pairs is not None and joint.pairs.unrounded:
        more["apart"] = names.fresh("unrounded")
        if joint.pairs.summed is not None:
            more |= {name: names.fresh(name) for name in ("pairs_staged", "pairs_freed")}
    tiles = (held, rings, queries, vectors, squares, 2)
    plan = Plan(joint, structure, *tiles, described, share, *made, order=order, parts=parts, pairs=pairs)
    return program, replace(plan, **more)


def _of_pairs(program: ir.Program, pairs: Pairs, queries: int, names: UniqueNames) -> HostDescriptor:
    """The descriptor through which a consumer stores its part of a tile of pairs."""
    tensor = program.tensor(pairs.tensor if pairs.summed is None else pairs.output)
    if tensor.shape[-1] * BYTES[tensor.dtype] % ALIGNMENT:
        raise UnsupportedKernel(f"the rows of {tensor.name} do not begin at multiples of {ALIGNMENT} bytes")
    return through(replace(tensor, name=pairs.stored_in), (queries, ROWS), (queries, KEYS), names)


def _begin_apart(joint: Joint) -> bool:
    """Whether the row blocks begin at different tiles."""
    loops = (part.loop for part in joint.structure.parts)
    return any(loop is None or joint.row in names_of_index(loop.start) for loop in loops)
