"""Facts about loop programs for editors and for timing: blocks, loops, sizes, work."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

import numpy as np

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.iteration_domain import evaluate
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Loop, Op, Program, Var
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.tag_table import digits_apart, number_texts
from neptune_lab.loop_ir.tree import stores
from neptune_lab.loop_ir.walks import loads, transform, walk
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.traffic import operations


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """A block: what it reads (other than itself) and writes, and the loops around it as (name, extent, kind).

    Blocks that share their outermost loops share as many first elements of `nest`.
    """

    name: str
    role: Role
    reduces: bool
    reads: tuple[str, ...]
    writes: str
    loops: tuple[tuple[str, int, str], ...]
    nest: tuple[int, ...]


def block_facts(program: Program) -> tuple[BlockFacts, ...]:
    """Every block, in program order."""
    facts = []
    for path, stmt, loops in tree.statements(program):
        if isinstance(stmt, Block):
            reads = dict.fromkeys(r.buffer for r in loads(stmt.body.value) if r.buffer != stmt.writes)
            around = tuple((loop.var, loop.extent, loop.kind) for loop in loops)
            facts.append(
                BlockFacts(stmt.name, stmt.role, stmt.is_reduction, tuple(reads), stmt.writes, around, path[:-1])
            )
    return tuple(facts)


def reduction_loops(program: Program) -> dict[str, tuple[str, ...]]:
    """The loops that each reduction block runs along, outer first; those of one iteration are left out."""
    found = {}
    for _, stmt, loops in tree.statements(program):
        if isinstance(stmt, Block) and stmt.is_reduction:
            along = {v.name for it in stmt.iters if it.kind == "reduce" for v in walk(it.binding) if isinstance(v, Var)}
            found[stmt.name] = tuple(loop.var for loop in loops if loop.var in along and loop.extent > 1)
    return found


def loop_names(program: Program) -> tuple[str, ...]:
    """The names of all loops, each once, in program order."""
    return tuple(dict.fromkeys(s.var for _, s, _ in tree.statements(program) if isinstance(s, Loop)))


def extent(program: Program, block: str, loop: str) -> int:
    """The iterations of the loop `loop` around `block`; ScheduleError if there is no such loop."""
    return tree.find_loop(program, block, loop)[1].extent


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of a kernel.

    Args:
        flops: floating-point operations of the definition; if it masks scores, of the unmasked share only (the usual
            way to count causal attention).
        bytes: every input and output once, and every intermediate in global memory written and read once.
        unmasked: the unmasked share of the scores.
    """

    flops: float
    bytes: float
    unmasked: float = 1.0


def work(definition: Program, scheduled: Program | None = None) -> Work:
    """The work of a definition, with the memory traffic of a schedule of it (default: all intermediates on chip)."""
    blocks = tree.blocks(definition)
    masked, share = 0, 1.0
    for block in blocks:
        for node in walk(block.body.value):
            if isinstance(node, Op) and node.name == "select" and node.args[2] == Const(-inf, "float32"):
                masked, share = prod(i.extent for i in block.iters), share * _share(block, node.args[0])
    flops = 0.0
    for block in blocks:
        runs = prod(i.extent for i in block.iters)
        flops += runs * operations(block.body.value) * (share if masked and runs >= masked else 1.0)
    traffic = sum(buffer_bytes(definition, name) for name in definition.params)
    if scheduled is not None:
        traffic += 2 * sum(buffer_bytes(scheduled, name) for name in between_kernels(scheduled))
    return Work(flops, float(traffic), share)


def between_kernels(program: Program) -> tuple[str, ...]:
    """The buffers that the kernels of a scheduled program leave in global memory for each other."""
    return tuple(b.name for b in program.buffers if b.scope == "global" and b.name not in program.params)


def buffer_bytes(program: Program, name: str) -> int:
    """Bytes of a buffer of the program."""
    buffer = program.buffer(name)
    return prod(buffer.shape) * itemsize(buffer.dtype)


_SAMPLES = 1 << 15


def _share(block: Block, condition: Expr) -> float:
    """The share of the block's iterations for which a condition on them holds, from a fixed sample; 1 if it reads
    tensors or uses names that are not iterations."""
    rng = np.random.default_rng(0)
    points = {i.name: rng.integers(0, i.extent, _SAMPLES) for i in block.iters}
    plain = transform(condition, lambda e: e.arg if isinstance(e, Cast) else e)
    try:
        return float(np.mean(np.broadcast_to(evaluate(plain, points), _SAMPLES)))
    except KeyError:
        return 1.0


__all__ = [
    "BlockFacts",
    "Role",
    "Work",
    "between_kernels",
    "block_facts",
    "buffer_bytes",
    "digits_apart",
    "loop_names",
    "number_texts",
    "stores",
    "work",
]
