"""The plan that templates carry out: which blocks of a definition share a loop nest, and along which axis they reduce.

A definition is a chain of maps and reductions.  Reductions that depend on each other and fold the same dimension can
share a loop along it (paper, 4.2).  That dimension is the *reduce axis* of the nest; its elements are the *columns* of
a tile.  `loop_ir.dimensions` says which iteration variables of the blocks are one dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import networkx as nx

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph
from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.nodes import Block, Program
from neptune_lab.loop_ir.products import is_product
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_schedule.row_axis import batch_size, row_axis_of


@dataclass(frozen=True, slots=True)
class NestPlan:
    """The blocks and axes of one loop nest. An axis is the name of an iteration variable of `first`.

    Args:
        first: the block under whose loops the others are fused.
        reduce_axis: the axis that the reductions fold: it becomes the rolling loop, or is split.
        parallel_axes: the axes that every reduction of the nest has, outermost first; their iterations are independent.
        row_axis: the parallel axis that is tiled too; None: each iteration is a program of its own.
        row_size: the tile size that `row_axis` must have: the heads of a group, or 16 for a padded single row; None:
            any size.
        maps: maps of what `first` computes, which the reductions read, in order.
        independent_maps: maps along the reduce axis that come after `first` and do not depend on it, such as a map of
            another input.
        auxiliary_reductions: reductions that have the reduce axis, fold another one and feed the rest, such as a
            squared norm per row.
        reductions: the reductions other than `first` that fold the reduce axis, in order.
        padded: the tile of rows is larger than the extent of `row_axis`.
        serial_axes: axes of `first` that every reduction folds beside the reduce axis, such as the heads of a group
            whose gradients of keys are summed. They become loops around the one over tiles.
        column_axis: an axis of `first` that another reduction lacks, such as the features in a sum of rows beside their
            count; its tiles are divided among programs, each of which folds the other reductions again.
    """

    first: str
    reduce_axis: str
    parallel_axes: tuple[str, ...]
    row_axis: str | None
    row_size: int | None
    maps: tuple[str, ...]
    independent_maps: tuple[str, ...]
    auxiliary_reductions: tuple[str, ...]
    reductions: tuple[str, ...]
    padded: bool = False
    column_axis: str | None = None
    serial_axes: tuple[str, ...] = ()


# The fewest rows that a matrix unit multiplies.
SMALLEST_ROWS = 16
# Elements of `column_axis` per program.
COLUMN_TILE = 64
# Two parts share a nest only if a row of a program keeps at most so many float32 values of both: 64 rows of them take
# 128 registers of each thread of 4 warps, half of what it has.
MOST_ACCUMULATORS = 256


def plan(
    program: Program,
    only: Collection[str] | None = None,
    *,
    placed: Collection[str] = (),
    pad_rows: bool = False,
) -> tuple[NestPlan, ...]:
    """The nests of a definition, in order. Blocks that no reduction needs or feeds are in none.

    Args:
        program: the definition, before any step.
        only: the reductions to plan for; None: all.
        placed: blocks of nests that exist already. No nest takes them again; it reads what they write.
        pad_rows: pads a nest with a single row to 16 rows.

    Returns:
        One plan per nest, in the order of their first blocks.
    """
    dims = dimensions(program)
    blocks = {b.name: b for b in tree.blocks(program)}
    flow = graph(program)
    above = {name: nx.ancestors(flow, name) & blocks.keys() for name in blocks}
    reductions = [b for b in blocks.values() if reducer_of(b) is not None]
    reduce_axes = _reduce_axes(dims, reductions, above)
    wanted = [b for b in reductions if b.name in reduce_axes and (only is None or b.name in only)]
    if only is None:
        wanted = [b for b in wanted if not _is_epilogue(flow, b, reduce_axes)]
    free = {name: b for name, b in blocks.items() if name not in placed}
    chains = _chains(dims, flow, blocks, wanted, above, reduce_axes)
    nests = [_nest(dims, flow, free, above, reduce_axes, chain) for chain in chains]
    order = {name: n for n, name in enumerate(blocks)}
    if pad_rows:
        nests = [_padded(blocks, nest) for nest in nests]
    return tuple(sorted(nests, key=lambda nest: order[nest.first]))


def _padded(blocks: Mapping[str, Block], nest: NestPlan) -> NestPlan:
    """The nest with 16 rows if it has none: rows of the one-element axis that only one factor of its product has."""
    first = blocks[nest.first]
    if nest.row_axis is not None or not is_product(first):
        return nest
    single = [name for name in nest.parallel_axes if first.iter(name).extent == 1 and not batch_size(first, name)]
    return replace(nest, row_axis=single[-1], row_size=SMALLEST_ROWS, padded=True) if single else nest


def _is_epilogue(flow: nx.DiGraph, block: Block, reduce_axes: Mapping[str, Dimension]) -> bool:
    """Whether a reduction folds nothing but what other nests compute: it can follow in their kernel.

    Formal statement: it depends on no input and on no stage of positions alone, other than through reductions.
    """
    sources = {block.name, *_own_sources(flow, block.name, reduce_axes)}
    return all(flow.in_degree(source) for source in sources)


def _own_sources(flow: nx.DiGraph, name: str, reduce_axes: Mapping[str, Dimension]) -> set[str]:
    """Blocks and inputs that a reduction depends on, up to the reductions that have a reduce axis."""
    sources: set[str] = set()
    waiting = [name]
    while waiting:
        for source in flow.predecessors(waiting.pop()):
            if source not in reduce_axes and source not in sources:
                sources.add(source)
                waiting.append(source)
    return sources


def _chains(
    dims: Dimensions,
    flow: nx.DiGraph,
    blocks: Mapping[str, Block],
    reductions: list[Block],
    above: dict[str, set[str]],
    reduce_axes: dict[str, Dimension],
) -> list[list[Block]]:
    """Reductions that share a nest. They have one reduce axis, and depend on each other, or read the same inputs; then
    those of one part have all parallel axes of the others, and if the part with fewer comes later, a stage combines
    the results of both, such as a sum and a count whose quotient is a mean.  Parts that both accumulate products,
    with more than `MOST_ACCUMULATORS` elements of a row together, stay apart."""
    together = nx.Graph()
    together.add_nodes_from(b.name for b in reductions)
    for b in reductions:
        together.add_edges_from(
            (b.name, a) for a in above[b.name] if a in together and reduce_axes[a] == reduce_axes[b.name]
        )
    by_name = {b.name: b for b in reductions}
    parts = [[by_name[name] for name in part] for part in nx.connected_components(together)]
    merged: list[list[Block]] = []
    for part in sorted(parts, key=len, reverse=True):
        for other in merged:
            same_axis = reduce_axes[part[0].name] == reduce_axes[other[0].name]
            if not same_axis or not (
                _common_spatial_dimensions(dims, other) <= _common_spatial_dimensions(dims, part)
                or _narrows(dims, flow, other, part, reduce_axes)
                or _read_one_product(dims, blocks, other, part, above, reduce_axes)
            ):
                continue
            kept = [_accumulators(dims, blocks) for blocks in (part, other)]
            if all(kept) and sum(kept) > MOST_ACCUMULATORS:
                continue
            if _inputs(flow, part, reduce_axes) & _inputs(flow, other, reduce_axes):
                other.extend(part)
                break
        else:
            merged.append(part)
    order = {b.name: n for n, b in enumerate(reductions)}
    return [sorted(members, key=lambda b: order[b.name]) for members in merged]


def _read_one_product(
    dims: Dimensions,
    blocks: Mapping[str, Block],
    one: Sequence[Block],
    other: Sequence[Block],
    above: Mapping[str, set[str]],
    reduce_axes: Mapping[str, Dimension],
) -> bool:
    """Whether both parts need one matrix product along their reduce axis, which a nest of each would compute again:
    the gradients of keys and values, which both need the scores; or that of queries and a sum of each row of scores.

    Formal statement: all are products; or those of `one` are, and `other` has no parallel axis that `one` lacks.
    """
    if not all(is_product(b) for b in one):
        return False
    if not all(is_product(b) for b in other) and not _common_spatial_dimensions(
        dims, other
    ) <= _common_spatial_dimensions(dims, one):
        return False
    axis = reduce_axes[one[0].name]
    needed = [set.union(*(above[b.name] for b in part)) for part in (one, other)]
    both = (blocks[name] for name in set.intersection(*needed))
    return any(is_product(b) and axis in dims.all_of(b, "spatial") for b in both)


def _accumulators(dims: Dimensions, part: Collection[Block]) -> int:
    """Elements that the products of a part accumulate for each of its rows, if it has several reductions."""
    kept = _common_spatial_dimensions(dims, part)
    wide = [b for b in part if len(part) > 1 and is_product(b)]
    own = ([it.extent for it in b.iters if it.kind == "spatial" and dims.of(b, it.name) not in kept] for b in wide)
    return sum(prod(extents) for extents in own)


def _narrows(
    dims: Dimensions,
    flow: nx.DiGraph,
    wide: Collection[Block],
    narrow: Collection[Block],
    reduce_axes: Mapping[str, Dimension],
) -> bool:
    """Whether `narrow` has only parallel axes that `wide` has too, axes of one element aside, and a stage that is no
    reduction of another axis reads both. Products keep their axes: their rows and columns are what a tile is made of.
    """
    if any(is_product(b) for b in (*wide, *narrow)):
        return False
    long = {dims.of(b, it.name) for b in narrow for it in b.iters if it.kind == "spatial" and it.extent > 1}
    if not long or not long <= _common_spatial_dimensions(dims, wide):
        return False

    def read_by(blocks: Collection[Block]) -> set[str]:
        return {r for b in blocks for r in flow.successors(b.name) if r not in reduce_axes}

    return bool(read_by(wide) & read_by(narrow))


def _common_spatial_dimensions(dims: Dimensions, members: Iterable[Block]) -> set[Dimension]:
    return set.intersection(*(set(dims.all_of(b, "spatial")) for b in members))


def _inputs(flow: nx.DiGraph, members: Iterable[Block], reduce_axes: Mapping[str, Dimension]) -> set[str]:
    sources = {source for b in members for source in _own_sources(flow, b.name, reduce_axes)}
    return {source for source in sources if flow.nodes[source]["node"].kind == "input"}


def _nest(
    dims: Dimensions,
    flow: nx.DiGraph,
    blocks: dict[str, Block],
    above: dict[str, set[str]],
    reduce_axes: dict[str, Dimension],
    chain: list[Block],
) -> NestPlan:
    """The nest of one chain. Its first block is the first one along the reduce axis that the first reduction needs.

    Args:
        blocks: those that no other nest has.
    """
    axis = reduce_axes[chain[0].name]
    folding = {b.name for b in chain}
    feeding = folding.union(*(_own_sources(flow, b.name, reduce_axes) for b in chain))
    elsewhere = {name for name, other in reduce_axes.items() if other != axis}
    along = [
        b
        for b in blocks.values()
        if b.name in feeding
        and axis in dims.all_of(b)
        and not (above[b.name] & elsewhere and not above[b.name] & folding)
    ]
    # A chain whose first reduction needs one of another reduce axis has no earlier block along its own.
    first = next((b for b in along if b.name == chain[0].name or b.name in above[chain[0].name]), chain[0])
    others = [b for b in along if b.name != first.name and not above[b.name] & (folding - {first.name})]
    maps = [b.name for b in others if reducer_of(b) is None]
    members = [b for b in chain if b.name != first.name]
    parallel = _parallel_axes(dims, first, [first, *members], axis)
    row, size = row_axis_of(dims, first, members, parallel)
    beside = bool(members) and first.name in folding and not any(first.name in above[b.name] for b in members)
    column = _column(first, parallel, dims.all_of(first)[axis]) if beside else None
    serial = _serial_axes(dims, first, members, axis, above)
    if column is not None:
        row, size = None, None  # a program has one row, whose tile has two dimensions already
    return NestPlan(
        first=first.name,
        reduce_axis=dims.all_of(first)[axis],
        parallel_axes=parallel,
        row_axis=row,
        row_size=size,
        maps=tuple(name for name in maps if first.name in above[name] and first.name not in folding),
        independent_maps=tuple(name for name in maps if first.name not in above[name]),
        auxiliary_reductions=tuple(b.name for b in others if reducer_of(b) is not None and b.name not in folding),
        reductions=tuple(b.name for b in members),
        column_axis=column,
        serial_axes=serial,
    )


def _column(first: Block, parallel: Collection[str], reduce_axis: str) -> str | None:
    """The longest axis of a reduction without a product that is neither parallel nor folded; None if it has none."""
    own = [it for it in first.iters if it.kind == "spatial" and it.name not in (*parallel, reduce_axis)]
    longest = max(own, key=lambda it: it.extent, default=None)
    return longest.name if longest is not None and longest.extent > 1 and not is_product(first) else None


def _reduce_axes(dims: Dimensions, reductions: list[Block], above: dict[str, set[str]]) -> dict[str, Dimension]:
    """The reduce axis of each reduction that folds one, by the reduction's name.

    A dimension is a reduce axis if a reduction that folds it depends on another reduction along it.  If a reduction
    folds two of them (a max over positions and features), the one that its readers also fold counts.
    """
    by_name = {b.name: b for b in reductions}
    axes = {
        c
        for b in reductions
        for c in dims.all_of(b, "reduce")
        if any(c in dims.all_of(by_name[a]) for a in above[b.name] if a in by_name)
    }
    if not axes and reductions:
        axes = {next(reversed(dims.all_of(reductions[-1], "reduce")))}
    of_reduction = {}
    for b in reductions:
        own = [c for c in dims.all_of(b, "reduce") if c in axes]
        readers = [r for r in reductions if b.name in above[r.name]]
        shared = [c for c in own if any(c in dims.all_of(r, "reduce") for r in readers)]
        if own:
            of_reduction[b.name] = (shared or own)[0]
    return of_reduction


def _parallel_axes(dims: Dimensions, first: Block, members: Iterable[Block], axis: Dimension) -> tuple[str, ...]:
    """Axes of `first` that every member has too, so that their iterations share no result."""
    kept = [c for c in dims.all_of(first, "spatial") if c != axis]
    for member in members:
        kept = [c for c in kept if c in dims.all_of(member, "spatial")]
    return tuple(dims.all_of(first)[c] for c in kept)


def _serial_axes(
    dims: Dimensions, first: Block, members: Sequence[Block], axis: Dimension, above: Mapping[str, set[str]]
) -> tuple[str, ...]:
    """Axes of `first` that every other reduction folds beside the reduce axis; none unless all are products that do not
    read each other, since nothing is then repaired while they run."""
    names = {b.name for b in members}
    if not members or not all(is_product(b) for b in (first, *members)) or any(above[b.name] & names for b in members):
        return ()
    own = dims.all_of(first, "spatial")
    return tuple(own[c] for c in own if c != axis and all(c in dims.all_of(b, "reduce") for b in members))


def parallelism(program: Program, nest: NestPlan, rows: int) -> int:
    """How many programs a rolling nest has: its parallel iterations, `rows` of the row axis taken together.

    Args:
        program: the definition, before any step.
        nest: from `plan`.
        rows: rows per program; ignored if the nest has a fixed tile of rows.

    Returns:
        The number of programs.
    """
    _, first, _ = tree.find_block(program, nest.first)
    count = 1
    for name in nest.parallel_axes:
        extent = first.iter(name).extent
        count *= -(-extent // (nest.row_size or rows)) if name == nest.row_axis else extent
    return count * (-(-first.iter(nest.column_axis).extent // COLUMN_TILE) if nest.column_axis else 1)


__all__ = ["COLUMN_TILE", "SMALLEST_ROWS", "NestPlan", "parallelism", "plan"]
