"""Fusion of a nest's other blocks: into its loop, into its kernel before the loop, and into its kernel after it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph, reached
from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Loop, Program, Var
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.walks import loads, reads, variables, walk
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import run_in_order

# The most operations and operands of a map that a second pass computes again.
LARGEST_AGAIN = 64


def fuse_into_loop(sch: Schedule, nest: NestPlan, loop: str) -> None:
    """Fuses what the reductions need tile by tile into `loop`: maps of what the first block computes, and reductions
    over other axes (a squared norm per row).  Maps of other tensors are inlined."""
    for block in nest.independent_maps:
        sch.inline(block)
    for block in nest.auxiliary_reductions:
        sch.fuse_under(block, loop)
    for block in nest.maps:
        _first_that_works(*_ways_in(sch, nest, block, loop))(block, loop)


def maps_read_behind(sch: Schedule, nest: NestPlan, left: Collection[str], later: Collection[str]) -> tuple[str, ...]:
    """The maps in a rolling loop that a second pass behind it reads too, such as a row that is added to its own
    softmax, where the row is computed from what other kernels reduce.

    The loop has a tile of such a map at a time, so the second pass must compute it again.  Maps of inputs alone are
    left to `inline_map`.

    Args:
        sch: the schedule, whose loop holds what it can.
        nest: the nest.
        left: its reductions that the loop does not hold.
        later: blocks that other nests will contain.  A map that one of them reads is stored by the loop.

    Returns:
        Their names, in order; none if one of them reads a product of the loop, or is long.
    """
    flow, dims = graph(sch.base), dimensions(sch.base)
    blocks = {b.name: b for b in tree.blocks(sch.base)}
    axes = {name: {*dims.all_of(b)} for name, b in blocks.items() if reducer_of(b) is None}
    here = {nest.first, *nest.maps, *nest.auxiliary_reductions, *nest.reductions}
    loop = here | reached(flow, {*nest.reductions} - {*left}, against=True)
    again: list[str] = []
    for name in reversed([name for name in axes if name in loop]):
        readers = {*flow.successors(name)}
        behind = readers - loop
        if readers & {*later} or not all(axes.get(reader) == axes[name] for reader in behind):
            continue
        if behind or readers & {*again}:
            again.append(name)
    found = [name for name in reversed(again) if name in here and blocks[name].writes not in sch.base.outputs]
    sources = {name: {*flow.predecessors(name)} & blocks.keys() for name in found}
    made = {source for name in found for source in sources[name]} - {*found}
    if not made or made & here:
        return ()
    sizes = dict[str, int]()
    for name in found:
        own = sum(1 for _ in walk(blocks[name].body.value))
        sizes[name] = own + sum(sizes.get(source, 0) for source in sources[name])
    return tuple(found) if max(sizes.values()) <= LARGEST_AGAIN else ()


def fuse_maps_beside(sch: Schedule, nest: NestPlan, loop: str) -> None:
    """Fuses outputs that are maps of what the nest's first block reads into `loop`, which loads their tiles anyway: the
    sum of a row and a residual, of which the nest computes the norm.

    They have the dimensions of the first block, so each program makes the elements of its own tiles, once; in the order
    of an input that it reads, so that they are stored as they are loaded.
    """
    dims = dimensions(sch.base)
    first = tree.find_block(sch.base, nest.first)[1]
    own = [load for load in loads(first.body.value) if load.buffer in sch.base.inputs]
    read, orders = {load.buffer for load in own}, {_order(dims, first, load.indices) for load in own}
    for name in sch.blocks:
        block = tree.find_block(sch.program, name)[1]
        needed = {load.buffer for load in loads(block.body.value)}
        if block.writes not in sch.base.outputs or reducer_of(block) is not None or not needed or not needed <= read:
            continue
        order = _order(dims, block, block.body.indices)
        if order in orders and {*order} == {*dims.all_of(block)} == {*dims.all_of(first)}:
            _first_that_works(sch.fuse_under)(name, loop)


def _order(dims: Dimensions, block: Block, indices: tuple[Expr, ...]) -> tuple[Dimension | None, ...]:
    """The dimensions of a tensor's axes, in order; None of one that is indexed otherwise than by a variable."""
    return tuple(dims.of(block, index.name) if isinstance(index, Var) else None for index in indices)


def _ways_in(sch: Schedule, nest: NestPlan, name: str, loop: str) -> list[Callable[[str, str], None]]:
    """The primitives that fuse a map into a loop, the preferred one first. TVM's leaves out the rows past the end of a
    padded tile; ours keeps the tiles of all blocks alike. Ours is also first where TVM's is refused, since the loop
    does not contain all that computes what the map reads: for the first error of a process, TVM reads the symbols of
    all libraries, for a second."""
    ways = [sch.reverse_compute_at, sch.fuse_under]
    return ways[::-1] if nest.padded or _reads_from_outside(sch.program, name, loop) else ways


def _reads_from_outside(program: Program, name: str, loop: str) -> bool:
    """Whether a block reads what a block that is not in the loop computes."""
    _, block, _ = tree.find_block(program, name)
    _, found, _ = tree.find_loop(program, *loop_ref(loop))
    inside = {b.name for b in tree.blocks_under(found)}
    return any(reads(block, b.writes) and b.name not in inside for b in tree.blocks(program) if b.name != name)


def _ways_after(sch: Schedule, nest: NestPlan, name: str, grid: str) -> list[Callable[[str, str], None]]:
    """The primitives that fuse a map into the kernel after the nest's loop, the preferred one first. Ours is first
    where TVM's is refused, as in `_ways_in`.

    It refuses also a map that reads one element of what an inner loop writes (a tagged value), or, often, blocks that
    leave out the rest of a tile. Where both work, they give the same program."""
    _, block, _ = tree.find_block(sch.program, name)
    tagged = any(isinstance(index, Const) for read in loads(block.body.value) for index in read.indices)
    ragged = any(b.predicates for b in tree.blocks(sch.program))
    return [sch.fuse_under, sch.reverse_compute_at] if tagged or ragged else _ways_in(sch, nest, name, grid)


def fuse_prologue(
    sch: Schedule, nest: NestPlan, grid: str | None, rolling: Collection[str] = (), *, one_tile: bool = False
) -> None:
    """Moves what only this nest reads, and needs before its loop, into its kernel, unless both primitives refuse.

    Args:
        sch: the schedule.
        nest: the nest.
        grid: the innermost loop of the kernel that is bound to the grid; None: there is none, and nothing moves.
        rolling: blocks that own a rolling loop. They stay: after a move, each program would need their row in one tile.
        one_tile: one tile holds the whole reduce axis. Otherwise blocks with that axis stay, since the loop reads them
            tile by tile.
    """
    if grid is None:
        return
    dims = dimensions(sch.base)
    axis = dims.of(tree.find_block(sch.base, nest.first)[1], nest.reduce_axis)
    along = {b.name for b in tree.blocks(sch.base) if axis in dims.all_of(b, "spatial")}
    at = tree.find_block(sch.program, nest.first)[0][0]
    while at > 0:
        candidates = tree.blocks_under(sch.program.body[at - 1])
        here = {b.name for b in tree.blocks_under(sch.program.body[at])}
        at -= 1
        if len(candidates) != 1 or candidates[0].name in rolling:
            continue
        if not one_tile and candidates[0].name in along:
            continue
        if _read_only_by(sch.program, candidates[0], here):
            _first_that_works(sch.compute_at, sch.fuse_under)(candidates[0].name, grid)


def _read_only_by(program: Program, block: Block, names: set[str]) -> bool:
    readers = {b.name for b in tree.blocks(program) if b.name != block.name and reads(b, block.writes)}
    return block.writes not in program.outputs and bool(readers) and readers <= names


def fuse_epilogue(
    sch: Schedule,
    nest: NestPlan,
    anchor: str,
    grid: str | None,
    later: frozenset[str],
    members: Collection[str] = (),
    rolling: str | None = None,
) -> tuple[str, ...]:
    """Moves the blocks that need only what is computed by then into the kernel of `anchor`, unless they are refused.

    Args:
        sch: the schedule.
        nest: the nest.
        anchor: a block of the kernel.
        grid: the innermost loop of the kernel that is bound to the grid; None: there is none, and nothing moves.
        later: blocks that other nests will contain; they stay.
        members: reductions that may move although they also read what another kernel computes.
        rolling: the rolling loop.  A map of what it reduces tile by tile, such as a norm of each column, stays, since a
            program holds one tile of that at a time.

    Returns:
        The second passes: outputs along the reduce axis that need its complete reductions (a normalised row).
    """
    if grid is None:
        return ()
    dims = dimensions(sch.base)
    folded_axes = _folded_axes(sch.base, dims)
    second_passes: list[str] = []
    for name in sch.blocks:
        position = tree.find_block(sch.program, anchor)[0][0]
        path, block, _ = tree.find_block(sch.program, name)
        here = {b.name for b in tree.blocks_under(sch.program.body[position])}
        if path[0] <= position or name in later:
            continue
        sources = {b.name for b in tree.blocks(sch.program) if b.name != name and reads(block, b.writes)}
        after = {b.name for stmt in sch.program.body[position + 1 :] for b in tree.blocks_under(stmt)}
        if sources & after or not (sources & here or name in members):
            continue
        if rolling is not None and _reads_reduced_tiles(sch, block, rolling, here | {name}):
            continue
        if reducer_of(block) is not None:
            if sources <= here or name in members:
                _first_that_works(sch.fuse_under)(name, grid)
        elif folded_axes.get(name) and not _have_axes(sch.base, dims, folded_axes[name], block, here):
            second_passes += _fuse_second_pass(sch, name, grid)
        else:
            _first_that_works(*_ways_after(sch, nest, name, grid))(name, grid)
    return tuple(second_passes)


def _reads_reduced_tiles(sch: Schedule, block: Block, rolling: str, kernel: Collection[str]) -> bool:
    """Whether a map reads what the rolling loop has completed beside what a reduction in it makes tile by tile, and
    nothing outside the kernel and no output needs the latter, so that no memory has it."""
    if reducer_of(block) is not None:
        return False
    anchor, var = loop_ref(rolling)
    made = [b for b in tree.blocks_under(tree.find_loop(sch.program, anchor, var)[1]) if b.is_reduction]
    made = [b for b in made if reads(block, b.writes)]
    of_tiles = [b for b in made if _runs_along(b, var, "spatial") and b.writes not in sch.program.outputs]
    readers = [{b.name for b in tree.blocks(sch.program) if reads(b, of.writes)} for of in of_tiles]
    return any(_runs_along(b, var, "reduce") for b in made) and any(names <= {*kernel} for names in readers)


def _runs_along(block: Block, var: str, kind: str) -> bool:
    return any(it.kind == kind and var in variables(it.binding) for it in block.iters)


def _have_axes(definition: Program, dims: Dimensions, axes: tuple[str, ...], block: Block, here: set[str]) -> bool:
    """Whether the blocks of `here` that a map reads have these axes of it too, so that it needs no second pass."""
    sources = [b for b in tree.blocks(definition) if b.name in here and reads(block, b.writes)]
    return all(any(dims.of(block, name) in dims.all_of(b, "spatial") for b in sources) for name in axes)


def _first_that_works(*primitives: Callable[[str, str], None]) -> Callable[[str, str], bool]:
    """A function that tries the primitives in turn, and returns whether one was accepted."""

    def attempt(block: str, loop: str) -> bool:
        for primitive in primitives:
            try:
                primitive(block, loop)
            except ScheduleError:
                continue
            return True
        return False

    return attempt


def _fuse_second_pass(sch: Schedule, name: str, grid: str) -> tuple[str, ...]:
    """Inlines a map that is a second pass; an output is fused instead, and returned."""
    if tree.find_block(sch.program, name)[1].writes not in sch.program.outputs:
        sch.inline(name)
        return ()
    return (name,) if _first_that_works(sch.fuse_under, sch.reverse_compute_at)(name, grid) else ()


def second_pass_in_order(sch: Schedule, name: str, block_kv: int) -> None:
    """Makes a second pass run over tiles of `block_kv` columns, in order."""
    axes = _folded_axes(sch.base, dimensions(sch.base))[name]
    for loop in own_loops(sch, name):
        own = {x.var for x in own_loops(sch, name)}
        if loop.var.endswith("0") and f"{loop.var.removesuffix('0')}1" in own:
            run_in_order(sch, name, loop.var)
        elif loop.var in axes and loop.extent > block_kv:
            outer, _ = sch.split(f"{name}.{loop.var}", (None, block_kv))
            run_in_order(sch, name, loop_ref(outer)[1])


def second_pass_on_grid(sch: Schedule, name: str, block_kv: int) -> str | None:
    """Divides a second pass among programs of `block_kv` columns, each of which computes again what all of them need:
    the new loop; None if that is refused or a single tile holds all columns."""
    axes = _folded_axes(sch.base, dimensions(sch.base))[name]
    for loop in own_loops(sch, name):
        if loop.var in axes and loop.extent > block_kv:
            try:
                return sch.tile_outermost(f"{name}.{loop.var}", block_kv)
            except ScheduleError as error:
                sch.remark(f"{name} runs over {loop.var} in order, in one program: {error.reason}")
    return None


def own_loops(sch: Schedule, name: str) -> list[Loop]:
    """The loops that contain only this block, outermost first."""
    _, _, loops = tree.find_block(sch.program, name)
    return [loop for loop in loops if len(tree.blocks_under(loop)) == 1]


def _folded_axes(definition: Program, dims: Dimensions) -> dict[str, tuple[str, ...]]:
    """For each map of the definition, its axes that some reduction folds."""
    folded = {c for b in tree.blocks(definition) for c in dims.all_of(b, "reduce")}
    return {
        b.name: tuple(name for c, name in dims.all_of(b).items() if c in folded)
        for b in tree.blocks(definition)
        if reducer_of(b) is None
    }


__all__ = [
    "fuse_epilogue",
    "fuse_into_loop",
    "fuse_maps_beside",
    "fuse_prologue",
    "maps_read_behind",
    "own_loops",
    "second_pass_in_order",
    "second_pass_on_grid",
]
