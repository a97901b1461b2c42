"""Which blocks of a definition share a loop nest, and which dimension of it rolls: what templates are written against.

A definition is a chain of maps and reductions.  Reductions that fold the same dimension, one behind the other, can
share a loop along it (paper, 4.2): that dimension is the *column* of a nest.  `loop_ir.dimensions` says which
iterations are one dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import networkx as nx

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import graph
from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Op, Program, Var, loads, variables
from neptune_lab.loop_ir.reduction import reducer_of


@dataclass(frozen=True, slots=True)
class Nest:
    """One loop nest to be.

    Args:
        first: the block whose loops the others are fused under.
        column: the iteration of `first` that the reductions fold: the rolling loop, or the one that is split.
        grid: the iterations of `first` that every reduction of the nest keeps, outermost first; they are independent.
        row: the one of `grid` that is tiled as well; None where each iteration is a program of its own.
        row_size: the tile that `row` must have (the heads of a group, 16 where a single row is padded); None where any
            will do.
        before: maps between `first` and the reductions, in order.
        apart: maps along the column that stand behind `first` and do not depend on it (a map of a second input).
        beside: reductions that run along the column, fold another dimension and feed the rest (a squared norm a row).
        chain: reductions other than `first` that fold the column, in order.
        padded: the row tile is larger than the row's extent.
    """

    first: str
    column: str
    grid: tuple[str, ...]
    row: str | None
    row_size: int | None
    before: tuple[str, ...]
    apart: tuple[str, ...]
    beside: tuple[str, ...]
    chain: tuple[str, ...]
    padded: bool = False


# Rows that a matrix unit multiplies at least.
SMALLEST_ROWS = 16


def plan(
    program: Program,
    only: Collection[str] | None = None,
    *,
    placed: Collection[str] = (),
    pad_rows: bool = False,
) -> tuple[Nest, ...]:
    """The nests of a definition, in order; blocks that no reduction needs or feeds stay outside.

    Args:
        program: the definition, before any step.
        only: reductions to plan for, where others have their place already; None: all.
        placed: blocks that another nest has: no nest takes them again, it reads what they write.
        pad_rows: a nest with a single row gets 16 of them, the others past the end.
    """
    dims = dimensions(program)
    blocks = {b.name: b for b in tree.blocks(program)}
    flow = graph(program)
    above = {name: nx.ancestors(flow, name) & blocks.keys() for name in blocks}
    reductions = [b for b in blocks.values() if reducer_of(b) is not None]
    home = _homes(dims, reductions, above)
    wanted = [b for b in reductions if b.name in home and (only is None or b.name in only)]
    if only is None:
        wanted = [b for b in wanted if not _epilogue(program, flow, b, home)]
    free = {name: b for name, b in blocks.items() if name not in placed}
    nests = [_nest(dims, flow, free, above, home, chain) for chain in _chains(dims, flow, wanted, above, home)]
    order = {name: n for n, name in enumerate(blocks)}
    if pad_rows:
        nests = [_padded(blocks, nest) for nest in nests]
    return tuple(sorted(nests, key=lambda nest: order[nest.first]))


def _padded(blocks: Mapping[str, Block], nest: Nest) -> Nest:
    """The nest with 16 rows where it has none: those of a single query, which one factor of its product has alone."""
    first = blocks[nest.first]
    if nest.row is not None or not is_product(first):
        return nest
    single = [name for name in nest.grid if first.iter(name).extent == 1 and not _batch(first, name)]
    return replace(nest, row=single[-1], row_size=SMALLEST_ROWS, padded=True) if single else nest


def _epilogue(program: Program, flow: nx.DiGraph, block: Block, home: Mapping[str, Dimension]) -> bool:
    """Whether a reduction folds nothing but what other nests compute: it can follow in their kernel."""
    return not any(source in program.inputs for source in _own_sources(flow, block.name, home))


def _own_sources(flow: nx.DiGraph, name: str, home: Mapping[str, Dimension]) -> set[str]:
    """Blocks and inputs that a reduction depends on, up to the reductions that have a column."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for source in flow.predecessors(waiting.pop()):
            if source not in home and source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _chains(
    dims: Dimensions, flow: nx.DiGraph, reductions: list[Block], above: dict[str, set[str]], home: dict[str, Dimension]
) -> list[list[Block]]:
    """Reductions that share a nest: those of one column that depend on each other, or that read the same inputs and
    keep all dimensions that the others are independent along."""
    together = nx.Graph()
    together.add_nodes_from(b.name for b in reductions)
    for b in reductions:
        together.add_edges_from((b.name, a) for a in above[b.name] if a in together and home[a] == home[b.name])
    by_name = {b.name: b for b in reductions}
    parts = [[by_name[name] for name in part] for part in nx.connected_components(together)]
    merged: list[list[Block]] = []
    for part in sorted(parts, key=len, reverse=True):
        for other in merged:
            same = home[part[0].name] == home[other[0].name] and _kept(dims, other) <= _kept(dims, part)
            if same and _inputs(flow, part, home) & _inputs(flow, other, home):
                other.extend(part)
                break
        else:
            merged.append(part)
    order = {b.name: n for n, b in enumerate(reductions)}
    return [sorted(members, key=lambda b: order[b.name]) for members in merged]


def _kept(dims: Dimensions, members: Iterable[Block]) -> set[Dimension]:
    return set.intersection(*(set(dims.all_of(b, "spatial")) for b in members))


def _inputs(flow: nx.DiGraph, members: Iterable[Block], home: Mapping[str, Dimension]) -> set[str]:
    found = {source for b in members for source in _own_sources(flow, b.name, home)}
    return {source for source in found if flow.nodes[source]["node"].kind == "input"}


def _nest(
    dims: Dimensions,
    flow: nx.DiGraph,
    blocks: dict[str, Block],
    above: dict[str, set[str]],
    home: dict[str, Dimension],
    chain: list[Block],
) -> Nest:
    """The nest of one chain: its first block is the first one along the column that the first reduction needs.

    Args:
        blocks: those that no other nest has.
    """
    column = home[chain[0].name]
    late = {b.name for b in chain}
    feeding = late.union(*(_own_sources(flow, b.name, home) for b in chain))
    elsewhere = {name for name, other in home.items() if other != column}
    along = [
        b
        for b in blocks.values()
        if b.name in feeding
        and column in dims.all_of(b)
        and not (above[b.name] & elsewhere and not above[b.name] & late)
    ]
    # A chain whose head waits for a reduction of another column has nothing along its own before it.
    first = next((b for b in along if b.name == chain[0].name or b.name in above[chain[0].name]), chain[0])
    others = [b for b in along if b.name != first.name and not above[b.name] & (late - {first.name})]
    maps = [b.name for b in others if reducer_of(b) is None]
    beside = [b.name for b in others if reducer_of(b) is not None and b.name not in late]
    before = [name for name in maps if first.name in above[name] and first.name not in late]
    members = [b for b in chain if b.name != first.name]
    grid = _grid(dims, first, [first, *members], column)
    row, size = _row(dims, first, members, grid)
    return Nest(
        first.name,
        dims.all_of(first)[column],
        grid,
        row,
        size,
        tuple(before),
        tuple(name for name in maps if first.name not in above[name]),
        tuple(beside),
        tuple(b.name for b in members),
    )


def _homes(dims: Dimensions, reductions: list[Block], above: dict[str, set[str]]) -> dict[str, Dimension]:
    """The column of each reduction that folds one.

    A dimension is a column where a reduction folds it that depends on another reduction running along it.  Where a
    reduction folds two columns (a max over positions and features), the one that its readers fold as well counts.
    """
    by_name = {b.name: b for b in reductions}
    columns = {
        c
        for b in reductions
        for c in dims.all_of(b, "reduce")
        if any(c in dims.all_of(by_name[a]) for a in above[b.name] if a in by_name)
    }
    if not columns and reductions:
        columns = {next(reversed(dims.all_of(reductions[-1], "reduce")))}
    home = {}
    for b in reductions:
        mine = [c for c in dims.all_of(b, "reduce") if c in columns]
        readers = [r for r in reductions if b.name in above[r.name]]
        shared = [c for c in mine if any(c in dims.all_of(r, "reduce") for r in readers)]
        if mine:
            home[b.name] = (shared or mine)[0]
    return home


def _grid(dims: Dimensions, first: Block, members: Iterable[Block], column: Dimension) -> tuple[str, ...]:
    """Iterations of `first` that every member keeps: no two of their values meet."""
    kept = [c for c in dims.all_of(first, "spatial") if c != column]
    for member in members:
        kept = [c for c in kept if c in dims.all_of(member, "spatial")]
    return tuple(dims.all_of(first)[c] for c in kept)


def _row(dims: Dimensions, first: Block, members: list[Block], grid: tuple[str, ...]) -> tuple[str | None, int | None]:
    """The innermost grid dimension that can be a tile's rows, and the size it must have.

    A dimension that both factors of a matrix product run along is a batch dimension: its products are separate.  A
    head that reads one of a few key heads as `h // group` is one only from group to group, so the heads of a group can
    be rows (that is how decode, with one query a head, fills the rows of a product).
    """
    for name in reversed(grid):
        if first.iter(name).extent == 1:
            continue
        groups = {_batch(b, _name_in(dims, first, name, b)) for b in (first, *members)}
        groups.discard(0)
        if not groups:
            return name, None
        if len(groups) == 1 and (group := groups.pop()) > 1 and first.iter(name).extent % group == 0:
            return name, group
    return None, None


def _name_in(dims: Dimensions, first: Block, name: str, block: Block) -> str:
    return dims.all_of(block)[dims.of(first, name)]


def factors_of(block: Block) -> tuple[Expr, Expr] | None:
    """The two factors of the product that a block sums up; None where it is no sum of products."""
    if not block.is_reduction or not isinstance(block.body.value, Op):
        return None
    term = block.body.value.args[1]
    while isinstance(term, Cast):
        term = term.arg
    return (term.args[0], term.args[1]) if isinstance(term, Op) and term.name == "mul" else None


def _walked(factor: Expr) -> set[str]:
    return {v for read in loads(factor) for i in read.indices for v in variables(i)}


def is_product(block: Block) -> bool:
    """Whether a block is a matrix product: a sum of products, each factor along a dimension that the other lacks."""
    if (factors := factors_of(block)) is None:
        return False
    spatial = {it.name for it in block.iters if it.kind == "spatial"}
    left, right = map(_walked, factors)
    return bool((left - right) & spatial and (right - left) & spatial)


def _batch(block: Block, name: str) -> int:
    """0 where `name` is no batch dimension of a product; 1 where it is; n where only `name // n` is."""
    if not is_product(block):
        return 0
    factors = factors_of(block)
    assert factors is not None
    if not all(name in _walked(factor) for factor in factors):
        return 0
    found = [_grouped(side, name) for side in factors]
    return max(found) if min(found) == 1 else 1


def _grouped(side: Expr, name: str) -> int:
    """n where every read under `side` has `name` only as `name // n`; 1 otherwise."""
    sizes = set()
    for read in loads(side):
        for index in read.indices:
            if name not in variables(index):
                continue
            match index:
                case Op("floordiv", (Var(found), Const(int(size)))) if found == name:
                    sizes.add(size)
                case _:
                    return 1
    return sizes.pop() if len(sizes) == 1 else 1


def parallelism(program: Program, nest: Nest, rows: int) -> int:
    """How many program instances a rolling nest has with tiles of `rows` rows: its independent iterations."""
    _, first, _ = tree.find_block(program, nest.first)
    count = 1
    for name in nest.grid:
        extent = first.iter(name).extent
        count *= -(-extent // (nest.row_size or rows)) if name == nest.row else extent
    return count


__all__ = ["SMALLEST_ROWS", "Nest", "factors_of", "is_product", "parallelism", "plan"]
