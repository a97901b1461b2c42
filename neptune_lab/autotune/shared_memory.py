"""Estimates the shared memory of a thread block: MCFuser's Eq. 1, and an estimate for the kernels that we emit.

Eq. 1 adds up one tile of every tensor.  Triton's allocation on Hopper is another sum.  An operand of a product that is
loaded before the loop has one buffer.  One that the innermost loop loads has `num_stages` of them, or one less where
the rows are too few for a group of four warps (`GROUP_ROWS`).  Operands that an outer loop loads reuse the buffers of
the inner loop.  A computed operand stays in registers, as accumulators do; with few rows, threads exchange it through
shared memory.  A loop without products that prefetches (`loop_stages`) has buffers for that.

For attention and GEMM chains with pointers, the estimate is Triton 3.6's allocation for sm_90 (128x64 in 3 stages:
131072 bytes, 128x128 in 2: 163840); descriptors add less than 100 bytes of barriers.  Of 43 kernels with products,
drawn at random from the spaces of attention and GEMM chains, two took over 1% more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from neptune_lab.autotune.expressions import Chain
from neptune_lab.htile.nodes import Access, Cast, Dot, For, Kernel, Permute, Program, Stmt, Store, TileExpr
from neptune_lab.htile.shapes import dtype_of, shape_of, shape_of_access
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize

# The smallest side of a product's tile; the emitter pads to it, and any side to a power of two.
SMALLEST_SIDE = 16
# Rows from which Hopper's four warps multiply together, out of shared memory.
GROUP_ROWS, GROUP_WARPS = 64, 4
# Bytes of the barriers of descriptors.
BARRIERS = 128


@dataclass(frozen=True, slots=True)
class OperandBuffer:
    """One tile of a product's operand in shared memory; `ahead`: a loop loads it, several iterations ahead."""

    bytes: int
    ahead: bool


def tiles_in_shared_memory(chain: Chain, tiles: Mapping[str, int]) -> int:
    """Eq. 1: the bytes of one tile of every tensor of the chain.

    >>> from neptune_lab.autotune.expressions import gemm_chain
    >>> tiles_in_shared_memory(gemm_chain(1024, 1024, 512, 512), {"m": 128, "n": 64, "k": 32, "h": 512})
    225280
    """
    return sum(prod(tiles.get(loop, 1) for loop in t.loops) * t.itemsize for t in chain.tensors)


def padded(shape: tuple[int, ...]) -> int:
    """Elements of a product's operand as it is emitted: the last two sides at least 16, every side a power of two."""
    sides = [max(side, SMALLEST_SIDE) if n >= len(shape) - 2 else side for n, side in enumerate(shape)]
    return prod(map(power_of_two, sides))


def copies(num_stages: int, rows: int, num_warps: int) -> int:
    """Buffers of an operand that is loaded ahead.

    Hopper's groups of warps multiply asynchronously, so that the current tile is kept while others are loaded; a
    product of fewer rows releases its tile at once.

    >>> copies(3, rows=128, num_warps=8), copies(3, rows=32, num_warps=4), copies(1, rows=128, num_warps=8)
    (3, 2, 1)
    """
    return max(1, num_stages if grouped(rows, num_warps) else num_stages - 1)


def grouped(rows: int, num_warps: int) -> bool:
    """Whether four warps multiply together, out of shared memory."""
    return rows >= GROUP_ROWS and num_warps >= GROUP_WARPS


def total_bytes(kept: tuple[int, ...], stretches: tuple[tuple[OperandBuffer, ...], ...], ahead: int) -> int:
    """The estimate for an emitted kernel.

    Args:
        kept: bytes of the buffers that are live all the time.
        stretches: operands of each stretch of the program; stretches reuse the same memory in sequence.
        ahead: buffers of an operand that is loaded ahead (`copies`).
    """
    return sum(kept) + max((sum(b.bytes * (ahead if b.ahead else 1) for b in s) for s in stretches), default=0)


def kernel_bytes(program: Program, kernel: Kernel, *, num_warps: int = 4, num_stages: int = 3) -> int:
    """The estimate for a kernel of an HTile program, `loop_stages` and scratch of reductions aside.

    Args:
        program, kernel: the kernel, in its program.
        num_warps, num_stages: used if the kernel has none of its own; Triton's defaults.
    """
    straight = tuple(s for s in kernel.body if isinstance(s, Store))
    multiplied = {a.tensor for s in stores(kernel.body) for a in _multiplied(s)}
    kept = [
        _buffer(program, loaded, ahead=False).bytes
        for s in straight
        if s.target.tensor in multiplied and (loaded := _loaded(program, s.value)) is not None
    ]
    stretches = (_operands(program, straight, ahead=False), *_stretches(program, kernel.body))
    rows, warps = _rows(program, kernel), kernel.num_warps or num_warps
    if not grouped(rows, warps):
        kept.append(max(_computed(program, kernel), default=0))
    return total_bytes(tuple(kept), stretches, copies(kernel.num_stages or num_stages, rows, warps))


def _computed(program: Program, kernel: Kernel) -> Iterator[int]:
    """Bytes of each operand that the kernel computes: of a product's, one that no load gives."""
    loaded = {s.target.tensor for s in stores(kernel.body) if _loaded(program, s.value) is not None}
    for store in stores(kernel.body):
        for dot in subexpressions(store.value):
            for operand in (dot.a, dot.b) if isinstance(dot, Dot) else ():
                access = _bare(operand)
                if access is None or (program.tensor(access.tensor).space == "chip" and access.tensor not in loaded):
                    yield padded(shape_of(operand, program)) * itemsize(dtype_of(operand, program))


def _stretches(program: Program, body: tuple[Stmt, ...]) -> Iterator[tuple[OperandBuffer, ...]]:
    """The operands that each loop loads itself: ahead if it is an innermost one."""
    for loop in body:
        if isinstance(loop, For):
            own = tuple(s for s in loop.body if isinstance(s, Store))
            yield _operands(program, own, ahead=len(own) == len(loop.body))
            yield from _stretches(program, loop.body)


def _rows(program: Program, kernel: Kernel) -> int:
    """The fewest rows of a product of the kernel."""
    dots = (e for s in stores(kernel.body) for e in subexpressions(s.value) if isinstance(e, Dot))
    return min((shape_of(dot.a, program)[-2] for dot in dots), default=1)


def _operands(program: Program, body: tuple[Store, ...], *, ahead: bool) -> tuple[OperandBuffer, ...]:
    """Buffers of operands that a stretch both loads and multiplies."""
    by_name = {s.target.tensor: s for s in body}
    buffers: dict[Access, OperandBuffer] = {}
    for store in body:
        for access in _multiplied(store):
            source = by_name.get(access.tensor)
            loaded = _loaded(program, access) or (source and _loaded(program, source.value) if ahead else None)
            if loaded is not None:
                buffers[loaded] = _buffer(program, loaded, ahead)
    return tuple(buffers.values())


def _multiplied(store: Store) -> Iterator[Access]:
    """The accesses that products in a store multiply; computed operands have none."""
    for dot in subexpressions(store.value):
        if isinstance(dot, Dot):
            yield from (a for a in (_bare(dot.a), _bare(dot.b)) if a is not None)


def _loaded(program: Program, expr: TileExpr) -> Access | None:
    """The access to memory that an expression is, permuted or converted or not."""
    access = _bare(expr)
    return access if access is not None and program.tensor(access.tensor).space != "chip" else None


def _bare(expr: TileExpr) -> Access | None:
    """The access that an operand is, permuted or converted or not; None if it is computed."""
    while isinstance(expr, Permute | Cast):
        expr = expr.arg
    return expr if isinstance(expr, Access) else None


def _buffer(program: Program, access: Access, ahead: bool) -> OperandBuffer:
    width = itemsize(program.tensor(access.tensor).dtype)
    return OperandBuffer(padded(shape_of_access(access)) * width, ahead)
