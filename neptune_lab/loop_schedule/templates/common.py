"""What whole schedules share: tiles that fit, the grid, loops that run in order, what stays on chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program, bound_loops, reads, variables
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import Nest
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.knobs import COLUMNS, ROWS, Knobs

P = ParamSpec("P")

# A loop that holds one block is a dimension of its tile, unless it says that it runs in order.
SEQUENTIAL = "sequential"


def all_or_nothing(
    template: Callable[Concatenate[Schedule, P], Schedule],
) -> Callable[Concatenate[Schedule, P], Schedule]:
    """A template that refuses, or is interrupted, leaves the schedule as it was."""

    @wraps(template)
    def applied(sch: Schedule, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        before = len(sch.steps)
        try:
            return template(sch, *args, **kwargs)
        except BaseException:  # Ctrl-C too: half a template is no schedule that anyone asked for
            sch.back_to(before)
            raise

    return applied


def note_refusal(sch: Schedule, text: str, refusal: NeptuneError) -> None:
    """A remark on a step that was refused, with the phases that the step had reached."""
    sch.remark(text)
    sch.preface(tuple(getattr(refusal, "phases", ())))


def placed(sch: Schedule, start: Program) -> frozenset[str]:
    """Blocks that are not as they were in the program `start`: fused, tiled or written into their readers."""

    def around(program: Program) -> dict[str, tuple[tuple[str, int, str], ...]]:
        alone = [stmt for stmt in program.body if len(tree.blocks_under(stmt)) == 1]
        names = [tree.blocks_under(stmt)[0].name for stmt in alone]
        return {n: tuple((x.var, x.extent, x.kind) for x in tree.find_block(program, n)[2]) for n in names}

    now, before = around(sch.program), around(start)
    return frozenset(name for name, loops in before.items() if now.get(name) != loops)


def extent_of(sch: Schedule, block: str, var: str) -> int:
    """Iterations of the loop `var` around `block`."""
    return tree.find_loop(sch.program, block, var)[1].extent


def row_tile(sch: Schedule, nest: Nest, block_q: int) -> dict[str, int]:
    """The tile size of the nest's rows, by loop name; empty where rows are not tiled."""
    if nest.row is None:
        return {}
    size = nest.row_size or min(block_q, extent_of(sch, nest.first, nest.row))
    return {} if size == 1 else {nest.row: size}


def tile_nest(sch: Schedule, nest: Nest, knobs: Knobs) -> str:
    """The loops of the nest's first block tiled, the grid outermost, then the loop over column tiles: its name.

    No tile is larger than its loop.  The column is always tiled, since its outer loop is the one to fuse under.
    """
    columns = min(knobs.block_kv, extent_of(sch, nest.first, nest.column))
    made = tile_loops(sch, nest.first, {**row_tile(sch, nest, knobs.block_q), nest.column: columns})
    column = made.pop(nest.column)
    outer_first(sch, nest, made, column)
    return f"{nest.first}.{column}"


def tile_loops(sch: Schedule, block: str, tiles: Mapping[str, int]) -> dict[str, str]:
    """Tiles loops of a block; the name of the outer loop of each, by the name that it had."""
    made = sch.tile(block, **tiles)
    return dict(zip(tiles, (loop_ref(ref)[1] for ref in made), strict=False))


# A product over more than this is summed up in tiles of CONTRACTION: its operands would fill a multiprocessor.
LONGEST_CONTRACTION = 256
CONTRACTION = 128


def tile_contraction(sch: Schedule, nest: Nest, column: str) -> str | None:
    """A long dimension that the nest's first block folds by itself (K of a product) runs in tiles inside `column`, the
    innermost loop of the nest: its loop; None where it is short."""
    block = tree.find_block(sch.program, nest.first)[1]
    long = [it.name for it in block.iters if it.kind == "reduce" and it.extent > LONGEST_CONTRACTION]
    folded = [name for name in long if name != nest.column]
    if len(folded) != 1:
        return None
    outer, _ = sch.split(f"{nest.first}.{folded[0]}", (None, CONTRACTION))
    names = [loop_ref(ref)[1] for ref in sch.loops(nest.first)]
    put_outermost(sch, nest.first, loop_ref(outer)[1], among=names[names.index(column) + 1 :])
    return outer


def start_contraction(sch: Schedule, loop: str) -> None:
    """The start value of a product that is summed up in tiles is written before them, and they run in order."""
    name, var = loop_ref(loop)
    if tree.find_block(sch.program, name)[1].init is not None:
        sch.decompose_reduction(name, loop)
    run_in_order(sch, name, var)


def put_outermost(sch: Schedule, block: str, *outer: str, among: list[str] | None = None) -> list[str]:
    """The loops `outer` of `block` before its others, which stay as they were: all of them, in their new order.

    Args:
        among: nested loops of the block that are to be put in order; None: all.
    """
    names = [loop_ref(ref)[1] for ref in sch.loops(block)] if among is None else among
    wanted = [*outer, *(name for name in names if name not in outer)]
    if wanted != names:
        sch.reorder(block, *wanted)
    return wanted


def outer_first(sch: Schedule, nest: Nest, tiled: Mapping[str, str], *columns: str) -> None:
    """The nest's grid loops outermost, then the loops `columns`, then all others as they were.

    Args:
        tiled: the outer loop of each grid loop that was tiled.
    """
    put_outermost(sch, nest.first, *(tiled.get(name, name) for name in nest.grid), *columns)


def bind_grid(sch: Schedule, block: str, *, outside: str, axes: int = 3) -> str | None:
    """Binds the loops of `block` outside its loop `outside` to the grid, the innermost along x: the innermost one.

    A grid has three axes: where there are more loops than `axes`, the outermost are fused.  None where there is no
    such loop.
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
    """The first grid axis that no loop around `block` is bound to; None where all three are taken."""
    taken = {found.kind for found in tree.find_block(sch.program, block)[2]}
    return next((axis for axis in ("blockIdx.x", "blockIdx.y", "blockIdx.z") if axis not in taken), None)


def run_in_order(sch: Schedule, block: str, var: str) -> None:
    """The loop `var`, which only `block` is in, goes outside its other own loops and is no dimension of its tile."""
    _, _, loops = tree.find_block(sch.program, block)
    own = [loop.var for loop in loops if len(tree.blocks_under(loop)) == 1 and loop.kind == "serial"]
    put_outermost(sch, block, var, among=own)
    sch.annotate(f"{block}.{var}", SEQUENTIAL)


def alone_in_order(sch: Schedule, loop: str) -> None:
    """A rolling loop in which one block is left runs in order all the same."""
    name, var = loop_ref(loop)
    if len(tree.blocks_under(tree.find_loop(sch.program, name, var)[1])) == 1:
        run_in_order(sch, name, var)


def retire_all(sch: Schedule) -> None:
    """Every scan buffer becomes a previous and a current value."""
    for name in sch.blocks:
        block = tree.find_block(sch.program, name)[1]
        if block.role is Role.SCAN and sch.program.buffer(block.writes).tagged:
            sch.retire_tags(name)


def start_outside(sch: Schedule, loop: str) -> None:
    """Start values of the reductions that fold along `loop` are written before it."""
    _, var = loop_ref(loop)
    for block in tree.blocks_under(tree.find_loop(sch.program, *loop_ref(loop))[1]):
        folds = any(it.kind == "reduce" and var in variables(it.binding) for it in block.iters)
        if folds and block.init is not None:
            sch.decompose_reduction(block.name, f"{block.name}.{var}")


def finish(sch: Schedule, hints: Mapping[str, tuple[int | None, int | None]]) -> None:
    """Kernels for what stands alone, memory for what stays on chip, and the launch hints.

    Args:
        hints: num_warps and num_stages of the kernel that each of these blocks is in; None: the emitter's.
    """
    for stmt in sch.program.body:
        first = tree.blocks_under(stmt)[0].name
        if not any(loop.kind != "serial" for loop in tree.find_block(sch.program, first)[2]):
            _own_kernel(sch, first, ROWS, COLUMNS)
    keep_on_chip(sch)
    for block, hint in hints.items():
        for key, value in zip(("num_warps", "num_stages"), hint, strict=True):
            if value is not None and sch.loops(block):
                sch.annotate(sch.loops(block)[0], key, value)


def _own_kernel(sch: Schedule, name: str, block_q: int, block_kv: int) -> None:
    """A block that no nest took, as a kernel: its last two independent loops tiled, all others on the grid."""
    _, block, loops = tree.find_block(sch.program, name)
    if len(tree.blocks_under(loops[0] if loops else block)) > 1:
        return
    folded = bound_loops(it for it in block.iters if it.kind == "reduce")
    free = [loop.var for loop in loops if loop.var not in folded and loop.extent > 1]
    sizes = zip(reversed(free), (block_kv, block_q), strict=False)
    tiles = {var: min(size, extent_of(sch, name, var)) for var, size in reversed(list(sizes))}
    grid = [loop.var for loop in loops if loop.var not in folded and loop.var not in tiles]
    made = tile_loops(sch, name, tiles) if tiles else {}
    outer = [*grid, *made.values()]
    ordered = put_outermost(sch, name, *outer)
    if outer and len(ordered) > len(outer):
        bind_grid(sch, name, outside=ordered[len(outer)])


def keep_on_chip(sch: Schedule) -> None:
    """Every internal buffer that a single kernel touches lives on chip."""
    for block in tree.blocks(sch.program):
        buffer = sch.program.buffer(block.writes)
        if buffer.name not in sch.program.params and buffer.scope == "global" and _one_kernel(sch.program, buffer.name):
            sch.set_scope(block.name, "local")


def _one_kernel(program: Program, buffer: str) -> bool:
    touching = [
        n
        for n, nest in enumerate(program.body)
        if any(b.writes == buffer or reads(b, buffer) for b in tree.blocks_under(nest))
    ]
    return len(touching) == 1


def check_plan(sch: Schedule, nests: tuple[Nest, ...]) -> None:
    """There is a reduction to schedule around."""
    if not nests:
        raise ScheduleError(
            f"{sch.operator.name} has no reduction: there is nothing to fuse",
            help="write the schedule step by step: tile, bind, inline",
        )


__all__ = [
    "SEQUENTIAL",
    "all_or_nothing",
    "alone_in_order",
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
    "start_contraction",
    "start_outside",
    "tile_contraction",
    "tile_nest",
]
