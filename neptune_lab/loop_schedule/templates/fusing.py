"""What joins the loop of a nest, what is computed before it in its kernel, and what follows there."""

from __future__ import annotations

from collections.abc import Callable, Collection

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import Dimensions, dimensions
from neptune_lab.loop_ir.nodes import Block, Loop, Program, reads
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.plan import Nest
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.common import run_in_order


def join(sch: Schedule, nest: Nest, loop: str) -> None:
    """What the reductions need tile by tile joins the loop: maps of what the first block computes, and reductions of
    other dimensions (a squared norm a row).  Maps of other tensors are written into their readers."""
    for block in nest.apart:
        sch.inline(block)
    for block in nest.beside:
        sch.fuse_under(block, loop)
    for block in nest.before:
        _first_that_works(*_ways_in(sch, nest))(block, loop)


def _ways_in(sch: Schedule, nest: Nest) -> list[Callable[[str, str], None]]:
    """How a map joins a loop, the preferred way first: TVM leaves rows past the end of a padded tile out, ours keeps
    the tiles of all blocks alike."""
    ways = [sch.reverse_compute_at, sch.fuse_under]
    return ways[::-1] if nest.padded else ways


def fuse_before(
    sch: Schedule, nest: Nest, grid: str | None, rolling: Collection[str] = (), *, whole: bool = False
) -> None:
    """What only this nest reads, and needs before its loop, moves into its kernel; where TVM refuses, it stays.

    Args:
        rolling: blocks that have a rolling loop already: moved, each program would need their whole row in one tile.
        whole: the column is one tile; otherwise what runs along it stays, since the loop reads it tile by tile.
    """
    if grid is None:
        return
    dims = dimensions(sch.definition)
    column = dims.of(tree.find_block(sch.definition, nest.first)[1], nest.column)
    along = {b.name for b in tree.blocks(sch.definition) if column in dims.all_of(b, "spatial")}
    at = tree.find_block(sch.program, nest.first)[0][0]
    while at > 0:
        candidates = tree.blocks_under(sch.program.body[at - 1])
        here = {b.name for b in tree.blocks_under(sch.program.body[at])}
        at -= 1
        if len(candidates) != 1 or candidates[0].name in rolling:
            continue
        if not whole and candidates[0].name in along:
            continue
        if _readers(sch.program, candidates[0]) <= here:
            _first_that_works(sch.compute_at, sch.fuse_under)(candidates[0].name, grid)


def _readers(program: Program, block: Block) -> set[str]:
    if block.writes in program.outputs:
        return {""}
    return {b.name for b in tree.blocks(program) if b.name != block.name and reads(b, block.writes)} or {""}


def fuse_after(
    sch: Schedule, nest: Nest, anchor: str, grid: str | None, later: frozenset[str], members: Collection[str] = ()
) -> tuple[str, ...]:
    """What only needs what is computed by then moves into the kernel of `anchor`; where that is refused, it stays.

    Args:
        later: blocks that other nests are planned to take.
        members: reductions that may come too, though they read what another kernel computed.

    Returns:
        Outputs that run along the whole column once more (a normalised row), for `recompute_over_column`.
    """
    if grid is None:
        return ()
    dims = dimensions(sch.definition)
    columns = _columns(sch.definition, dims)
    again: list[str] = []
    for name in sch.blocks:
        position = tree.find_block(sch.program, anchor)[0][0]
        path, block, _ = tree.find_block(sch.program, name)
        here = {b.name for b in tree.blocks_under(sch.program.body[position])}
        if path[0] <= position or name in later:
            continue
        sources = {b.name for b in tree.blocks(sch.program) if b.name != name and reads(block, b.writes)}
        behind = {b.name for stmt in sch.program.body[position + 1 :] for b in tree.blocks_under(stmt)}
        if sources & behind or not (sources & here or name in members):
            continue
        if reducer_of(block) is not None:
            if sources <= here or name in members:
                _first_that_works(sch.fuse_under)(name, grid)
        elif columns.get(name) and not _whole(sch.definition, dims, columns[name], block, here):
            again += _again(sch, name, grid)
        else:
            _first_that_works(*_ways_in(sch, nest))(name, grid)
    return tuple(again)


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


def _again(sch: Schedule, name: str, grid: str) -> tuple[str, ...]:
    """A map that walks the column a second time is written into its readers; an output is fused, and returned."""
    if tree.find_block(sch.program, name)[1].writes not in sch.program.outputs:
        sch.inline(name)
        return ()
    return (name,) if _first_that_works(sch.fuse_under, sch.reverse_compute_at)(name, grid) else ()


def recompute_over_column(sch: Schedule, name: str, block_kv: int) -> None:
    """An output that runs along the column once more does so in tiles of `block_kv`, in order."""
    columns = _columns(sch.definition, dimensions(sch.definition))[name]
    for loop in own_loops(sch, name):
        own = {x.var for x in own_loops(sch, name)}
        if loop.var.endswith("0") and f"{loop.var.removesuffix('0')}1" in own:
            run_in_order(sch, name, loop.var)
        elif loop.var in columns and loop.extent > block_kv:
            outer, _ = sch.split(f"{name}.{loop.var}", (None, block_kv))
            run_in_order(sch, name, loop_ref(outer)[1])


def spread_again(sch: Schedule, name: str, block_kv: int) -> str | None:
    """An output that runs along the column once more does so in programs of `block_kv` columns, which compute what
    all of them need again: the new loop; None where that is refused or the column is no longer than a tile."""
    columns = _columns(sch.definition, dimensions(sch.definition))[name]
    for loop in own_loops(sch, name):
        if loop.var in columns and loop.extent > block_kv:
            try:
                return sch.tile_outermost(f"{name}.{loop.var}", block_kv)
            except ScheduleError as error:
                sch.remark(f"{name} walks {loop.var} in order: {error.reason}")
    return None


def own_loops(sch: Schedule, name: str) -> list[Loop]:
    """The loops that only this block is in, outermost first."""
    _, _, loops = tree.find_block(sch.program, name)
    return [loop for loop in loops if len(tree.blocks_under(loop)) == 1]


def _columns(definition: Program, dims: Dimensions) -> dict[str, tuple[str, ...]]:
    """For each map of the definition, its iterations along dimensions that some reduction folds."""
    folded = {c for b in tree.blocks(definition) for c in dims.all_of(b, "reduce")}
    return {
        b.name: tuple(name for c, name in dims.all_of(b).items() if c in folded)
        for b in tree.blocks(definition)
        if reducer_of(b) is None
    }


__all__ = ["fuse_after", "fuse_before", "join", "own_loops", "recompute_over_column", "spread_again"]
