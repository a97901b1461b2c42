"""Consumers of the kernel of two nests.

A consumer computes 64 of a program's 128 keys.  In a step, for a tile of queries:

    wait for x of the step before, of both consumers;   t = transpose(x) @ k        64 x width of the first nest's sum
    s = k @ transpose(q)
    wait for t, and give it to the adder, which adds it to the sum in global memory
    wait for s;   early row work (weights)
    d = v @ transpose(d_out);   d_v = d_v + weights @ d_out
    wait for d;   late row work (x)
    x to shared memory, where the other consumer reads it;   d_k = d_k + x @ q

So the product t, of the step before, overlaps s, and no consumer waits for the other within a step. With t of the same
step, both would wait at the same time, while no product runs.
"""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import rewrite, tile_dims
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.expressions import emit, read_ahead, whole_tile
from neptune_lab.htile_to_gluon.joint.pair_places import part_of_pairs, place_in_pairs, store_from_registers
from neptune_lab.htile_to_gluon.joint.plan import Plan
from neptune_lab.htile_to_gluon.joint.producer import each_tile, number
from neptune_lab.htile_to_gluon.joint.vectors import Vector
from neptune_lab.htile_to_gluon.memory import store
from neptune_lab.htile_to_gluon.rows import CONSUMER, ROWS, part, part_of_store
from neptune_lab.htile_to_gluon.structure import LoopPart, Product
from neptune_lab.htile_to_gluon.tile_schedule import bind_program
from neptune_lab.htile_to_triton.context import MUL
from neptune_lab.htile_to_triton.descriptors import descriptor
from neptune_lab.wrapping import Loose, call, flat, seq

# Barriers of the hardware: of both consumers, and from the second on of one.
BOTH, OWN = 12, 13


class JointConsumer:
    """The emission of one consumer function."""

    def __init__(self, ctx: GluonContext, plan: Plan) -> None:
        self.ctx = ctx
        self.plan = plan
        self.structure = plan.structure
        self.me = ctx.variables[CONSUMER][0]
        self.taken: list[str] = []  # buffers of outputs
        for name in (p.target for p in self.structure.first.trailing):
            ctx.tiles[name] = ctx.names.fresh(name)

    def emit(self) -> None:
        """Emits the body of the function."""
        ctx, plan = self.ctx, self.plan
        for ring in (*plan.rings, *(square.ring for square in plan.squares)):
            ctx.line(f"{ring.slot} = 0")
            ctx.line(f"{ring.phase} = 0")
        for name in ("done", "turn", "parity"):
            ctx.line(f"{name} = 0")
        for columns in sorted({plan.queries, plan.share}):
            ctx.line(f"zeros_{columns} = gl.zeros([{ROWS}, {columns}], gl.float32, layout={ctx.tile_layout(columns)})")
        bind_program(ctx, number(plan))
        for stmt in self.structure.before:
            self._store(stmt)
        for held in plan.held:
            ctx.line(f"{held.own} = {held.tile}.slice({self.me} * {ROWS}, {ROWS}, dim=0)")
            ctx.line(f"mbarrier.wait({held.ready}.index(0), 0)")
        each_tile(ctx, plan, self._step)
        ctx.line("# the last product", comment=True)
        self._start_total()
        ctx.line("total = warpgroup_mma_wait(0, [total_pending])")
        self._give_total()
        ctx.line("# the outputs", comment=True)
        ctx.line(f"{ctx.helper('_meet_of')}({BOTH}, 256)")
        stored = [self._store(stmt) for stmt in self.structure.after]
        ctx.line("fence_async_shared()")
        ctx.line(f"{ctx.helper('_meet_of')}({OWN} + {self.me}, 128)")
        for copy in stored:
            if copy is not None:
                ctx.line(copy)
        ctx.line("tma.store_wait(0)")

    # -- a step ---------------------------------------------------------------------------------------------

    def _step(self, this: LoopPart) -> None:
        """One tile of queries: both products, the values between them, then what they add to the sums.  While a product
        runs, values of the one before it are computed."""
        ctx, plan = self.ctx, self.plan
        first, second = this.leading
        early, late = plan.trailing(this)
        for stmt in (first.store, second.store, *this.middle):
            name = stmt.target.tensor
            ctx.tiles[name] = ctx.name_for(("tile", name, ""), name, ctx.scope)
        before, after = plan.middle(this)
        self._start_total()
        self._issue(first)
        ctx.line("total = warpgroup_mma_wait(1, [total_pending])")
        self._give_total()
        read_ahead(ctx, before, self.structure.rows)
        self._squares()
        self._finish(first, 0)
        for vector in plan.vectors:
            if vector.early:
                self._vector(vector)
        for stmt in before:
            self._store(stmt)
        self._issue(second)
        self._accumulate(early)
        self._release_squares()
        self._finish(second, 1)
        for vector in plan.vectors:
            if not vector.early:
                self._vector(vector)
        for stmt in after:
            self._store(stmt)
        value = self._value(this)
        ctx.line(f"{plan.part_of_turn('turn', self.me)}.store({value})")
        if plan.apart:
            assert plan.joint.pairs is not None
            if plan.pairs_freed:
                ctx.line(f"mbarrier.wait({plan.pairs_freed}.index({self.me}), done & 1 ^ 1)")
            ctx.line(f"{plan.part_of_apart(self.me)}.store({ctx.tiles[plan.joint.pairs.unrounded]})")
        ctx.line("fence_async_shared()")
        self._accumulate(late)
        ctx.line(f"{ctx.helper('_meet_of')}({OWN} + {self.me}, 128)")
        ctx.line(f"mbarrier.arrive({plan.turned}.index(turn), count=1)")
        self._store_pairs(this)
        for product, running in ((early, 1), (late, 0)):
            if product is late:
                self._diagonals(this)
            name, ring = ctx.tiles[product.target], plan.ring_of(product)
            ctx.line(f"{name} = warpgroup_mma_wait({running}, [{name}_pending])")
            ctx.line(f"mbarrier.arrive({ring.empty}.index({ring.slot}), count=1)")
        for ring in plan.rings:
            ctx.line(
                f"{ring.slot}, {ring.phase} = {ctx.helper('_next')}({ring.slot}, {ring.phase}, {ctx.gluon.ring_stages})"
            )
        ctx.line("parity ^= turn")
        ctx.line("turn ^= 1")
        ctx.line("done += 1")

    def _squares(self) -> None:
        """Loads this consumer's rows of tiles of pairs from shared memory, while a product runs."""
        ctx, plan = self.ctx, self.plan
        for square in plan.squares:
            ring, name = square.ring, ctx.name_for(("tile", square.tile, ""), square.tile, ctx.scope)
            ctx.line(f"mbarrier.wait({ring.full}.index({ring.slot}), {ring.phase})")
            ctx.line(f"{name} = {square.part(self.me)}.load({ctx.tile_layout(plan.queries)})")
            ctx.tiles[square.tile], ctx.defined[square.tile] = name, (ROWS, plan.queries)

    def _release_squares(self) -> None:
        """Lets the producer fill the slots of tiles of pairs, and of vectors beside them, again.

        The hardware does not wait for loads from shared memory before it arrives at a barrier, so this comes after the
        product that is computed from what was loaded.
        """
        ctx, plan = self.ctx, self.plan
        if not plan.squares:
            return
        ctx.line(f"{ctx.helper('_meet_of')}({OWN} + {self.me}, 128)")
        for ring in (square.ring for square in plan.squares):
            ctx.line(f"mbarrier.arrive({ring.empty}.index({ring.slot}), count=1)")
            ctx.line(f"{ring.slot}, {ring.phase} = {ctx.helper('_next')}({ring.slot}, {ring.phase}, {plan.slots})")

    def _store_pairs(self, this: LoopPart) -> None:
        """Stores this consumer's part of the tile that both read, or of that before it is rounded."""
        ctx, plan = self.ctx, self.plan
        if plan.direct:
            store_from_registers(ctx, plan, this, self.me)
        if plan.pairs is None:
            return
        assert plan.joint.pairs is not None
        self._at(plan.joint.pairs.statement)
        if plan.pairs_staged:
            ctx.line(f"mbarrier.arrive({plan.pairs_staged}.index({self.me}), count=1)")
            return
        place = f"[{place_in_pairs(ctx, plan, this, self.me)}]"
        ctx.line(call(ctx.helper("_copy_out"), plan.pairs.parameter, place, part_of_pairs(plan, "turn", self.me)))

    def _diagonals(self, this: LoopPart) -> None:
        """Stores sums along the diagonals of a tile, while the last product of a step runs."""
        ctx, plan = self.ctx, self.plan
        if plan.parts is None:
            return
        assert plan.joint.diagonals is not None
        self._at(plan.joint.diagonals.output)
        tile = ctx.tiles[plan.joint.diagonals.tile]
        at = f"{ctx.pointers[plan.parts]} + ({plan.place_in_parts(ctx, this, self.me)})"
        if ctx.program.tensor(plan.joint.diagonals.tile).dtype != "float32":
            tile += ".to(gl.float32)"
        ctx.line(call(ctx.helper("_store_diagonals"), tile, at, str(plan.numbers(ctx))))

    def _value(self, this: LoopPart) -> str:
        """The tile that both consumers read; 0 in rows past the last key, where it may be infinite."""
        ctx, plan = self.ctx, self.plan
        name = ctx.tiles[plan.joint.value]
        keys = plan.joint.keys
        if isinstance(keys, ir.Int) and keys.value % self.structure.rows == 0:
            return name
        target = next(s.target for s in this.middle if s.target.tensor == plan.joint.value)
        rows = next(i for i in tile_dims(target.index) if isinstance(i, ir.Slice))
        end = ir.Literal(keys.value, "int32") if isinstance(keys, ir.Int) else ir.Scalar(keys)
        inside = ir.Elementwise("lt", (ir.Iota((rows, ir.NewAxis())), end), "bool")
        dtype = ctx.program.tensor(target.tensor).dtype
        kept = ir.Elementwise("where", (inside, target, ir.Literal(0.0, dtype)), dtype)
        ctx.line(seq(f"{name}_seen = ", emit(ctx, part(kept, self.structure.rows), plan.queries).doc))
        return f"{name}_seen"

    def _issue(self, product: Product) -> None:
        """Issues a product of scores."""
        ctx, ring = self.ctx, self.plan.ring_of(product)
        self._at(product.store)
        ctx.line(f"mbarrier.wait({ring.full}.index({ring.slot}), {ring.phase})")
        right = ring.tile + (".permute((1, 0))" if product.transposed else "")
        left = self.plan.held_by(product).own
        zeros = f"zeros_{self.plan.queries}"
        made = call("warpgroup_mma", left, right, zeros, "use_acc=False", "is_async=True")
        ctx.line(seq(f"{ctx.tiles[product.target]}_pending = ", made))

    def _finish(self, product: Product, running: int) -> None:
        name = self.ctx.tiles[product.target]
        self._at(product.store)
        self.ctx.line(f"{name} = warpgroup_mma_wait({running}, [{name}_pending])")
        self.ctx.defined[product.target] = (ROWS, self.plan.queries)

    def _accumulate(self, product: Product) -> None:
        """Issues a product that is added to a sum in registers."""
        ctx, ring = self.ctx, self.plan.ring_of(product)
        self._at(product.store)
        name = ctx.tiles[product.target]
        left = emit(ctx, part(product.a, self.structure.rows), self.plan.queries)
        layout = ctx.operand_layout(ctx.shape(product.store.target)[1])
        ctx.line(seq(f"{name}_left = ", call("gl.convert_layout", left.doc, layout)))
        right = ring.tile + (".permute((1, 0))" if product.transposed else "")
        ctx.line(seq(f"{name}_pending = ", call("warpgroup_mma", f"{name}_left", right, name, "is_async=True")))

    # -- the sum of the other nest --------------------------------------------------------------------------

    def _start_total(self) -> None:
        """Issues the product that the other nest would have added, of the step before; of nothing in the first step."""
        ctx, plan = self.ctx, self.plan
        self._at(plan.joint.output)
        turned = f"{plan.turned}.index(turn ^ 1)"
        ctx.line(f"mbarrier.wait({turned}, parity ^ turn ^ 1, pred=done > 0)")
        left = plan.queries_of_turn("turn ^ 1")
        right = plan.held_by(plan.joint.held).tile
        if plan.by_columns:
            right += f".slice({self.me} * {plan.share}, {plan.share}, dim=1)"
        else:
            left += f".slice({self.me} * {ROWS}, {ROWS}, dim=0)"
        made = call("warpgroup_mma", left, right, f"zeros_{plan.share}", "use_acc=False", "is_async=True")
        ctx.line(seq("total_pending = ", made))

    def _give_total(self) -> None:
        """Gives it to the adder, once that has read what was given before."""
        ctx, plan = self.ctx, self.plan
        stage = f"{plan.stage}.index({self.me})"
        if plan.total.matrices is not None:
            stage += f".reshape([{ROWS}, {plan.share}])"
        given = [
            f"mbarrier.wait({plan.freed}.index({self.me}), done & 1)",
            f"{stage}.store(total)",
            "fence_async_shared()",
        ]
        if plan.finish is not None:
            last = f"if {ctx.index(ir.Name(plan.joint.row))} == {plan.finish.blocks - 1}:"
            finished = (f"    {line}" for line in self._finished(stage))
            given = [last, *finished, "else:", *(f"    {line}" for line in given)]
        ctx.line("if done > 0:")
        for line in (
            *given,
            # (of the tile that this step replaces; with two of them, that of the step before may still be on its way)
            *([f"tma.store_wait({0 if plan.apart else 1})"] if plan.pairs is not None and not plan.pairs_freed else []),
            f"{ctx.helper('_meet_of')}({OWN} + {self.me}, 128)",
            f"mbarrier.arrive({plan.staged}.index({self.me}), count=1)",
        ):
            ctx.line(f"    {line}")

    def _finished(self, stage: str) -> list[str]:
        """Stores the output's rows of a tile, if this is the last row block: of what the others have added, which the
        adder has loaded, and what this one adds."""
        ctx, plan, joint = self.ctx, self.plan, self.plan.joint
        output, shape = ctx.program.tensor(joint.output.target.tensor), (ROWS, plan.share)
        rows, width = output.shape[-2:]
        ctx.tiles[joint.total], ctx.defined[joint.total] = "whole", shape

        def visit(expr: ir.TileExpr) -> ir.TileExpr:
            if not isinstance(expr, ir.Access):
                return expr
            extents = iter(shape)
            mine = (replace(i, extent=next(extents)) if isinstance(i, ir.Slice) else i for i in expr.index)
            return replace(expr, index=tuple(mine))

        value = flat(whole_tile(ctx, rewrite(joint.output.value, visit), shape, output.dtype))
        own = f"{self.me} * {plan.share if plan.by_columns else ROWS * width}"
        head = ctx.index(plan.head(ctx), MUL)
        at = f"{head} * {rows * width} + (done - 1) * {plan.queries * width} + {own}"
        return [
            f"mbarrier.wait({plan.loaded}.index({self.me}), done & 1 ^ 1)",
            f"whole = {stage}.load({ctx.tile_layout(plan.share)}) + total",
            f"{ctx.helper('_store_rows')}({ctx.pointers[output.name]} + ({at}), {value}, {width})",
        ]

    # -- statements -----------------------------------------------------------------------------------------

    def _vector(self, vector: Vector) -> None:
        """Loads a vector from shared memory, as late as possible: it takes a register for each four queries."""
        ctx = self.ctx
        layout = ctx.columns_layout(self.plan.queries)
        ctx.line(f"{vector.name} = {vector.ring}.index({self.plan.carrier(vector).slot}).load({layout})")
        ctx.tiles[vector.tile] = f"{vector.name}[None, :]"
        ctx.defined[vector.tile] = (1, self.plan.queries)

    def _at(self, stmt: ir.Store) -> None:
        self.ctx.node, self.ctx.origin = stmt.node_id, stmt.origin

    def _store(self, stmt: ir.Store) -> str | None:
        """Emits a statement; of an output, the copy that follows, once all of them are in shared memory."""
        ctx = self.ctx
        self._at(stmt)
        stmt = part_of_store(stmt, self.structure.rows)
        tensor = ctx.program.tensor(stmt.target.tensor)
        shape = shape_of(stmt.target, ctx.program)
        if tensor.space == "chip":
            if tensor.name not in ctx.tiles:  # (outside of the loop)
                ctx.tiles[tensor.name] = ctx.name_for(("tile", tensor.name, ""), tensor.name, ctx.scope)
            ctx.line(seq(f"{ctx.tiles[tensor.name]} = ", Loose(whole_tile(ctx, stmt.value, shape, tensor.dtype))))
            ctx.defined[tensor.name] = shape
            return None
        result = whole_tile(ctx, stmt.value, shape, tensor.dtype)
        held = self.plan.buffer_for(shape, tensor.dtype, self.taken)
        described = descriptor(ctx, stmt.target)
        if described is None or held is None:
            ctx.line(store(ctx, stmt.target, result, shape[1] if len(shape) == 2 else ctx.columns))
            return None
        self.taken.append(held.own)
        ctx.line(call(f"{held.own}.store", result))
        return f"{ctx.helper('_copy_out')}({', '.join(described)}, {held.own})"


__all__ = ["JointConsumer"]
