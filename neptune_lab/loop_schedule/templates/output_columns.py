"""Tiles of the columns that only the last product of a nest has (MCFuser, III-A: the deep order)."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Var
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import extent_of, free_axis
from neptune_lab.loop_schedule.templates.fusing import own_loops
from neptune_lab.loop_schedule.templates.nest_shape import NestConfig


def tile_output_columns(sch: Schedule, nest: NestPlan, config: NestConfig) -> None:
    """Tiles the columns that only the last product of the nest has by `block_out`, and binds the tiles to the grid
    (MCFuser, III-A: the deep order). Without block_out one accumulator holds them all (the flat order)."""
    if config.block_out is None:
        return
    loop = _own_column(sch, nest)
    if loop is None:
        raise ScheduleError(
            f"block_out={config.block_out}: no reduction of the nest of {nest.first!r} has columns of its own",
            node=nest.first,
            help="leave block_out out, or give None for this nest",
        )
    axis = free_axis(sch, loop_ref(loop)[0])
    assert axis is not None, "bind_grid left one"
    if extent_of(sch, *loop_ref(loop)) <= config.block_out:
        return
    try:
        tiled = sch.tile_outermost(loop, config.block_out)
    except ScheduleError as error:
        if nest.column_axis is None:
            raise
        # The planner's choice, not the caller's: some later stage needs all columns.
        sch.remark(f"The kernel of {nest.first} has all of {nest.column_axis} in one program: {error.reason}")
        return
    sch.bind(tiled, axis)


def _own_column(sch: Schedule, nest: NestPlan) -> str | None:
    """The loop of a reduction of the nest along an axis that the nest's first block does not have, or along the column
    axis of that block."""
    dims = dimensions(sch.base)
    shared = dims.all_of(tree.find_block(sch.base, nest.first)[1])
    for stage in (*reversed(nest.reductions), nest.first):
        block = tree.find_block(sch.base, stage)[1]
        own = [name for c, name in dims.all_of(block, "spatial").items() if c not in shared]
        own = [name for name in own if block.iter(name).extent > 1]
        own += [nest.column_axis] if stage == nest.first and nest.column_axis is not None else []
        folding = [
            b
            for b in tree.blocks(sch.program)
            if b.origin == stage and b.role in (Role.DEFINED, Role.LOCAL, Role.SCAN, Role.TILE)
        ]
        for b in folding:
            loops = {x.var: x for x in own_loops(sch, b.name)}
            for it in b.iters:
                if it.name in own and isinstance(it.binding, Var) and it.binding.name in loops:
                    return f"{b.name}.{it.binding.name}"
    return None
