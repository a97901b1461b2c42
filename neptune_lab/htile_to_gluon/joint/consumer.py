"""Producer and consumers of the kernel of two nests.

A consumer computes 64 of a program's 128 keys.  In a step, for a tile of queries:

    wait for x of the step before, of both consumers;   t = transpose(x) @ k        64 x width of the first nest's sum
    s = k @ transpose(q)
    wait for t, and add it to the sum in global memory
    wait for s;   early row work (weights)
    d = v @ transpose(d_out);   d_v = d_v + weights @ d_out
    wait for d;   late row work (x)
    x to shared memory, where the other consumer reads it;   d_k = d_k + x @ q

So the product t, of the step before, overlaps s, and no consumer waits for the other within a step. With t of the same
step, both would wait at the same time, while no product runs.
"""

from __future__ import annotations

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.expressions import emit, whole_tile
from neptune_lab.htile_to_gluon.joint.plan import Plan, Vector
from neptune_lab.htile_to_gluon.memory import store
from neptune_lab.htile_to_gluon.rows import CONSUMER, ROWS, part, part_of_store
from neptune_lab.htile_to_gluon.structure import LoopPart, Product, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import bind_program, for_each_tile
from neptune_lab.htile_to_triton.descriptors import descriptor, host_descriptor
from neptune_lab.wrapping import Loose, call, seq

# Barriers of the hardware: of both consumers, and from the second on of one.
BOTH, OWN = 12, 13


def emit_producer(ctx: GluonContext, plan: Plan) -> None:
    """Emits the body of the producer's function."""
    ctx.root.binds = frozenset()
    for ring in plan.rings:
        ctx.line(f"{ring.slot} = 0")
        ctx.line(f"{ring.phase} = 0")
    bind_program(ctx, "gl.program_id(0)")
    for held in plan.held:
        rows, at = _place(ctx, held.access)
        ctx.line(f"mbarrier.expect({held.ready}.index(0), {rows}.block_type.nbytes)")
        ctx.line(call(ctx.helper("_copy_in"), rows, f"[{at}]", f"{held.ready}.index(0)", held.buffer))
    for this in plan.structure.parts:
        for_each_tile(ctx, this, opened=False, body=lambda _, this=this: _copies(ctx, plan, this))


def _copies(ctx: GluonContext, plan: Plan, this: LoopPart) -> None:
    stages, copy, following = ctx.gluon.stages, ctx.helper("_copy_in"), ctx.helper("_next")
    for ring, product in zip(plan.rings, this.leading, strict=True):
        ctx.node, ctx.origin = product.store.node_id, product.store.origin
        rows, at = _place(ctx, product.b)
        vectors = plan.vectors if ring is plan.rings[0] else ()
        more = f" + {4 * plan.queries * len(vectors)}" if vectors else ""
        full, slot = f"{ring.full}.index({ring.slot})", ring.slot
        ctx.line(f"mbarrier.wait({ring.empty}.index({slot}), {ring.phase} ^ 1)")
        ctx.line(f"mbarrier.expect({full}, {rows}.block_type.nbytes{more})")
        ctx.line(call(copy, rows, f"[{at}]", full, f"{ring.slots}.index({slot})"))
        for vector in vectors:
            at = plan.place_of(ctx, vector, this)
            ctx.line(call(copy, vector.descriptor.parameter, f"[{at}]", full, f"{vector.ring}.index({slot})"))
        ctx.line(f"{slot}, {ring.phase} = {following}({slot}, {ring.phase}, {stages})")


def _place(ctx: GluonContext, access: ir.Access) -> tuple[str, str]:
    """A tile's descriptor, and its row and column there."""
    found = host_descriptor(ctx, access)
    if found is None or found[0].matrices is not None:
        raise UnsupportedKernel(f"the copy engine cannot load tiles of {access.tensor}, or they leave the tensor")
    return found[0].parameter, ", ".join(found[1])


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
        for ring in plan.rings:
            ctx.line(f"{ring.slot} = 0")
            ctx.line(f"{ring.phase} = 0")
        for name in ("done", "turn", "parity", "before_at"):
            ctx.line(f"{name} = 0")
        for columns in sorted({plan.queries, plan.share}):
            ctx.line(f"zeros_{columns} = gl.zeros([{ROWS}, {columns}], gl.float32, layout={ctx.tile_layout(columns)})")
        bind_program(ctx, "gl.program_id(0)")
        for stmt in self.structure.before:
            self._store(stmt)
        for held in plan.held:
            ctx.line(f"{held.own} = {held.buffer}.slice({self.me} * {ROWS}, {ROWS}, dim=0)")
            ctx.line(f"mbarrier.wait({held.ready}.index(0), 0)")
        for this in self.structure.parts:
            for_each_tile(ctx, this, opened=False, body=lambda _, this=this: self._step(this))
        ctx.line("# the last product", comment=True)
        self._start_total()
        ctx.line("total = warpgroup_mma_wait(0, [total_pending])")
        self._add_total()
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
        self._add_total()
        self._finish(first, 0)
        for vector in plan.vectors:
            if vector.early:
                self._vector(vector)
        for stmt in before:
            self._store(stmt)
        self._issue(second)
        self._accumulate(early)
        self._finish(second, 1)
        for vector in plan.vectors:
            if not vector.early:
                self._vector(vector)
        for stmt in after:
            self._store(stmt)
        value = ctx.tiles[plan.joint.value]
        ctx.line(f"{plan.turns}.index(turn).slice({self.me} * {ROWS}, {ROWS}, dim=0).store({value})")
        ctx.line("fence_async_shared()")
        self._accumulate(late)
        ctx.line(f"{ctx.helper('_meet_of')}({OWN} + {self.me}, 128)")
        ctx.line(f"mbarrier.arrive({plan.turned}.index(turn), count=1)")
        for product, running in ((early, 1), (late, 0)):
            name, ring = ctx.tiles[product.target], plan.ring_of(product)
            ctx.line(f"{name} = warpgroup_mma_wait({running}, [{name}_pending])")
            ctx.line(f"mbarrier.arrive({ring.empty}.index({ring.slot}), count=1)")
        for ring in plan.rings:
            ctx.line(
                f"{ring.slot}, {ring.phase} = {ctx.helper('_next')}({ring.slot}, {ring.phase}, {ctx.gluon.stages})"
            )
        ctx.line(f"before_at = {plan.row_of_total(ctx, this)}")
        ctx.line("parity ^= turn")
        ctx.line("turn ^= 1")
        ctx.line("done += 1")

    def _issue(self, product: Product) -> None:
        """Issues a product of scores."""
        ctx, ring = self.ctx, self.plan.ring_of(product)
        self._at(product.store)
        ctx.line(f"mbarrier.wait({ring.full}.index({ring.slot}), {ring.phase})")
        right = f"{ring.slots}.index({ring.slot})" + (".permute((1, 0))" if product.transposed else "")
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
        right = f"{ring.slots}.index({ring.slot})" + (".permute((1, 0))" if product.transposed else "")
        ctx.line(seq(f"{name}_pending = ", call("warpgroup_mma", f"{name}_left", right, name, "is_async=True")))

    # -- the sum of the other nest --------------------------------------------------------------------------

    def _start_total(self) -> None:
        """Issues the product that the other nest would have added, of the step before; of nothing in the first step."""
        ctx, plan = self.ctx, self.plan
        self._at(plan.joint.output)
        turned = f"{plan.turned}.index(turn ^ 1)"
        ctx.line(f"mbarrier.wait({turned}, parity ^ turn ^ 1, pred=done > 0)")
        left = f"{plan.turns}.index(turn ^ 1).permute((1, 0))"
        right = plan.held_by(plan.joint.held).buffer
        if plan.by_columns:
            right += f".slice({self.me} * {plan.share}, {plan.share}, dim=1)"
        else:
            left += f".slice({self.me} * {ROWS}, {ROWS}, dim=0)"
        made = call("warpgroup_mma", left, right, f"zeros_{plan.share}", "use_acc=False", "is_async=True")
        ctx.line(seq("total_pending = ", made))

    def _add_total(self) -> None:
        """Adds it to the sum in global memory, once the copy engine has read what was added before."""
        ctx, plan = self.ctx, self.plan
        row, column = ("", f"{self.me} * {plan.share}") if plan.by_columns else (f" + {self.me} * {ROWS}", "0")
        meet, stage = f"{ctx.helper('_meet_of')}({OWN} + {self.me}, 128)", f"{plan.stage}.index({self.me})"
        ctx.line("if done > 0:")
        for line in (
            "tma.store_wait(0)",
            meet,
            f"{stage}.store(total)",
            "fence_async_shared()",
            meet,
            f"{ctx.helper('_add_out')}({plan.total.parameter}, [before_at{row}, {column}], {stage})",
        ):
            ctx.line(f"    {line}")

    # -- statements -----------------------------------------------------------------------------------------

    def _vector(self, vector: Vector) -> None:
        """Loads a vector from shared memory, as late as possible: it takes a register for each four queries."""
        ctx = self.ctx
        layout = ctx.columns_layout(self.plan.queries)
        ctx.line(f"{vector.name} = {vector.ring}.index({self.plan.rings[0].slot}).load({layout})")
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


__all__ = ["JointConsumer", "emit_producer"]
