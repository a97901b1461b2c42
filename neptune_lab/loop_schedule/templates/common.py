"""Groups of steps that templates share: tiling, binding to the grid, loops that run in order, on-chip buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from math import prod
from typing import Concatenate, ParamSpec

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.annotations import SEQUENTIAL
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.products import is_product
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import folded_loops, reads, variables
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.normalising import changes_loops
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.matrix_units import held
from neptune_lab.loop_schedule.templates.nest_defaults import LONGEST_CONTRACTION, contraction_tile
from neptune_lab.loop_schedule.templates.nest_reads import is_read_whole
from neptune_lab.loop_schedule.templates.nest_shape import COLUMNS, ROWS, NestConfig
from neptune_lab.strict.console import shown

P = ParamSpec("P")


def all_or_nothing(
    template: Callable[Concatenate[Schedule, P], Schedule],
) -> Callable[Concatenate[Schedule, P], Schedule]:
    """The template, which signs its steps, and restores the schedule if it refuses or is interrupted."""

    @wraps(template)
    def applied(sch: Schedule, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        if not isinstance(sch, Schedule):
            raise ScheduleError(
                f"{template.__name__} takes a Schedule, got {shown(sch)}",
                help=f'nl.Schedule(op) makes one; nl.compile(op, "{template.__name__}") does both',
            )
        before = len(sch.steps)
        try:
            made = template(sch, *args, **kwargs)
        except BaseException as error:  # Ctrl-C too
            sch.back_to(before)
            if isinstance(error, ScheduleError) and any(map(changes_loops, sch.steps)):
                raise error.with_fix("a template schedules a definition: call it with a new nl.Schedule(op)") from None
            raise
        sch.attribute(template.__name__, before)
        return made

    return applied


def note_refusal(sch: Schedule, text: str, refusal: NeptuneError) -> None:
    """Adds a remark about a refused step, with the phases that the step went through."""
    sch.remark(text)
    sch.preface(tuple(getattr(refusal, "phases", ())))


def placed(sch: Schedule, start: Program) -> frozenset[str]:
    """Blocks that have changed since the program `start`: fused, tiled or inlined."""

    def loops_of(program: Program) -> dict[str, tuple[tuple[str, int, str], ...]]:
        """The loops of each block that is alone in its nest."""
        single = [stmt for stmt in program.body if len(tree.blocks_under(stmt)) == 1]
        names = [tree.blocks_under(stmt)[0].name for stmt in single]
        return {n: tuple((x.var, x.extent, x.kind) for x in tree.find_block(program, n)[2]) for n in names}

    now, before = loops_of(sch.program), loops_of(start)
    return frozenset(name for name, loops in before.items() if now.get(name) != loops)


def extent_of(sch: Schedule, block: str, var: str) -> int:
    """The extent of the loop `var` around `block`."""
    return tree.find_loop(sch.program, block, var)[1].extent


def row_tile(sch: Schedule, nest: NestPlan, block_q: int) -> dict[str, int]:
    """The tile size of the nest's rows, by loop name; empty if rows are not tiled."""
    if nest.row_axis is None:
        return {}
    size = nest.row_size or min(block_q, extent_of(sch, nest.first, nest.row_axis))
    return {} if size == 1 else {nest.row_axis: size}


def tile_nest(sch: Schedule, nest: NestPlan, config: NestConfig) -> str:
    """Tiles the loops of the nest's first block; the parallel loops come first, then the loop over tiles of columns.

    No tile is larger than its loop.  The reduce axis is always tiled, since the other blocks are fused under its outer
    loop.

    Returns:
        The loop over tiles of columns, as "block.loop".
    """
    columns = min(config.block_kv, extent_of(sch, nest.first, nest.reduce_axis))
    made = tile_loops(sch, nest.first, {**row_tile(sch, nest, config.block_q), nest.reduce_axis: columns})
    column = made.pop(nest.reduce_axis)
    outer_first(sch, nest, made, *nest.serial_axes, column)
    return f"{nest.first}.{column}"


def tile_loops(sch: Schedule, block: str, tiles: Mapping[str, int]) -> dict[str, str]:
    """Tiles loops of a block: the outer loop of each, by the name that the loop had."""
    made = sch.tile(block, **tiles)
    return dict(zip(tiles, (loop_ref(ref)[1] for ref in made), strict=False))


def tile_contraction(sch: Schedule, nest: NestPlan, config: NestConfig, column: str) -> str | None:
    """Tiles a long axis that only the nest's first block folds (K of a product); its outer loop goes inside `column`,
    the innermost loop of the nest: that outer loop, as "block.loop"; None if the axis is short."""
    block = tree.find_block(sch.program, nest.first)[1]
    long = [it.name for it in block.iters if it.kind == "reduce" and it.extent > LONGEST_CONTRACTION]
    folded = [name for name in long if name != nest.reduce_axis]
    if len(folded) != 1 or is_read_whole(sch.base, nest, folded[0]):
        return None
    size = contraction_tile(config.block_q, config.block_kv)
    outer, _ = sch.split(f"{nest.first}.{folded[0]}", (None, size))
    names = [loop_ref(ref)[1] for ref in sch.loops(nest.first)]
    put_outermost(sch, nest.first, loop_ref(outer)[1], among=names[names.index(column) + 1 :])
    return outer


def start_contraction(sch: Schedule, loop: str) -> None:
    """Writes the start value of a tiled product before its loop over tiles, which then runs in order."""
    name, var = loop_ref(loop)
    if tree.find_block(sch.program, name)[1].init is not None:
        sch.decompose_reduction(name, loop)
    run_in_order(sch, name, var)


def put_outermost(sch: Schedule, block: str, *outer: str, among: list[str] | None = None) -> list[str]:
    """Moves the loops `outer` of `block` before its others, whose order stays.

    Args:
        among: the nested loops of the block to reorder; None: all.

    Returns:
        All of these loops, in their new order.
    """
    names = [loop_ref(ref)[1] for ref in sch.loops(block)] if among is None else among
    wanted = [*outer, *(name for name in names if name not in outer)]
    if wanted != names:
        sch.reorder(block, *wanted)
    return wanted


def outer_first(sch: Schedule, nest: NestPlan, tiled: Mapping[str, str], *columns: str) -> None:
    """Moves the nest's parallel loops outermost, then the loops `columns`; the order of all others stays.

    Args:
        tiled: the outer loop of each parallel loop that was tiled.
    """
    put_outermost(sch, nest.first, *(tiled.get(name, name) for name in nest.parallel_axes), *columns)


def bind_grid(sch: Schedule, block: str, *, outside: str, axes: int = 3) -> str | None:
    """Binds the loops of `block` around its loop `outside` to the grid, the innermost to x.

    A grid has three axes: if there are more loops than `axes`, the outermost are fused.

    Returns:
        The innermost bound loop, as "block.loop"; None if there is none.
    """
    names = [loop_ref(ref)[1] for ref in sch.loops(block)]
    grid = names[: names.index(outside)]
    if len(grid) > axes:
        fused = sch.fuse(block, *grid[: len(grid) - axes + 1])
        grid = [loop_ref(fused)[1], *grid[len(grid) - axes + 1 :]]
    for var, axis in zip(reversed(grid), "xyz", strict=False):
        sch.bind(f"{block}.{var}", f"blockIdx.{axis}")
    return f"{block}.{grid[-1]}" if grid else None


def free_axis(sch: Schedule, block: str) -> str | None:
    """The first grid axis that no loop around `block` is bound to; None if all three are taken."""
    taken = {loop.kind for loop in tree.find_block(sch.program, block)[2]}
    return next((axis for axis in ("blockIdx.x", "blockIdx.y", "blockIdx.z") if axis not in taken), None)


def run_in_order(sch: Schedule, block: str, var: str) -> None:
    """Makes the loop `var`, which contains only `block`, the outermost of such loops and annotates it as sequential."""
    _, _, loops = tree.find_block(sch.program, block)
    own = [loop.var for loop in loops if len(tree.blocks_under(loop)) == 1 and loop.kind == "serial"]
    put_outermost(sch, block, var, among=own)
    sch.annotate(f"{block}.{var}", SEQUENTIAL)


def run_single_block_in_order(sch: Schedule, loop: str) -> None:
    """Marks a rolling loop that contains a single block as running in order; otherwise it would become a tile."""
    name, var = loop_ref(loop)
    if len(tree.blocks_under(tree.find_loop(sch.program, name, var)[1])) == 1:
        run_in_order(sch, name, var)


def retire_all(sch: Schedule) -> None:
    """Reduces every scan buffer to a previous and a current value."""
    for name in sch.blocks:
        block = tree.find_block(sch.program, name)[1]
        if block.role is Role.SCAN and sch.program.buffer(block.writes).tagged:
            sch.retire_tags(name)


def start_outside(sch: Schedule, loop: str) -> None:
    """Writes the start values of the reductions that fold along `loop` before it."""
    _, var = loop_ref(loop)
    for block in tree.blocks_under(tree.find_loop(sch.program, *loop_ref(loop))[1]):
        folds = any(it.kind == "reduce" and var in variables(it.binding) for it in block.iters)
        if folds and block.init is not None:
            sch.decompose_reduction(block.name, f"{block.name}.{var}")


def finish(
    sch: Schedule,
    hints: Mapping[str, tuple[int | None, int | None]],
    matrix_unit: str,
    *,
    fuse_maps: bool = True,
) -> None:
    """Schedules the blocks that no nest contains as kernels of their own, keeps internal buffers on chip, and annotates
    the launch hints.

    Args:
        sch: the schedule.
        hints: num_warps and num_stages of the kernel that contains each of these blocks; None: the emitter's default.
        matrix_unit: of the GPU.
        fuse_maps: whether the map that alone reads a reduction moves into the reduction's kernel.
    """
    for first in [tree.blocks_under(stmt)[0].name for stmt in sch.program.body]:
        _, _, loops = tree.find_block(sch.program, first)
        if not any(loop.kind != "serial" for loop in loops):
            _own_kernel(sch, first, matrix_unit)
            if fuse_maps:
                _fuse_map_of(sch, first)
    keep_on_chip(sch)
    for block, hint in hints.items():
        for key, value in zip(("num_warps", "num_stages"), hint, strict=True):
            if value is not None and sch.loops(block):
                sch.annotate(sch.loops(block)[0], key, value)


def _own_kernel(sch: Schedule, name: str, matrix_unit: str) -> None:
    """Schedules a block that no nest contains as a kernel: tiles its last two parallel loops, binds the others to the
    grid."""
    _, block, loops = tree.find_block(sch.program, name)
    if len(tree.blocks_under(loops[0] if loops else block)) > 1:
        return
    folded = folded_loops(block)
    free = [loop for loop in loops if loop.var not in folded and loop.extent > 1][-2:]
    extents = (1, 1, *(loop.extent for loop in free))[-2:]
    sizes = min(ROWS, extents[0]), min(COLUMNS, extents[1])
    if not is_product(block):
        sizes = held(*sizes, prod(loop.extent for loop in loops if loop.var in folded), matrix_unit)
    tiles = {loop.var: size for loop, size in zip(free, sizes[2 - len(free) :], strict=True) if size > 1}
    grid = [loop.var for loop in loops if loop.var not in folded and loop.var not in tiles]
    made = tile_loops(sch, name, tiles) if tiles else {}
    outer = [*grid, *made.values()]
    cut = _cut_contraction(sch, name, [*tiles.values()])
    ordered = put_outermost(sch, name, *outer, *([loop_ref(cut)[1]] if cut else []))
    if outer and len(ordered) > len(outer):
        bind_grid(sch, name, outside=ordered[len(outer)])
    if cut:
        start_contraction(sch, cut)


def _cut_contraction(sch: Schedule, name: str, sizes: list[int]) -> str | None:
    """Tiles the axis that a product of two tiles sums over, if it is long: its operands would not fit shared memory.

    Args:
        sizes: of the tile of the product.

    Returns:
        Its outer loop, as "block.loop"; None if nothing is cut.
    """
    block = tree.find_block(sch.program, name)[1]
    folded = [it.name for it in block.iters if it.kind == "reduce"]
    if not is_product(block) or reducer_of(block) != "sum" or len(sizes) < 2 or len(folded) != 1:
        return None
    if block.iter(folded[0]).extent <= LONGEST_CONTRACTION:
        return None
    return sch.split(f"{name}.{folded[0]}", (None, contraction_tile(*sizes)))[0]


def _fuse_map_of(sch: Schedule, name: str) -> None:
    """Moves the map that alone reads a reduction, such as its rounding, into the reduction's kernel, unless that is
    refused."""
    _, block, loops = tree.find_block(sch.program, name)
    grid = [loop.var for loop in loops if loop.kind != "serial"]
    readers = [b for b in tree.blocks(sch.program) if b.name != name and reads(b, block.writes)]
    if reducer_of(block) is None or not grid or len(readers) != 1 or block.writes in sch.program.outputs:
        return
    (reader,) = readers
    sources = {b.writes for b in tree.blocks(sch.program) if reads(reader, b.writes)}
    alone = len(tree.blocks_under(sch.program.body[tree.find_block(sch.program, reader.name)[0][0]])) == 1
    if reducer_of(reader) is None and sources == {block.writes} and alone:
        with suppress(ScheduleError):
            sch.reverse_compute_at(reader.name, f"{name}.{grid[-1]}")


def keep_on_chip(sch: Schedule) -> None:
    """Puts every internal buffer that a single kernel uses on chip."""
    for block in tree.blocks(sch.program):
        buffer = sch.program.buffer(block.writes)
        if buffer.name not in sch.program.params and buffer.scope == "global" and _one_kernel(sch.program, buffer.name):
            sch.set_scope(block.name, "local")


def _one_kernel(program: Program, buffer: str) -> bool:
    uses = [any(b.writes == buffer or reads(b, buffer) for b in tree.blocks_under(nest)) for nest in program.body]
    return sum(uses) == 1


def check_plan(sch: Schedule, nests: tuple[NestPlan, ...]) -> None:
    """Raises ScheduleError if the definition has no reduction."""
    if not nests:
        raise ScheduleError(
            f"{sch.operator.name} has no reduction: there is nothing to fuse",
            help="write the schedule step by step, for example sch.tile(…), sch.bind(…), sch.inline(…)",
        )


__all__ = [
    "SEQUENTIAL",
    "all_or_nothing",
    "bind_grid",
    "check_plan",
    "extent_of",
    "finish",
    "free_axis",
    "note_refusal",
    "outer_first",
    "placed",
    "put_outermost",
    "retire_all",
    "row_tile",
    "run_in_order",
    "run_single_block_in_order",
    "start_contraction",
    "start_outside",
    "tile_contraction",
    "tile_nest",
]
