"""The nests of a definition, one after the other: each is scheduled in one tile, rolling, or split."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import networkx as nx

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph
from neptune_lab.loop_ir.names import loop_names, unique
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.walks import variables
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import NestPlan, parallelism, plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.combine import combine
from neptune_lab.loop_schedule.templates.common import (
    bind_grid,
    check_plan,
    extent_of,
    finish,
    note_refusal,
    outer_first,
    placed,
    retire_all,
    row_tile,
    run_single_block_in_order,
    start_contraction,
    start_outside,
    tile_contraction,
    tile_loops,
    tile_nest,
)
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.loop_schedule.templates.fusing import (
    fuse_epilogue,
    fuse_into_loop,
    fuse_maps_beside,
    fuse_prologue,
    maps_read_behind,
    second_pass_in_order,
)
from neptune_lab.loop_schedule.templates.nest_config import nest_configs
from neptune_lab.loop_schedule.templates.nest_shape import (
    NestConfig,
    has_few_rows,
    has_product,
    is_vector_product,
)
from neptune_lab.loop_schedule.templates.output_columns import tile_output_columns
from neptune_lab.loop_schedule.templates.splits import splits_of
from neptune_lab.loop_schedule.templates.template_state import TemplateState, blocks_of_later_nests


def schedule_nests(sch: Schedule, config: TileConfig, *, split: bool) -> None:
    """Applies a whole template: schedules every nest of the plan, then takes the deferred steps.

    Args:
        sch: the schedule of a definition, without steps.
        config: tile sizes and launch hints.
        split: splits nests whose programs would not fill the GPU; otherwise all of them roll.

    Raises:
        ScheduleError: the definition has no reduction, or a nest has no parallel axis.
    """
    nests = plan(sch.program, pad_rows=config.pad_rows)
    check_plan(sch, nests)
    for nest in nests:
        _check_parallel(sch, nest)  # before the first step, since most unsupported definitions are refused here
    state = TemplateState(sch.program, config, nests, nest_configs(sch.program, nests, config))
    n = 0
    while n < len(state.nests):
        state.replan(n, sch)
        if n == len(state.nests):
            break
        # TVM keeps no loop for a single program, so a nest without parallel axes needs its rolling loop.
        if state.configs[n].one_tile and state.nests[n].parallel_axes and not state.nests[n].serial_axes:
            schedule_in_one_tile(sch, state, n)
        elif split:
            schedule_split(sch, state, n, config.multiprocessors)
        else:
            schedule_rolling(sch, state, n)
        n += 1
    for step in state.deferred:
        step()
    # Retiring tags makes several blocks write one buffer; TVM then refuses to move blocks, so this is last too.
    retire_all(sch)
    for loop in _still_there(sch, state.rolling_loops):
        start_outside(sch, loop)
        run_single_block_in_order(sch, loop)
    for contraction in state.contractions:
        start_contraction(sch, contraction)
    finish(sch, state.hints, config.matrix_unit)


def _still_there(sch: Schedule, loops: Iterable[str]) -> list[str]:
    """The loops that a block still has: TVM makes its loops anew where it is moved into a later nest."""
    return [loop for loop in loops if loop in sch.loops(loop_ref(loop)[0])]


def schedule_rolling(sch: Schedule, state: TemplateState, n: int) -> None:
    """Schedules nest number `n` with one rolling loop over the tiles of its reduce axis.

    A reduction that cannot be fused starts a nest of its own, together with those after it.

    Args:
        sch: the schedule.
        state: the nests, and what is deferred.
        n: number of the nest.

    Raises:
        ScheduleError: the nest's reductions have no parallel axis in common.
    """
    nest, config = state.nests[n], state.configs[n]
    steps, nests = len(sch.steps), (state.nests, state.configs)
    _check_parallel(sch, nest)
    loop = tile_nest(sch, nest, config)
    contraction = tile_contraction(sch, nest, config, loop.partition(".")[2])
    outermost = f"{nest.first}.{nest.serial_axes[0]}" if nest.serial_axes else loop
    grid = bind_grid(sch, nest.first, outside=loop_ref(outermost)[1], axes=2 if config.block_out else 3)
    fuse_into_loop(sch, nest, loop)
    if nest.serial_axes:
        for block in nest.reductions:
            sch.fuse_under(block, loop)  # nothing that they read is incomplete, so there is nothing to repair
    left = () if nest.serial_axes else _roll(sch, nest, loop)
    if left:
        state.insert(n, plan(sch.base, left, placed=placed(sch, state.start)))
    if again := maps_read_behind(sch, nest, left, blocks_of_later_nests(sch, state, n)):
        sch.back_to(steps)
        for name in again:
            sch.inline(name)
        state.nests, state.configs = nests
        state.replan(n, sch)
        return schedule_rolling(sch, state, n)
    if grid is not None and not nest.serial_axes:
        fuse_maps_beside(sch, nest, loop)
    fuse_prologue(sch, nest, grid, _rolling(state))
    second_passes = fuse_epilogue(sch, nest, nest.first, grid, blocks_of_later_nests(sch, state, n), rolling=loop)
    fuse_prologue(sch, nest, grid, _rolling(state))
    for name in second_passes:
        second_pass_in_order(sch, name, config.block_kv)
    state.rolling_loops.append(outermost)
    _finish_later(sch, state, nest, config, contraction)


def _roll(sch: Schedule, nest: NestPlan, loop: str) -> tuple[str, ...]:
    """Fuses the nest's reductions into its rolling loop, in order: those that are left for a later loop.

    After the first that is refused, one is fused only if it does not need those that are left, and another reduction of
    the nest needs it: then that one finds it complete in the later loop.
    """
    flow, left = graph(sch.base), list[str]()
    for block in nest.reductions:
        if left and (nx.ancestors(flow, block) & {*left} or not nx.descendants(flow, block) & {*nest.reductions}):
            left.append(block)
            continue
        try:
            sch.rolling_update(block, loop)
        except ScheduleError as error:
            note_refusal(sch, f"{block} starts a loop of its own: {error.reason}", error)
            left.append(block)
    return tuple(left)


def _finish_later(
    sch: Schedule, state: TemplateState, nest: NestPlan, config: NestConfig, contraction: str | None
) -> None:
    state.deferred.append(partial(tile_output_columns, sch, nest, config))
    state.contractions += [contraction] if contraction else []
    state.hints[nest.first] = (config.num_warps, config.num_stages)


def _check_parallel(sch: Schedule, nest: NestPlan) -> None:
    """Raises ScheduleError if the reductions of a nest have parallel axes but none in common: a single program would
    have to compute everything."""
    if nest.parallel_axes or not nest.reductions:
        return
    blocks = [tree.find_block(sch.base, name)[1] for name in (nest.first, *nest.reductions)]
    for block in blocks:
        own = [it.name for it in block.iters if it.kind == "spatial" and it.extent > 1 and it.name != nest.reduce_axis]
        if own and reducer_of(block) is not None:
            raise ScheduleError(
                f"{', '.join(b.name for b in blocks)} have no independent dimension in common: if they were fused, one "
                f"program would compute all of {', '.join(own)} of {block.name!r}",
                node=block.name,
                help="schedule them separately: cut before the block that reads the others",
            )


def _rolling(state: TemplateState) -> frozenset[str]:
    """The blocks that own a rolling loop."""
    return frozenset(loop_ref(loop)[0] for loop in state.rolling_loops)


def schedule_in_one_tile(sch: Schedule, state: TemplateState, n: int) -> None:
    """Schedules nest number `n` with its whole reduce axis in one tile.

    Every reduction is complete when it is read, so nothing is repaired.

    Args:
        sch: the schedule.
        state: the nests, and what is deferred.
        n: number of the nest.
    """
    nest, config = state.nests[n], state.configs[n]
    rows = row_tile(sch, nest, config.block_q)
    outer_first(sch, nest, tile_loops(sch, nest.first, rows) if rows else {})
    names = [loop_ref(ref)[1] for ref in sch.loops(nest.first)]
    grid = bind_grid(sch, nest.first, outside=names[len(nest.parallel_axes)], axes=2 if config.block_out else 3)
    assert grid is not None
    contraction = tile_contraction(sch, nest, config, loop_ref(grid)[1])
    fuse_into_loop(sch, nest, grid)
    fuse_maps_beside(sch, nest, grid)
    second_passes = fuse_epilogue(sch, nest, nest.first, grid, blocks_of_later_nests(sch, state, n), nest.reductions)
    fuse_prologue(sch, nest, grid, one_tile=True)
    for name in second_passes:
        second_pass_in_order(sch, name, config.block_kv)
    kernel = tree.find_block(sch.program, nest.first)[0][0]
    left = tuple(b for b in nest.reductions if tree.find_block(sch.program, b)[0][0] != kernel)
    if left:
        sch.remark(f"{', '.join(left)} cannot be fused into the kernel of {nest.first}.")
        state.insert(n, plan(sch.base, left, placed=placed(sch, state.start)))
    _finish_later(sch, state, nest, config, contraction)


def schedule_split(sch: Schedule, state: TemplateState, n: int, multiprocessors: int) -> None:
    """Schedules nest number `n` split, or rolling if one split is enough or a reduction cannot be combined from splits.

    Args:
        sch: the schedule.
        state: the nests, and what is deferred.
        n: number of the nest.
        multiprocessors: of the GPU.

    Raises:
        ScheduleError: the nest's reductions have no parallel axis in common.
    """
    nest, config = state.nests[n], state.configs[n]
    programs = parallelism(sch.base, nest, config.block_q)
    if config.splits == 1 or nest.serial_axes:
        schedule_rolling(sch, state, n)
        return
    if config.splits is None and len(state.nests) > 1 and programs >= multiprocessors:
        sch.remark(f"The nest of {nest.first} rolls instead of being split: {programs} programs fill the GPU.")
        schedule_rolling(sch, state, n)
        return
    before = len(sch.steps)
    try:
        _split(sch, state, n, multiprocessors)
    except ScheduleError as error:
        sch.back_to(before)
        note_refusal(sch, f"The nest of {nest.first} rolls instead of being split: {error.reason}", error)
        schedule_rolling(sch, state, n)


def _split(sch: Schedule, state: TemplateState, n: int, multiprocessors: int) -> None:
    nest, config = state.nests[n], state.configs[n]
    first = nest.first
    count, tiles_per_split = splits_of(sch.base, nest, config, multiprocessors)
    if tiles_per_split == 1:
        tile = split = tile_nest(sch, nest, config).partition(".")[2]
    else:
        split, tile = _tile_splits(sch, nest, config, count, tiles_per_split)
    contraction = tile_contraction(sch, nest, config, tile)
    fuse_into_loop(sch, nest, f"{first}.{tile}")
    local, made = first, []
    for block in nest.reductions:
        made.append(sch.split_k_update(block, f"{local}.{split}")[0])
        if sch.has_block(f"{first}_local"):
            local = f"{first}_local"
    if local == first and _folds(sch, first, split):
        local = sch.privatize_reduction(f"{first}.{split}")
    if tiles_per_split > 1:
        for block in made:
            sch.rolling_update(block, f"{local}.{tile}")
    names = [loop_ref(ref)[1] for ref in sch.loops(local)]
    grid = bind_grid(sch, local, outside=names[names.index(split) + 1], axes=2 if config.block_out else 3)
    fuse_prologue(sch, nest, grid, _rolling(state))
    combining, tile_columns, warps = combine(sch, nest, config, count, blocks_of_later_nests(sch, state, n))
    state.deferred += [partial(tile_output_columns, sch, nest, config), tile_columns]
    state.rolling_loops += [f"{local}.{tile}"] if tiles_per_split > 1 else []
    if contraction and loop_ref(contraction)[0] == first:  # (the loops of a private result are those of `local`)
        contraction = f"{local}.{loop_ref(contraction)[1]}"
    state.contractions += [contraction] if contraction else []
    state.hints[local] = (config.num_warps, config.num_stages)
    state.hints[combining] = (warps, None)


def _tile_splits(sch: Schedule, nest: NestPlan, config: NestConfig, splits: int, tiles: int) -> tuple[str, str]:
    """The reduce axis of the nest's first block in `splits` splits of `tiles` tiles, and its rows tiled: the names of
    the loops over splits and over tiles.

    A split has tiles that follow each other.  Those of few rows on matrix units are dealt to splits in turn, so that
    all have equally many of the tiles that a mask leaves: on an H200, decoding in a window of 1024 of 16384
    keys that a tensor moves takes 16 us so, and 24 to 31 with tiles that follow each other.
    """
    axis = nest.reduce_axis
    size = min(config.block_kv, extent_of(sch, nest.first, axis))
    taken = loop_names(*sch.program.body) - {axis}
    names = [unique(f"{axis}{end}", taken, "_") for end in ("s", "0", "1")]
    split, tile, inner = names
    if has_few_rows(nest) and has_product(sch.base, nest) and not is_vector_product(sch.base, nest):
        sch.split(f"{nest.first}.{axis}", (tiles, splits, size), names=[tile, split, inner])
    else:
        sch.split(f"{nest.first}.{axis}", (splits, tiles, size), names=names)
    rows = row_tile(sch, nest, config.block_q)
    outer_first(sch, nest, tile_loops(sch, nest.first, rows) if rows else {}, split, tile)
    return split, tile


def _folds(sch: Schedule, block: str, loop: str) -> bool:
    """Whether the block is a reduction that folds along the loop."""
    iters = tree.find_block(sch.program, block)[1].iters
    return any(it.kind == "reduce" and loop in variables(it.binding) for it in iters)


__all__ = ["schedule_in_one_tile", "schedule_nests", "schedule_rolling", "schedule_split"]
