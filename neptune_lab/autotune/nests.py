"""The loop nests of an operator as MCFuser's chains, and a candidate's tile of each loop: the input of the rules and
the model, which compile nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from neptune_lab.autotune.dag import place, trip_counts
from neptune_lab.autotune.expressions import Chain, Computation, Operand, Tiling
from neptune_lab.autotune.shared_memory import BARRIERS, OperandBuffer, copies, grouped, padded, total_bytes
from neptune_lab.choice import Choice
from neptune_lab.htile_to_triton.options import DEFAULT_STAGES, DEFAULT_WARPS
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.nodes import Block, Load, Program, Var
from neptune_lab.loop_ir.products import is_product
from neptune_lab.loop_ir.reduction import reducer_of
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_schedule.plan import NestPlan, plan
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.loop_schedule.templates.config import PerNest
from neptune_lab.loop_schedule.templates.nest_defaults import LONGEST_CONTRACTION, contraction_tile
from neptune_lab.loop_schedule.templates.nest_shape import COLUMNS, ROWS
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


@dataclass(frozen=True, slots=True)
class NestChain:
    """One nest of an operator, as a chain.

    Args:
        chain: its reductions, and outputs that run along the column again; a map is part of the computation that reads
            it.
        batch: loops each iteration of which is a thread block.
        row: the loop that block_q tiles; None if there is none.
        row_size: the tile that it must have; None: any.
        column: the loop that block_kv tiles, and that splits cut.
        contraction: the loop that only the first computation folds; None if there is none.
        out: the loop of the output that only the last product runs along (h of a GEMM chain); None if there is none.
        again: how many of the last computations run along the column a second time, after it has been folded.
    """

    chain: Chain
    batch: tuple[str, ...]
    row: str | None
    row_size: int | None
    column: str
    contraction: str | None
    out: str | None
    again: int = 0

    @property
    def has_product(self) -> bool:
        """Whether matrix units do part of the work: a product with a tile of rows and columns, not a single row."""
        return any(self.multiplies(c) for c in self.chain.computations)

    def multiplies(self, computation: Computation) -> bool:
        """Whether a computation is a product of matrices, rather than of a vector and a matrix."""
        return computation.product and len([v for v in computation.output.loops if v not in self.batch]) > 1

    def extent(self, loop: str | None) -> int:
        """Iterations of a loop; 1 for None."""
        return 1 if loop is None else dict(self.chain.extents)[loop]

    def tiles(self, config: TileConfig, n: int) -> dict[str, int]:
        """The tile of each loop that nest number `n` has with this config."""
        extents = dict(self.chain.extents)
        chosen = {**extents, **dict.fromkeys(self.batch, 1)}
        if self.row is not None:
            chosen[self.row] = self.row_size or entry(config.block_q, n) or ROWS
        chosen[self.column] = entry(config.block_kv, n) or COLUMNS
        if self.contraction is not None and extents[self.contraction] > LONGEST_CONTRACTION:
            rows = 1 if self.row is None else chosen[self.row]
            chosen[self.contraction] = contraction_tile(rows, chosen[self.column])
        if self.out is not None and (block := entry(config.block_out, n)) is not None:
            chosen[self.out] = block
        return {loop: min(size, extents[loop]) for loop, size in chosen.items()}

    def tiling(self, config: TileConfig, n: int) -> Tiling:
        """The tiling expression that the templates make of this config: grid, then column, then the contraction
        and, in sequence, the output's own loop, unless block_out puts that on the grid (flat and deep)."""
        deep = self.out is not None and entry(config.block_out, n) is not None
        grid = (*self.batch, *((self.row,) if self.row else ()), *((self.out,) if deep and self.out else ()))
        inner = [loop for loop in self.chain.loops if loop not in grid and loop != self.column]
        rest = tuple((loop,) for loop in inner)
        return Tiling((*grid, self.column, *inner)) if len(rest) < 2 else Tiling((*grid, self.column), rest)

    def shared_bytes(self, candidate: Choice, n: int) -> int:
        """The shared memory that the emitted kernel will take (`shared_memory.total_bytes`), in bytes."""
        config, code = candidate.sizes, candidate.code
        tiles, tiling = self.tiles(config, n), self.tiling(config, n)
        trips = trip_counts(self.chain, tiles)
        multiplied = {o.name for c in self.chain.computations if self.multiplies(c) for o in c.operands}
        serial = [loop for loop in (self.column, self.contraction) if loop is not None and trips[loop] > 1]
        kept: list[int] = []
        stretches: dict[str, list[OperandBuffer]] = {loop: [] for loop in serial}
        streamed = 0
        for stmt in place(self.chain, tiling, trips):
            size = self._tile_bytes(stmt.tensor, tiles)
            inside = [loop for loop in serial if loop in stmt.scope]
            if stmt.kind != "L" or stmt.tensor.name not in multiplied:
                elements = prod(tiles[loop] for loop in stmt.tensor.loops)
                streamed += elements * stmt.tensor.itemsize if stmt.kind == "L" and inside else 0
            elif inside:
                stretches[inside[-1]].append(OperandBuffer(size, inside[-1] == serial[-1]))
            else:
                kept.append(size)
        rows, warps = tiles.get(self.row or "", 1), entry(config.num_warps, n) or DEFAULT_WARPS
        if multiplied and not grouped(rows, warps):
            kept.append(max((self._tile_bytes(o, tiles) for o in self._computed_operands()), default=0))
        if not multiplied:
            kept.append(streamed * max(0, (code.loop_stages or 1) - 1))
        if multiplied and code.loads != "pointers":
            kept.append(BARRIERS)
        ahead = copies(entry(config.num_stages, n) or DEFAULT_STAGES, rows, warps)
        return total_bytes(tuple(kept), tuple(map(tuple, stretches.values())), ahead)

    def _tile_bytes(self, tensor: Operand, tiles: Mapping[str, int]) -> int:
        """The bytes of one tile, as a product's operand is padded."""
        return padded(tuple(tiles[loop] for loop in tensor.loops if loop not in self.batch)) * tensor.itemsize

    def _computed_operands(self) -> Iterator[Operand]:
        """Operands of products that the nest itself computes, converted to the dtype of the other factor."""
        for computation in self.chain.computations:
            if self.multiplies(computation):
                loaded = [o.itemsize for o in computation.operands if o.name not in self.chain.computed]
                inner = [o for o in computation.operands if o.name in self.chain.computed]
                # Row statistics are read too; the operand is the one along most loops.
                if inner and loaded:
                    yield replace(max(inner, key=lambda o: len(o.loops)), itemsize=min(loaded))

    def values_per_thread(self, config: TileConfig, n: int) -> float:
        """How many numbers of the largest tiles each thread holds at once: the accumulators of all products, or if
        there are none, the largest tile that is loaded.  A tile's sides are powers of two there, whatever is left of
        the dimension."""
        tiles = {loop: power_of_two(side) for loop, side in self.tiles(config, n).items()}
        warps = entry(config.num_warps, n) or DEFAULT_WARPS
        products = [c.output for c in self.chain.computations if self.multiplies(c)]
        sizes = [prod(tiles[loop] for loop in t.loops) for t in products or self.chain.tensors]
        return (sum(sizes) if products else max(sizes)) / (32 * warps)


def entry(value: PerNest, n: int) -> int | None:
    """What a size says for nest number `n`: its value, or its n-th entry if it has one per nest.

    >>> entry((64, None), 0), entry((64, None), 1), entry(32, 1)
    (64, None, 32)
    """
    if isinstance(value, tuple):
        return value[n] if n < len(value) else None
    return value


def splits_of(candidate: Choice, n: int) -> int | None:
    """The number of parts that nest number `n` is cut into; None if the template chooses; 1 for a nest that rolls."""
    return 1 if candidate.template != "split_k_update" else entry(candidate.splits, n)


@dataclass(frozen=True, slots=True)
class Nests:
    """The nests of an operator as they are, and as they are with padded rows."""

    plain: tuple[NestChain, ...]
    padded: tuple[NestChain, ...]

    @classmethod
    def found_in(cls, operator: Operator) -> Nests:
        """The nests that the templates find."""
        return cls(nest_chains(operator), nest_chains(operator, pad_rows=True))

    def of(self, candidate: Choice) -> tuple[NestChain, ...]:
        """The nests of a candidate."""
        return self.padded if candidate.sizes.pad_rows else self.plain


def nest_chains(operator: Operator, *, pad_rows: bool = False) -> tuple[NestChain, ...]:
    """The nests that the templates find in an operator, in order, as chains.

    Args:
        operator: what is compiled.
        pad_rows: as the option of the templates: a nest with a single row gets 16.
    """
    program = operator.program
    dims = dimensions(program)
    blocks = {b.name: b for b in tree.blocks(program)}
    return tuple(_nest_chain(program, dims, blocks, nest) for nest in plan(program, pad_rows=pad_rows))


def _nest_chain(program: Program, dims: Dimensions, blocks: Mapping[str, Block], nest: NestPlan) -> NestChain:
    """The nest as a chain of computations over named loops, as the cost model reads it."""
    members = [
        b
        for b in blocks.values()
        if b.name in (nest.first, *nest.auxiliary_reductions, *nest.reductions) and b.is_reduction
    ]
    outputs = _second_passes(program, dims, blocks, nest, members)
    reader = _Reader(program, dims, blocks, {b.name for b in members})
    folded = {b.writes for b in members}
    computations = (*map(reader.computation, members), *(_second_pass(reader.computation(b), folded) for b in outputs))
    used = {loop for c in computations for loop in c.loops}
    extents = tuple((loop, extent) for loop, extent in reader.extents.items() if loop in used)
    first = blocks[nest.first]
    column = reader.name(dims.of(first, nest.reduce_axis))
    row = None if nest.row_axis is None else reader.name(dims.of(first, nest.row_axis))
    batch = tuple(name for v in nest.parallel_axes if (name := reader.name(dims.of(first, v))) != row and name in used)
    own = [loop for loop in computations[0].reduced if loop != column]
    products = [c for c in computations if c.product]
    free = [loop for loop in (products[-1].output.loops if products else ()) if loop not in (*batch, row, column)]
    only = [loop for loop in free if len([c for c in computations if loop in c.loops]) == 1 and len(products) > 1]
    return NestChain(
        Chain(extents, computations),
        batch,
        row,
        nest.row_size,
        column,
        own[0] if len(own) == 1 else None,
        only[0] if len(only) == 1 else None,
        len(outputs),
    )


def _second_pass(computation: Computation, computed: set[str]) -> Computation:
    """A second pass, which loads its operands again: a column is too long for registers."""
    operands = (o if o.name in computed else replace(o, name=f"{o.name}_again") for o in computation.operands)
    return replace(computation, operands=tuple(operands))


def _second_passes(
    program: Program, dims: Dimensions, blocks: Mapping[str, Block], nest: NestPlan, members: list[Block]
) -> list[Block]:
    """Maps that write an output along the column again, from what this nest folds (a normalised row)."""
    column = dims.of(blocks[nest.first], nest.reduce_axis)
    names = {b.writes for b in members}
    return [
        b
        for b in blocks.values()
        if not b.is_reduction
        and b.writes in program.outputs
        and column in dims.all_of(b)
        and {r.buffer for r in _reads_through_maps(b, blocks, names)} & names
    ]


def _reads_through_maps(block: Block, blocks: Mapping[str, Block], stop: set[str]) -> Iterator[Load]:
    """What a block reads, with maps between replaced by what they read."""
    writers = {b.writes: b for b in blocks.values()}
    for read in loads(block.body.value):
        source = writers.get(read.buffer)
        if read.buffer == block.writes or not isinstance(read, Load):
            continue
        if source is None or read.buffer in stop or reducer_of(source) is not None:
            yield read
        else:
            yield from _reads_through_maps(source, blocks, stop)


class _Reader:
    """Computations of one nest; dimensions are named after the first iteration that runs along them."""

    def __init__(self, program: Program, dims: Dimensions, blocks: Mapping[str, Block], members: set[str]) -> None:
        self.program, self.dims, self.blocks, self.members = program, dims, blocks, members
        self.names: dict[Dimension, str] = {}
        self.extents: dict[str, int] = {}
        for block in blocks.values():
            for dimension, name in dims.all_of(block).items():
                if dimension not in self.names:
                    free = name
                    while free in self.extents:
                        free += "'"
                    self.names[dimension] = free
                    self.extents[free] = block.iter(name).extent

    def name(self, dimension: Dimension) -> str:
        """The loop that a dimension is called."""
        return self.names[dimension]

    def computation(self, block: Block) -> Computation:
        """A reduction (or a map that writes an output) with all that it reads, through maps."""
        operands: dict[str, Operand] = {}
        for source, operand in self._operands(block):
            old = operands.get(source)
            operands[source] = operand if old is None or len(operand.loops) > len(old.loops) else old
        product = reducer_of(block) == "sum" and is_product(block)
        return Computation(self._output(block), tuple(operands.values()), product)

    def _output(self, block: Block) -> Operand:
        loops = tuple(self.name(d) for d in self.dims.all_of(block, "spatial"))
        return Operand(block.writes, loops, itemsize(self._stored_as(block)))

    def _stored_as(self, block: Block) -> str:
        """The dtype in which it is stored: that of the output that it becomes by maps alone."""
        reader = next((b for b in self.blocks.values() if any(r.buffer == block.writes for r in loads(b.body.value))
                       and b.name != block.name and not b.is_reduction), None)  # fmt: skip
        if reader is not None and len(reader.iters) == len(self.dims.all_of(block, "spatial")):
            return self._stored_as(reader)
        return self.program.buffer(block.writes).dtype

    def _operands(self, block: Block) -> Iterator[tuple[str, Operand]]:
        writers = {b.writes: b for b in self.blocks.values()}
        for read in loads(block.body.value):
            source = writers.get(read.buffer)
            if read.buffer == block.writes or not isinstance(read, Load):
                continue
            if source is not None and reducer_of(source) is None:
                yield from self._operands(source)
                continue
            width = itemsize(self.program.buffer(read.buffer).dtype)
            plain = [index.name for index in read.indices if isinstance(index, Var)]
            others = [v for index in read.indices for v in variables(index) if v not in plain]
            loops, selected = (
                tuple(dict.fromkeys(self.name(self.dims.of(block, v)) for v in names)) for names in (plain, others)
            )
            yield read.buffer, Operand(read.buffer, loops, width, selected)
