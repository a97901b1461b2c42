"""Producer and adder of the kernel of two nests.

The producer copies tiles to shared memory, ahead of the consumers.

The adder is a warp of its own, so that no consumer waits for global memory.  In order, there are two, one for what each
consumer has.  Each waits until that of the program of the row block before its own has added to the same tile, adds,
and says so once that has arrived.  How long this takes is how long row blocks begin after each other: half a tile takes
less than a whole one, by 5% of the kernel at 1 x 32 x 1024 x 64 on an H200.  A program is numbered as it starts, and
waits only for programs with smaller numbers, which have started and do not wait for it: in whatever order the hardware
starts programs, one of them can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.joint.form import CONSUMERS
from neptune_lab.htile_to_gluon.joint.plan import Plan
from neptune_lab.htile_to_gluon.joint.vectors import columns_of
from neptune_lab.htile_to_gluon.structure import LoopPart, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import bind_program, for_each_tile
from neptune_lab.htile_to_triton.context import ADD, sizes_of
from neptune_lab.htile_to_triton.descriptors import host_descriptor
from neptune_lab.wrapping import call, seq

# The number of a program that adds in order, counted from the first that started.
TICKET = "ticket"
ADDER = "adder"


def number(plan: Plan) -> str:
    """The number of a program."""
    return "gl.program_id(0)" if plan.order is None else TICKET


def emit_producer(ctx: GluonContext, plan: Plan) -> None:
    """Emits the body of the producer's function."""
    ctx.root.binds = frozenset()
    for ring in (*plan.rings, *(square.ring for square in plan.squares)):
        ctx.line(f"{ring.slot} = 0")
        ctx.line(f"{ring.phase} = 0")
    if any(vector.descriptor is None for vector in plan.vectors):
        ctx.line(f"lane = gl.arange(0, {plan.queries}, gl.BlockedLayout([1], [32], [1], [0]))")
    bind_program(ctx, number(plan))
    for held in plan.held:
        rows, at = _place(ctx, held.access)
        ctx.line(f"mbarrier.expect({held.ready}.index(0), {rows}.block_type.nbytes)")
        ctx.line(call(ctx.helper("_copy_in"), rows, f"[{at}]", f"{held.ready}.index(0)", held.buffer))
    each_tile(ctx, plan, lambda this: _copies(ctx, plan, this))


def each_tile(ctx: GluonContext, plan: Plan, body: Callable[[LoopPart], None]) -> None:
    """Emits the loops over tiles and over the heads of a group, in the order that the plan chooses."""
    group = None if plan.joint.around is None else replace(plan.structure.parts[0], loop=plan.joint.around)

    def heads(this: LoopPart) -> None:
        if group is None or not plan.heads_of_tiles:
            body(this)
        else:
            for_each_tile(ctx, group, opened=False, body=lambda _: body(this))

    def loops(_: ir.IndexExpr) -> None:
        for this in plan.structure.parts:
            for_each_tile(ctx, this, opened=False, body=lambda _, this=this: heads(this))

    if group is None or plan.heads_of_tiles:
        loops(ir.Int(0))
    else:
        for_each_tile(ctx, group, opened=False, body=loops)


def _copies(ctx: GluonContext, plan: Plan, this: LoopPart) -> None:
    """The copies of one tile: queries and their cotangents, further squares, and the vectors that come with them."""
    copy, following = ctx.helper("_copy_in"), ctx.helper("_next")
    tiles = [(ring, product.b, product.store, 2) for ring, product in zip(plan.rings, this.leading, strict=True)]
    reader = this.leading[0].store
    tiles += [(square.ring, square.access(this), reader, plan.slots) for square in plan.squares]
    for ring, access, stmt, stages in tiles:
        ctx.node, ctx.origin = stmt.node_id, stmt.origin
        rows, at = _place(ctx, access)
        vectors = tuple(vector for vector in plan.vectors if plan.carrier(vector) is ring)
        loaded = [vector for vector in vectors if vector.descriptor is None]
        vectors = tuple(vector for vector in vectors if vector.descriptor is not None)
        more = f" + {4 * plan.queries * len(vectors)}" if vectors else ""
        for vector in loaded:
            length = ctx.index(sizes_of(vector.tensor)[-1], ADD)
            inside = f"{ctx.index(columns_of(this).start, ADD)} + lane < {length}"
            pointer = f"{ctx.pointers[vector.tensor.name]} + ({plan.place_of(ctx, vector, this)} + lane)"
            ctx.line(seq(f"{vector.name} = ", call("gl.load", pointer, f"mask={inside}", "other=0.0")))
        full, slot = f"{ring.full}.index({ring.slot})", ring.slot
        ctx.line(f"mbarrier.wait({ring.empty}.index({slot}), {ring.phase} ^ 1)")
        for vector in loaded:
            ctx.line(f"{vector.ring}.index({slot}).store({vector.name})")
        if loaded:
            ctx.line(f"{ctx.helper('_meet')}()")
        ctx.line(f"mbarrier.expect({full}, {rows}.block_type.nbytes{more})")
        ctx.line(call(copy, rows, f"[{at}]", full, f"{ring.slots}.index({slot})"))
        for vector in vectors:
            assert vector.descriptor is not None
            at = plan.place_of(ctx, vector, this)
            ctx.line(call(copy, vector.descriptor.parameter, f"[{at}]", full, f"{vector.ring}.index({slot})"))
        ctx.line(f"{slot}, {ring.phase} = {following}({slot}, {ring.phase}, {stages})")


def emit_adder(ctx: GluonContext, plan: Plan) -> None:
    """Emits the body of the adders' function."""
    ctx.root.binds = frozenset()
    ctx.line("phase = 0")
    bind_program(ctx, number(plan))
    each_tile(ctx, plan, lambda this: _addition(ctx, plan, this))


def _addition(ctx: GluonContext, plan: Plan, this: LoopPart) -> None:
    """Adds what both consumers have of a tile; in order, what one has, and tells the program that waits for it."""
    ctx.node, ctx.origin = plan.joint.output.node_id, plan.joint.output.origin
    if plan.order is not None or plan.total.matrices is None:
        ctx.line(f"at = {plan.row_of_total(ctx, this)}")
    if plan.order is None:
        lines = _adding(ctx, plan, this, range(CONSUMERS))
    else:
        lines = _adding_in_order(ctx, plan, this, plan.order)
    for line in (*lines, "phase ^= 1"):
        ctx.line(line)


def _adding_in_order(ctx: GluonContext, plan: Plan, this: LoopPart, order: str) -> list[str]:
    """The same for one consumer, between the programs before and after."""
    counter = f"{ctx.pointers[order]} + at * {CONSUMERS} + {ADDER}"
    adding = _adding(ctx, plan, this, (ADDER,))
    if plan.finish is not None:
        adding = [
            f"if {ctx.index(ir.Name(plan.joint.row))} == {plan.finish.blocks - 1}:",
            *(f"    {line}" for line in _loading(ctx, plan, this)),
            "else:",
            *(f"    {line}" for line in adding),
        ]
        row = f"{plan.before(ctx, this)} + 1"
    else:
        row = ctx.index(ir.Arith("+", ir.Name(plan.joint.row), ir.Int(1)))
    before = f"{ctx.helper('_await')}({counter}, {plan.before(ctx, this)})"
    return [before, *adding, f"{ctx.helper('_tell')}({counter}, {row})"]


def _adding(ctx: GluonContext, plan: Plan, this: LoopPart, consumers: Iterable[int | str]) -> list[str]:
    """Adds what consumers have to the total, or stores it there, if the first row block does."""
    lines: list[str] = []
    for n in consumers:
        lines.append(f"mbarrier.wait({plan.staged}.index({n}), phase)")
        given = f"({plan.total.parameter}, [{plan.place_in_total(ctx, this, n)}], {plan.stage}.index({n}))"
        added = f"{ctx.helper('_add_out')}{given}"
        if plan.finish is None:
            lines.append(added)
        else:
            lines.append(f"if {ctx.index(ir.Name(plan.joint.row))} == 0:")
            lines += [f"    {ctx.helper('_copy_out')}{given}", "else:", f"    {added}"]
    lines.append("tma.store_wait(0)")
    return lines + [f"mbarrier.arrive({plan.freed}.index({n}), count=1)" for n in consumers]


def _loading(ctx: GluonContext, plan: Plan, this: LoopPart) -> list[str]:
    """Loads the total for a consumer, and waits until it has read it."""
    loaded, into = f"{plan.loaded}.index({ADDER})", f"{plan.stage}.index({ADDER})"
    place = f"[{plan.place_in_total(ctx, this, ADDER)}]"
    return [
        f"mbarrier.expect({loaded}, {plan.total.parameter}.block_type.nbytes)",
        f"{ctx.helper('_copy_in')}({plan.total.parameter}, {place}, {loaded}, {into})",
        f"mbarrier.wait({plan.staged}.index({ADDER}), phase)",
    ]


def _place(ctx: GluonContext, access: ir.Access) -> tuple[str, str]:
    """A tile's descriptor, and its row and column there."""
    found = host_descriptor(ctx, access)
    if found is None:
        raise UnsupportedKernel(f"the copy engine cannot load tiles of {access.tensor}, or they leave the tensor")
    return found[0].parameter, ", ".join(found[1])


__all__ = ["ADDER", "CONSUMERS", "TICKET", "each_tile", "emit_adder", "emit_producer", "number"]
