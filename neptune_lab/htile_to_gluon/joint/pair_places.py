"""Where the kernel of two nests stores pairs, and the warp that adds them to those of the samples before."""

from __future__ import annotations

from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import tile_dims
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.joint.finish import REACHED
from neptune_lab.htile_to_gluon.joint.form import CONSUMERS, KEYS
from neptune_lab.htile_to_gluon.joint.pair_sums import TAKEN
from neptune_lab.htile_to_gluon.joint.plan import Plan, flat_place
from neptune_lab.htile_to_gluon.joint.producer import each_tile, number
from neptune_lab.htile_to_gluon.joint.vectors import columns_of
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import LoopPart
from neptune_lab.htile_to_gluon.tile_schedule import bind_program
from neptune_lab.htile_to_triton.context import ADD, sizes_of
from neptune_lab.wrapping import call


def place_in_pairs(ctx: GluonContext, plan: Plan, this: LoopPart, consumer: int | str) -> str:
    """Where a consumer stores its pairs of a tile: a row and a column, or a matrix, a row and a column."""
    pairs = plan.joint.pairs
    assert pairs is not None
    assert plan.pairs is not None
    shape, heads = sizes_of(ctx.program.tensor(pairs.tensor)), plan.joint.heads
    if pairs.summed is not None:
        shape, heads = ((*of[: pairs.summed], *of[pairs.summed + 1 :]) for of in (shape, heads))
    queries = columns_of(this).start
    keys = next(i for i in tile_dims(this.leading[0].store.target.index) if isinstance(i, ir.Slice)).start
    column = f"{ctx.index(keys, ADD)} + {consumer} * {ROWS}"
    if plan.pairs.matrices is None:
        return f"{flat_place(ctx, shape[:-1], (*heads, queries))}, {column}"
    return f"{flat_place(ctx, shape[:-2], heads)}, {ctx.index(queries)}, {column}"


def part_of_pairs(plan: Plan, turn: str, consumer: int | str) -> str:
    """The shared memory from which a consumer's pairs are stored."""
    assert plan.pairs is not None
    dim = 1 if plan.pairs.matrices is None else 2
    return f"{plan.apart or f'{plan.turns}.index({turn})'}.slice({consumer} * {ROWS}, {ROWS}, dim={dim})"


def stores_from_registers(program: ir.Program, plan: Plan) -> bool:
    """Whether consumers can store pairs of float32 from their registers: all tiles are whole, and none is added up."""
    pairs = plan.joint.pairs
    if pairs is None or not plan.apart or pairs.summed is not None:
        return False
    (*_, queries, keys) = shape = program.tensor(pairs.tensor).shape
    return queries % plan.queries == 0 and keys % KEYS == 0 and prod(shape) < REACHED


def store_from_registers(ctx: GluonContext, plan: Plan, this: LoopPart, consumer: str) -> None:
    """Stores a consumer's pairs of a tile: of eight keys that are neighbours in memory, four threads have one each."""
    pairs = plan.joint.pairs
    assert pairs is not None
    shape = sizes_of(ctx.program.tensor(pairs.tensor))
    keys = next(i for i in tile_dims(this.leading[0].store.target.index) if isinstance(i, ir.Slice)).start
    at = flat_place(ctx, shape, (*plan.joint.heads, columns_of(this).start, keys))
    pointer = f"{ctx.pointers[pairs.stored_in]} + ({at} + {consumer} * {ROWS})"
    ctx.node, ctx.origin = pairs.statement.node_id, pairs.statement.origin
    length = ctx.program.tensor(pairs.tensor).shape[-1]
    ctx.line(call(ctx.helper("_store_columns"), pointer, ctx.tiles[pairs.unrounded], str(length)))


def emit_pair_adder(ctx: GluonContext, plan: Plan) -> None:
    """Emits the body of the function of the warp that adds pairs, of one sample after another."""
    ctx.root.binds = frozenset()
    ctx.line("phase = 0")
    bind_program(ctx, number(plan))
    each_tile(ctx, plan, lambda this: _addition(ctx, plan, this))


def _addition(ctx: GluonContext, plan: Plan, this: LoopPart) -> None:
    """Adds the pairs of a tile, once the sample before has; those of the first are stored."""
    pairs = plan.joint.pairs
    assert pairs is not None
    assert pairs.summed is not None
    assert plan.pairs is not None
    ctx.node, ctx.origin = pairs.statement.node_id, pairs.statement.origin
    sample = ctx.index(plan.joint.heads[pairs.summed])
    counter = _counter(ctx, plan, this, pairs.summed)
    ctx.line(f"{ctx.helper('_await')}({counter}, {sample})")
    for n in range(CONSUMERS):
        given = plan.pairs.parameter, f"[{place_in_pairs(ctx, plan, this, n)}]", part_of_pairs(plan, "0", n)
        ctx.line(f"mbarrier.wait({plan.pairs_staged}.index({n}), phase)")
        ctx.line(f"if {sample} == 0:")
        ctx.line("    " + _call(ctx.helper("_copy_out"), given))
        ctx.line("else:")
        ctx.line("    " + _call(ctx.helper("_add_out"), given))
    ctx.line("tma.store_wait(0)")
    for n in range(CONSUMERS):
        ctx.line(f"mbarrier.arrive({plan.pairs_freed}.index({n}), count=1)")
    ctx.line(f"{ctx.helper('_tell')}({counter}, {sample} + 1)")
    ctx.line("phase ^= 1")


def _call(function: str, given: tuple[str, ...]) -> str:
    """A call on one line."""
    return f"{function}({', '.join(given)})"


def _counter(ctx: GluonContext, plan: Plan, this: LoopPart, summed: int) -> str:
    """The pointer to how many samples have added their pairs of a tile: of the first sample, in a row of the tile."""
    assert plan.order is not None
    shape = sizes_of(ctx.program.tensor(plan.order))
    heads = (*plan.joint.heads[:summed], ir.Int(0), *plan.joint.heads[summed + 1 :])
    row = ir.Arith("+", columns_of(this).start, ir.Arith("+", ir.Name(plan.joint.row), ir.Int(TAKEN)))
    at = flat_place(ctx, shape[:-1], (*heads, row))
    return f"{ctx.pointers[plan.order]} + ({at}) * {CONSUMERS}"


__all__ = ["emit_pair_adder", "part_of_pairs", "place_in_pairs", "store_from_registers", "stores_from_registers"]
