"""What a schedule costs: nests, passes over a dimension, and bytes between nests and within one (notebook 05).

The counts are computed from the program; nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Loop, Previous, Program
from neptune_lab.loop_ir.simplify import bounds
from neptune_lab.loop_ir.walks import loads, substitute, variables

if TYPE_CHECKING:
    pass

_BYTES = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Costs:
    """Counts read off a program, without running it.

    Args:
        nests: loop nests side by side; each becomes a kernel.
        passes: loops that run along the dimension asked for, not counting loops inside such a loop.
        between: bytes of the intermediate buffers that one nest writes and another reads.
        held: bytes of the other intermediate values that one program of the grid must hold at once, at most; the
            passes over tiles remove some of them later.
    """

    nests: int
    passes: int
    between: int
    held: int

    def __str__(self) -> str:
        passes = f"{self.passes} pass{'es' if self.passes > 1 else ''} over the keys"
        nests = f"{self.nests} loop nest{'s' if self.nests > 1 else ''}"
        return f"{nests}, {passes}, {kib(self.between)} between nests, {kib(self.held)} held by a program"


def kib(count: int) -> str:
    """Bytes in KiB, rounded to what one reads."""
    return f"{count / 1024:,.1f} KiB".replace(".0 KiB", " KiB")


def costs(program: Program, along: str) -> Costs:
    """The costs of a program.

    Args:
        program: of a schedule.
        along: the dimension whose loops are counted as `passes`, as "block.iteration": "qk.j" is the keys.
    """
    sizes = {b.name: _BYTES[b.dtype] for b in program.buffers}
    inner = [b for b in program.buffers if b.name not in program.params]
    crossing = [b for b in inner if not _shared_loops(program, b.name)]
    held = [b for b in inner if b not in crossing]
    return Costs(
        nests=len(program.body),
        passes=_passes(program, along),
        between=sum(prod(b.shape) * sizes[b.name] for b in crossing),
        held=sum(_elements_held(program, b.name) * sizes[b.name] for b in held),
    )


def _passes(program: Program, along: str) -> int:
    name, _, iteration = along.partition(".")
    dims = dimensions(program)
    _, anchor, _ = tree.find_block(program, name)
    wanted = dims.of(anchor, iteration)

    def runs_along(loop: Loop) -> bool:
        return any(
            dims.of(block, it.name) == wanted and loop.var in variables(it.binding)
            for block in tree.blocks_under(loop)
            for it in block.iters
        )

    def count(stmt: Loop | Block) -> int:
        if isinstance(stmt, Block):
            return 0
        return 1 if runs_along(stmt) else sum(map(count, stmt.body))

    return sum(map(count, program.body))


def _touches(program: Program, buffer: str) -> list[tuple[tree.Path, Block, tuple[Loop, ...], tuple[Expr, ...]]]:
    """Each access of a buffer, over loop variables: the path of its block, the block, the loops around, the indices."""
    found = []
    for path, block, loops in tree.statements(program):
        if not isinstance(block, Block):
            continue
        env = {it.name: it.binding for it in block.iters}
        reads = [read.indices for read in loads(block.body.value) if read.buffer == buffer]
        writes = [block.body.indices] if block.writes == buffer else []
        for indices in (*writes, *reads):
            found.append((path, block, loops, tuple(substitute(i, env) for i in indices)))
    return found


def _shared_loops(program: Program, buffer: str) -> tuple[Loop, ...]:
    """The loops, outermost first, that every access of a buffer is in."""
    touches = _touches(program, buffer)
    first, _, loops, _ = touches[0]
    depth = min(_common(first, path, len(loops)) for path, _, _, _ in touches)
    return loops[:depth]


def _common(a: tree.Path, b: tree.Path, most: int) -> int:
    same = 0
    while same < min(most, len(b) - 1) and a[same] == b[same]:
        same += 1
    return same


def _elements_held(program: Program, buffer: str) -> int:
    """How many elements of a buffer are alive at once: those that an iteration of the loops around all its accesses
    touches, and where a value is carried from one iteration of such a loop to the next, those that all of it touches.
    """
    outside = {loop.var for loop in _outside(program, buffer)}
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    for _, _, loops, indices in _touches(program, buffer):
        extents = {loop.var: 1 if loop.var in outside else loop.extent for loop in loops}
        for axis, index in enumerate(indices):
            reach = bounds(index, extents) or (0, program.buffer(buffer).shape[axis] - 1)
            low[axis] = min(reach[0], low.get(axis, reach[0]))
            high[axis] = max(reach[1], high.get(axis, reach[1]))
    shape = program.buffer(buffer).shape
    return prod(min(high[axis] - low[axis] + 1, size) for axis, size in enumerate(shape))


def _outside(program: Program, buffer: str) -> tuple[Loop, ...]:
    """The loops around all accesses of a buffer that carry none of its values from one iteration to the next."""
    kept: list[Loop] = []
    for loop in _shared_loops(program, buffer):
        if any(_carries(block, buffer, loop) for _, block, _, _ in _touches(program, buffer)):
            break
        kept.append(loop)
    return tuple(kept)


def _carries(block: Block, buffer: str, loop: Loop) -> bool:
    """Whether the block folds a value of the buffer along the loop, or reads what another iteration of it left."""
    folds = block.writes == buffer and any(
        it.kind == "reduce" and loop.var in variables(it.binding) for it in block.iters
    )
    env = {it.name: it.binding for it in block.iters}
    back = any(
        isinstance(read, Previous) and read.buffer == buffer and loop.var in variables(substitute(read.indices[0], env))
        for read in loads(block.body.value)
    )
    own = block.writes == buffer and any(
        isinstance(read, Load) and read.buffer == buffer for read in loads(block.body.value)
    )
    index = set().union(*(variables(substitute(i, env)) for i in block.body.indices))
    return folds or back or (own and block.init is None and loop.var not in index)


__all__ = ["Costs", "costs", "kib"]
