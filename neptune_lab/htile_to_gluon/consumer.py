"""A consumer: four warps that compute 64 rows of a tile, or eight that compute 128 (relay.py).

The leading product of a tile is issued together with the trailing product of the previous tile, and the row work of the
tile runs while the trailing product is computed:

    first tile     x = a @ b0;  row work 0
    next tiles     x = a @ bj  |  y = y + p @ cj-1;   wait for x, row work j, wait for y;  y = f(y), p = p of tile j
    at the end     y = y + p @ c last

Two habits of the assembler, seen in machine code, determine the order of statements:

- it moves the wait for a product up over arithmetic, so that nothing would overlap the product, but never over a loop:
  so the wait for the next tile's copy, a loop on a barrier, precedes it;
- it moves the conversion of `p` to its narrow dtype below that wait, unless `p` is an operand of the wait (`tie`).
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune_lab.htile.nodes import Access, Arith, Elementwise, IndexExpr, Int, Literal, Store, TileExpr
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile_to_gluon.barriers import Barriers, RelayedBarriers, full
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.expressions import emit, read_ahead, whole_tile
from neptune_lab.htile_to_gluon.memory import store
from neptune_lab.htile_to_gluon.producer import for_tiles_of_program, next_tile
from neptune_lab.htile_to_gluon.rows import CONSUMER, part, part_of_store
from neptune_lab.htile_to_gluon.shared_body import Body, Mask, bodies
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer, SharedMemory, by_ring, left_access
from neptune_lab.htile_to_gluon.staged_outputs import StagedOutputs
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, carried_tiles
from neptune_lab.htile_to_gluon.summed_columns import WHOLE, Part, summed_parts
from neptune_lab.htile_to_gluon.tile_schedule import (
    canonicalize,
    for_each_tile,
    is_one_tile,
    tiles_left_after_first,
    tiles_of_parts,
    tiles_text,
)
from neptune_lab.htile_to_triton.scope import Draft, Scope
from neptune_lab.wrapping import Loose, call, seq


class Consumer:
    """The emission of one consumer function.

    Args:
        staged: whether outputs that leave a matrix go through shared memory to the copy engine; else, they are stored
            through pointers.
    """

    def __init__(self, ctx: GluonContext, shared: SharedMemory, *, staged: bool = True) -> None:
        self.ctx = ctx
        self.shared = shared
        self.structure = ctx.structure
        self.rows, self.each = ctx.structure.rows, ctx.structure.each
        self.me = ctx.variables[CONSUMER][0]
        self.barriers = (RelayedBarriers if ctx.structure.whole else Barriers)(ctx, self.me)
        self.ping_pong = ctx.gluon.ping_pong and self.structure.warp_groups == 2
        self.outputs = StagedOutputs(ctx, shared, self.me, matrices=staged)
        self.carried = carried_tiles(self.structure.parts, self.structure.after)
        self.carried |= {stmt.target.tensor for stmt in self.structure.before}
        for tensor in ctx.program.tensors:
            if tensor.name in self.carried:
                ctx.tiles[tensor.name] = ctx.names.fresh(tensor.name)
        self.left: dict[str, str] = {}  # trailing product -> the variable of its left operand
        self.zeros: dict[int, str] = {}
        # A persistent program starts the first products of its next tile before it stores the outputs of this one.
        self.prefetched = (
            {p.target: ctx.names.fresh(f"{p.target}_first") for p in self.structure.first.leading}
            if ctx.gluon.ahead and shared.persistent and not self.structure.promoted
            else {}
        )

    def emit(self) -> None:
        """Emits the body of the function."""
        ctx = self.ctx
        for ring in self.shared.rings:
            ctx.line(f"{ring.slot} = 0")
            ctx.line(f"{ring.phase} = 0")
        first = self.structure.first
        for product in (*first.leading, *(p for p in first.trailing if p.promotion is not None)):
            columns = ctx.shape(product.store.target)[1]
            if columns not in self.zeros:
                self.zeros[columns] = ctx.names.fresh(f"zeros_{columns}")
                layout = ctx.tile_layout(columns)
                ctx.line(f"{self.zeros[columns]} = gl.zeros([{self.each}, {columns}], gl.float32, layout={layout})")
        if self.ping_pong:
            self.barriers.open_turns()
        for_tiles_of_program(ctx, self._tile, self._prefetch_first_tile if self.prefetched else None)
        if self.outputs.of:
            ctx.line("tma.store_wait(0)")

    def _tile(self) -> None:
        ctx, structure = self.ctx, self.structure
        for stmt in structure.before:
            self._store(stmt)
        ctx.line("# the first tile", comment=True)
        self._prologue(structure.first, tiles_left_after_first(ctx))
        opened, parts = True, structure.parts
        if is_one_tile(parts[0]):  # which is the first
            opened, parts = False, parts[1:]
        for body in bodies(ctx, parts, opened=opened):
            parts = parts[body.count :]

            def one(mine: IndexExpr, body: Body = body, after: tuple[LoopPart, ...] = parts) -> None:
                self._steady_state(body, canonicalize(Arith("+", mine, tiles_of_parts(ctx, after))))

            for_each_tile(ctx, body.part, opened=opened, body=one)
            opened = False
        self._epilogue(structure.first)
        ctx.line("# the outputs", comment=True)
        for stmt in structure.after:
            self._store(stmt)
        if self.prefetched:
            self._finish_leading(structure.first, 0)

    def _prefetch_first_tile(self) -> None:
        """Emits the first products of a program's first tile."""
        first = self.structure.first
        self._start_leading(first)
        self._finish_leading(first, 0)

    def _start_leading(self, this: LoopPart, more: str = "") -> None:
        """Waits for the operands of a tile's leading products and issues these; `more`: arguments of the waits."""
        self.ctx.tiles |= self.prefetched
        parity, slot = self.shared.resident_parity, self._slot()
        tiles = [f"{r.ready}.index({slot}), {parity}{more}" for r in self.shared.resident]
        self.barriers.wait([*tiles, *(full(ring, more) for ring in dict.fromkeys(self.shared.leading))])
        self._issue_leading(this)

    # -- tiles ----------------------------------------------------------------------------------------------

    def _prologue(self, this: LoopPart, left: IndexExpr) -> None:
        """The first tile, whose products overlap nothing; `left`: how many tiles follow."""
        self._fresh(this, "_first")
        self.ctx.tiles |= self.prefetched
        if not self.prefetched:
            self._start_leading(this)
            read_ahead(self.ctx, this.middle, self.rows, self.each)
            self._finish_leading(this, 0)
        zero = {s.target.tensor for s in self.structure.before if isinstance(s.value, Literal) and s.value.value == 0}
        for stmt in this.middle:
            self._store(stmt)
        for product in this.trailing:
            self._left(product)
            if not (product.target in zero and _keeps_zero(product.acc, product.target)):
                self._rescale(product)
        for stmt in this.after:
            self._store(stmt)
        self._await_next(left)

    def _steady_state(self, body: Body, left: IndexExpr) -> None:
        """One iteration: the products of this tile run while the values of the one before it are computed."""
        ctx, this = self.ctx, body.part
        self._fresh(this)
        if self.ping_pong:
            self.barriers.take_turn()
        self._issue_leading(this)
        self._issue_trailing(this)
        if self.ping_pong:
            self.barriers.pass_turn()
        read_ahead(ctx, this.middle, self.rows, self.each)
        self._finish_leading(this, len(this.trailing))
        for n, stmt in enumerate(this.middle):
            self._store(stmt)
            for mask in body.masks:
                if n in mask.stores:
                    self._mask(mask, mask.stores[n])
        for product in this.trailing:
            self._left(product)
        self._await_next(left)
        self._finish_trailing(this, tie=ctx.gluon.tie)
        for product in this.trailing:
            self._rescale(product)
        for stmt in this.after:
            self._store(stmt)

    def _mask(self, mask: Mask, stmt: Store) -> None:
        """`stmt` in the masked tiles of a shared body."""
        ctx = self.ctx
        bound = ctx.index(canonicalize(mask.loop.start if mask.above else mask.loop.stop))
        scope = Scope(ctx.scope, frozenset())
        comparison = f"{ctx.variables[mask.loop.var][0]} {'>=' if mask.above else '<'} {bound}"
        scope.header = Draft([f"if {comparison}:  # {mask.loop.part}"], mask.loop.origin)
        scope.header.used_by(mask.loop.node_id)
        with ctx.inside(scope):
            self._at(stmt)
            keep = "_keep_branch_of_both" if self.structure.whole else "_keep_branch"
            ctx.line(f"{ctx.helper(keep)}()")
            self._store(stmt)

    def _epilogue(self, this: LoopPart) -> None:
        self.ctx.line("# the last product", comment=True)
        spent = self._spent()
        if spent and not self.barriers.alternate:
            self.barriers.arrive(spent)
        self._issue_trailing(this)
        if self.prefetched:
            # (After the last tile, they run on stale operands, unused: products under an `if` would be serialised.)
            next_tile(self.ctx)
            self._start_leading(this, f", pred=tile < {tiles_text(self.ctx)}")
        running = self._issues(this) if self.prefetched else 0
        self._finish_trailing(this, tie=False, running=running, spent=spent if self.barriers.alternate else [])

    # -- products -------------------------------------------------------------------------------------------

    def _issue_leading(self, this: LoopPart) -> None:
        ctx = self.ctx
        for ring, product in zip(self.shared.leading, this.leading, strict=True):
            self._at(product.store)
            resident = self.shared.resident_tile(left_access(self.structure, product))
            zeros = self.zeros[ctx.shape(product.store.target)[1]]
            left, to = resident.tile(self._slot()), (zeros, "use_acc=False")
            for summed in summed_parts(ctx.program, self.structure, product):
                operands = summed.of(left, 1), _right(ring, product, summed)
                ctx.line(seq(f"{self._pending(product)} = ", call("warpgroup_mma", *operands, *to, "is_async=True")))
                to = (self._pending(product),)

    def _issues(self, this: LoopPart) -> int:
        """How many products `_issue_leading` issues."""
        return sum(len(summed_parts(self.ctx.program, self.structure, product)) for product in this.leading)

    def _finish_leading(self, this: LoopPart, running: int) -> None:
        self._wait_for_leading(this, running)
        for product in this.leading:
            self.ctx.defined[product.target] = (self.each, self.ctx.shape(product.store.target)[1])
        self._release(self.shared.leading)

    def _wait_for_leading(self, this: LoopPart, running: int) -> None:
        """Waits for leading products, until `running` products that were issued later may be left."""
        self._at(this.leading[0].store)
        pending = ", ".join(self._pending(product) for product in this.leading)
        done = ", ".join(self.ctx.tiles[product.target] for product in this.leading)
        self.ctx.line(f"{done} = warpgroup_mma_wait({running}, [{pending}])")

    def _issue_trailing(self, this: LoopPart, *, waited: bool = False) -> None:
        """Issues the trailing products; `waited`: their operands are there."""
        ctx = self.ctx
        waits = by_ring(self.shared.trailing, this.trailing)
        for ring, product in zip(self.shared.trailing, this.trailing, strict=True):
            self._at(product.store)
            if product is waits[ring] and not waited:
                self.barriers.wait([full(ring)])
            to = self._sum_before(ring, product)
            for left, right in self._operands(ring, product):
                ctx.line(seq(f"{self._pending(product)} = ", call("warpgroup_mma", left, right, *to, "is_async=True")))
                to = (self._pending(product),)

    def _sum_before(self, ring: RingBuffer, product: Product) -> tuple[str, ...]:
        """What a trailing product is added to, as arguments of its instructions."""
        if product.promotion is None:
            return (self.ctx.tiles[product.target],)
        return (self.zeros[self.ctx.shape(product.store.target)[1]], "use_acc=False")

    def _operands(self, ring: RingBuffer, product: Product) -> list[tuple[str, str]]:
        """The left and right operands of the instructions that compute a trailing product."""
        return [(self.left[product.target], _right(ring, product))]

    def _finish_trailing(self, this: LoopPart, *, tie: bool, running: int = 0, spent: Sequence[str] = ()) -> None:
        """Waits for trailing products; `spent`: barriers that they end the use of, beside those of their rings."""
        ctx = self.ctx
        self._at(this.trailing[0].store)
        pending = [self._pending(product) for product in this.trailing]
        done = [ctx.tiles[product.target] for product in this.trailing]
        for product in this.trailing:
            ctx.defined[product.target] = (self.each, ctx.shape(product.store.target)[1])
        if tie:
            operands = [self.left[product.target] for product in this.trailing]
            pending, done = pending + operands, done + operands
        ctx.line(f"{', '.join(done)} = warpgroup_mma_wait({running}, [{', '.join(pending)}])")
        self._release(self.shared.trailing, spent)

    def _left(self, product: Product) -> None:
        """The left operand of a trailing product, in the register layout that the product requires."""
        ctx = self.ctx
        self._at(product.store)
        wide = ctx.shape(product.a)[1]
        emitted = emit(ctx, part(product.a, self.rows, self.each), wide)
        if product.target not in self.left:
            self.left[product.target] = ctx.names.fresh(f"{product.target}_left")
        layout = ctx.operand_layout(ctx.shape(product.store.target)[1])
        ctx.line(seq(f"{self.left[product.target]} = ", call("gl.convert_layout", emitted.doc, layout)))

    def _rescale(self, product: Product) -> None:
        """`y = f(y)`: what a trailing product is added to."""
        ctx = self.ctx
        assert product.acc is not None
        if isinstance(product.acc, Access):
            return
        self._at(product.store)
        shape = (self.each, ctx.shape(product.store.target)[1])
        ctx.line(
            seq(
                f"{ctx.tiles[product.target]} = ",
                whole_tile(ctx, part(product.acc, self.rows, self.each), shape, "float32"),
            )
        )

    # -- barriers -------------------------------------------------------------------------------------------

    def _await_next(self, left: IndexExpr) -> None:
        """Waits for the operands of the next tile's leading products, if `left` tiles, at least one, follow."""
        ctx = self.ctx
        if left == Int(0):
            if self.barriers.alternate:
                self.barriers.wait([])
            return
        certain = ctx.is_nonnegative(Arith("-", left, Int(1)))
        more = "" if certain else f", pred={ctx.index(left)} > 0"
        self.barriers.wait([full(ring, more) for ring in dict.fromkeys(self.shared.leading)])

    def _release(self, rings: tuple[RingBuffer, ...], more: Sequence[str] = ()) -> None:
        """Gives the current slots of rings, and what `more` barriers are of, back to the producer."""
        ctx, rings = self.ctx, tuple(dict.fromkeys(rings))
        self.barriers.arrive([*(f"{ring.empty}.index({ring.slot})" for ring in rings), *more])
        for ring in rings:
            step = f"{ctx.helper('_next')}({ring.slot}, {ring.phase}, {ctx.gluon.ring_stages})"
            ctx.line(f"{ring.slot}, {ring.phase} = {step}")

    # -- stores ---------------------------------------------------------------------------------------------

    def _fresh(self, this: LoopPart, suffix: str = "") -> None:
        """New names for the tiles that are used for one tile only: the loop would carry a name of an outer scope."""
        ctx = self.ctx
        for stmt in (*(p.store for p in this.leading), *this.middle, *this.after):
            name = stmt.target.tensor
            if name not in self.carried:
                ctx.tiles[name] = ctx.name_for(("tile", name, suffix), f"{name}{suffix}", ctx.scope)

    def _at(self, stmt: Store) -> None:
        self.ctx.node, self.ctx.origin = stmt.node_id, stmt.origin

    def _slot(self) -> str:
        """The slot of this consumer's resident tiles."""
        return self.shared.resident_slot(self.me)

    def _spent(self) -> list[str]:
        """The barriers that the producer waits at before it copies this consumer's next resident tiles."""
        return [f"{r.spent}.index({self._slot()})" for r in self.shared.resident] if self.shared.persistent else []

    def _pending(self, product: Product) -> str:
        return f"{self.ctx.tiles[product.target]}_pending"

    def _store(self, stmt: Store) -> None:
        ctx = self.ctx
        self._at(stmt)
        stmt = part_of_store(stmt, self.rows, self.each)
        tensor = ctx.program.tensor(stmt.target.tensor)
        shape = shape_of_access(stmt.target)
        if tensor.space == "chip":
            ctx.line(seq(f"{ctx.tiles[tensor.name]} = ", Loose(whole_tile(ctx, stmt.value, shape, tensor.dtype))))
            ctx.defined[tensor.name] = shape
            return
        columns = shape[1] if len(shape) == 2 else ctx.columns
        result = whole_tile(ctx, stmt.value, shape, tensor.dtype)
        found = self.outputs.descriptor(stmt.target, tensor)
        if found is None:
            ctx.line(store(ctx, stmt.target, result, columns))
        else:
            self.outputs.copy_out(tensor, shape, result, *found)


def _right(ring: RingBuffer, product: Product, summed: Part = WHOLE) -> str:
    """The right operand of a product, or the part of it that is summed."""
    if product.transposed:
        return summed.of(ring.tile, 1) + ".permute((1, 0))"
    return summed.of(ring.tile, 0)


def _keeps_zero(acc: TileExpr | None, target: str) -> bool:
    """Whether `acc` is 0 if `target` is: a product of it with finite factors."""
    match acc:
        case Access(tensor=name):
            return name == target
        case Elementwise(op="mul", args=args):
            return any(_keeps_zero(arg, target) for arg in args)
        case _:
            return False
