"""What whole schedules share: tiles that fit, the grid, what joins a nest before and after its loop, what stays on
chip."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import Dimensions, dimensions
from neptune_lab.loop_ir.nodes import Block, Program, bound_loops, reads, variables
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import Nest
from neptune_lab.loop_schedule.schedule import Schedule

P = ParamSpec("P")

# A loop that holds one block is a dimension of its tile, unless it says that it runs in order.
SEQUENTIAL = "sequential"


def all_or_nothing(
    template: Callable[Concatenate[Schedule, P], Schedule],
) -> Callable[Concatenate[Schedule, P], Schedule]:
    """A template that refuses leaves the schedule as it was."""

    @wraps(template)
    def applied(sch: Schedule, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        before = len(sch.steps)
        try:
            return template(sch, *args, **kwargs)
        except NeptuneError:
            sch.back_to(before)
            raise

    return applied


def extent_of(sch: Schedule, block: str, var: str) -> int:
    """Iterations of the loop `var` around `block`."""
    return tree.find_loop(sch.program, block, var)[1].extent


def row_tile(sch: Schedule, nest: Nest, block_q: int) -> dict[str, int]:
    """The tile size of the nest's rows, by loop name; empty where rows are not tiled."""
    if nest.row is None or (extent := extent_of(sch, nest.first, nest.row)) == 1:
        return {}
    return {nest.row: min(nest.row_size or block_q, extent)}


def tile_nest(sch: Schedule, nest: Nest, block_q: int, block_kv: int) -> str:
    """The loops of the nest's first block tiled, the grid outermost, then the loop over column tiles: its name.

    No tile is larger than its loop.  The column is always tiled, since its outer loop is the one to fuse under.
    """
    columns = min(block_kv, extent_of(sch, nest.first, nest.column))
    sch.tile(nest.first, **row_tile(sch, nest, block_q), **{nest.column: columns})
    outer_first(sch, nest, f"{nest.column}0")
    return f"{nest.first}.{nest.column}0"


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


def outer_first(sch: Schedule, nest: Nest, *columns: str) -> None:
    """The nest's grid loops outermost, then the loops `columns`, then all others as they were."""
    names = [loop_ref(ref)[1] for ref in sch.loops(nest.first)]
    put_outermost(sch, nest.first, *(name if name in names else f"{name}0" for name in nest.grid), *columns)


def bind_grid(sch: Schedule, block: str, *, outside: str) -> str | None:
    """Binds the loops of `block` outside its loop `outside` to the grid, the innermost along x: the innermost one.

    A grid has three axes: where there are more loops, the outermost are fused.  None where there is no such loop.
    """
    names = [loop_ref(ref)[1] for ref in sch.loops(block)]
    grid = names[: names.index(outside)]
    if len(grid) > 3:
        fused = sch.fuse(block, *grid[: len(grid) - 2])
        grid = [loop_ref(fused)[1], *grid[-2:]]
    for var, axis in zip(reversed(grid), "xyz", strict=False):
        sch.bind(f"{block}.{var}", f"blockIdx.{axis}")
    return f"{block}.{grid[-1]}" if grid else None


def join(sch: Schedule, nest: Nest, loop: str) -> None:
    """What the reductions need tile by tile joins the loop: maps of what the first block computes, and reductions of
    other dimensions (a squared norm a row).  Maps of other tensors are written into their readers."""
    for block in nest.apart:
        sch.inline(block)
    for block in nest.beside:
        sch.fuse_under(block, loop)
    for block in nest.before:
        _first_that_works(sch.reverse_compute_at, sch.fuse_under)(block, loop)


def fuse_before(sch: Schedule, nest: Nest, grid: str | None) -> None:
    """What only this nest reads, and needs before its loop, moves into its kernel; where TVM refuses, it stays."""
    if grid is None:
        return
    at = tree.find_block(sch.program, nest.first)[0][0]
    while at > 0:
        candidates = tree.blocks_under(sch.program.body[at - 1])
        here = {b.name for b in tree.blocks_under(sch.program.body[at])}
        at -= 1
        if len(candidates) == 1 and _readers(sch.program, candidates[0]) <= here:
            _first_that_works(sch.compute_at)(candidates[0].name, grid)


def _readers(program: Program, block: Block) -> set[str]:
    if block.writes in program.outputs:
        return {""}
    return {b.name for b in tree.blocks(program) if b.name != block.name and reads(b, block.writes)} or {""}


def fuse_after(sch: Schedule, anchor: str, grid: str | None, block_kv: int, later: frozenset[str]) -> None:
    """What only needs what is computed by then moves into the kernel of `anchor`; where that is refused, it stays.

    One that runs along the column again (a normalised row) walks it in tiles of `block_kv`.

    Args:
        later: blocks that other nests are planned to take.
    """
    if grid is None:
        return
    dims = dimensions(sch.definition)
    columns = _columns(sch.definition, dims)
    for name in sch.blocks:
        position = tree.find_block(sch.program, anchor)[0][0]
        path, block, _ = tree.find_block(sch.program, name)
        here = {b.name for b in tree.blocks_under(sch.program.body[position])}
        if path[0] <= position or name in later:
            continue
        sources = {b.name for b in tree.blocks(sch.program) if b.name != name and reads(block, b.writes)}
        behind = {b.name for stmt in sch.program.body[position + 1 :] for b in tree.blocks_under(stmt)}
        if not sources & here or sources & behind:
            continue
        if reducer_of(block) is not None:
            if sources <= here:
                _first_that_works(sch.fuse_under)(name, grid)
        elif columns.get(name) and not _whole(sch.definition, dims, columns[name], block, here):
            _again(sch, name, grid, columns[name], block_kv)
        else:
            _first_that_works(sch.reverse_compute_at, sch.fuse_under)(name, grid)


def _whole(definition: Program, dims: Dimensions, columns: tuple[str, ...], block: Block, here: set[str]) -> bool:
    """Whether what the map reads of this nest has those dimensions too, so that it does not walk a loop again."""
    sources = [b for b in tree.blocks(definition) if b.name in here and reads(block, b.writes)]
    return all(any(dims.of(block, name) in dims.all_of(b, "spatial") for b in sources) for name in columns)


def _first_that_works(*primitives: Callable[[str, str], None]) -> Callable[[str, str], bool]:
    """The primitives tried in turn; whether one was accepted."""

    def attempt(block: str, loop: str) -> bool:
        for primitive in primitives:
            try:
                primitive(block, loop)
            except ScheduleError:
                continue
            return True
        return False

    return attempt


def _again(sch: Schedule, name: str, grid: str, columns: tuple[str, ...], block_kv: int) -> None:
    """A map that walks the column a second time: written into its readers, or, for an output, in tiles, in order."""
    if tree.find_block(sch.program, name)[1].writes not in sch.program.outputs:
        sch.inline(name)
        return
    if not _first_that_works(sch.fuse_under, sch.reverse_compute_at)(name, grid):
        return
    _, _, loops = tree.find_block(sch.program, name)
    own = [loop for loop in loops if len(tree.blocks_under(loop)) == 1]
    for loop in own:
        if f"{loop.var.removesuffix('0')}1" in {x.var for x in own} and loop.var.endswith("0"):
            run_in_order(sch, name, loop.var)
        elif loop.var in columns and loop.extent > block_kv:
            sch.split(f"{name}.{loop.var}", (None, block_kv))
            run_in_order(sch, name, f"{loop.var}0")


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


def _columns(definition: Program, dims: Dimensions) -> dict[str, tuple[str, ...]]:
    """For each map of the definition, its iterations along dimensions that some reduction folds."""
    folded = {c for b in tree.blocks(definition) for c in dims.all_of(b, "reduce")}
    return {
        b.name: tuple(name for c, name in dims.all_of(b).items() if c in folded)
        for b in tree.blocks(definition)
        if reducer_of(b) is None
    }


def retire_all(sch: Schedule) -> None:
    """Every scan buffer becomes a previous and a current value."""
    for name in sch.blocks:
        block = tree.find_block(sch.program, name)[1]
        if block.role == "scan" and sch.program.buffer(block.writes).tagged:
            sch.retire_tags(name)


def start_outside(sch: Schedule, loop: str) -> None:
    """Start values of the reductions that fold along `loop` are written before it."""
    _, var = loop_ref(loop)
    for block in tree.blocks_under(tree.find_loop(sch.program, *loop_ref(loop))[1]):
        folds = any(it.kind == "reduce" and var in variables(it.binding) for it in block.iters)
        if folds and block.init is not None:
            sch.decompose_reduction(block.name, f"{block.name}.{var}")


def finish(sch: Schedule, block_q: int, block_kv: int, num_warps: int | None, num_stages: int | None) -> None:
    """Kernels for what stands alone, memory for what stays on chip, and the launch hints on every kernel."""
    for stmt in sch.program.body:
        first = tree.blocks_under(stmt)[0].name
        if not any(loop.kind != "serial" for loop in tree.find_block(sch.program, first)[2]):
            _own_kernel(sch, first, block_q, block_kv)
    keep_on_chip(sch)
    for stmt in sch.program.body:
        block = tree.blocks_under(stmt)[0].name
        if not sch.loops(block):
            continue
        for key, value in (("num_warps", num_warps), ("num_stages", num_stages)):
            if value is not None:
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
    if tiles:
        sch.tile(name, **tiles)
    outer = [*grid, *(f"{var}0" for var in tiles)]
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


def planned_later(nests: tuple[Nest, ...], done: int) -> frozenset[str]:
    """Blocks of the nests after number `done`."""
    return frozenset(x for nest in nests[done + 1 :] for x in (nest.first, *nest.before, *nest.beside, *nest.chain))


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
    "fuse_after",
    "fuse_before",
    "join",
    "keep_on_chip",
    "outer_first",
    "planned_later",
    "put_outermost",
    "retire_all",
    "row_tile",
    "run_in_order",
    "start_contraction",
    "start_outside",
    "tile_contraction",
    "tile_nest",
]
