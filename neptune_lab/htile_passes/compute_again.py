"""Computes long rows again from their loaded 16-bit elements, where float32 values would not fit in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import dtype_of, shape_of, shape_of_access
from neptune_lab.htile.walk import (
    children,
    expressions,
    reads,
    region,
    rewrite,
    rewrite_store,
    roots,
    stores,
    tile_dims,
    tile_read,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import DEFAULT_WARPS, LANES, fresh_name, tile_pass
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import NVIDIA_REGISTERS

# The most registers of one thread.
MOST_OF_THREAD = 255
# Bytes of an element of rows that are held as they were loaded: `_again` packs two into a register.
LOADED_BYTES = 2
# Registers of a thread for addresses and for what one statement computes, beside the tiles that it holds.
BESIDE = 20
# Programs from which on a multiprocessor has several: two on each of 132.
MANY = 264


@tile_pass(after="split_rounded_weights")
def compute_again(program: ir.Program) -> ir.Program:
    """Before => after:

        s[i] = reduce(sum, float32(g[i, 0:32768]) * exp2(float32(x[i, 0:32768]) - m[i]), dim=0)
        d[i, 0:32768] = (float32(g[i, 0:32768]) - s[i]) * exp2(float32(x[i, 0:32768]) - m[i])
        =>
        s[i] = reduce(sum, float32(g[i, 0:32768]) * exp2(float32(x[i, 0:32768]) - m[i]), dim=0)
        g_again[0:32768] = again(g[i, 0:32768])
        x_again[0:32768] = again(x[i, 0:32768])
        d[i, 0:32768] = (float32(g_again[0:32768]) - s[i]) * exp2(float32(x_again[0:32768]) - m[i])

    Triton computes equal expressions once, so that a program holds the exponentials in float32 while it reduces.
    `again` is the value itself, of which Triton does not know what it has computed of it: the program holds `x`.  Each
    element is loaded once, as before.

    Only in kernels of one reduction, where what is held during it does not fit in the registers of a program, and takes
    fewer as it was loaded; or where it leaves room for one program on a multiprocessor, and for a second as it was
    loaded: on an H200, the gradient of a softmax of 2048 x 16384 takes 54.6 us so, and 58.7 in float32 (moving its
    bytes, 52.8).  Of several reductions, more is held than this counts: a softmax of 57344 columns would spill more.
    """
    if program.sizes:
        return program
    names = {tensor.name for tensor in program.tensors}
    added: list[ir.Tensor] = []

    def fresh(tensor: ir.Tensor, extents: tuple[int, ...]) -> str:
        name = fresh_name(f"{tensor.name}_again", names, "_")
        names.add(name)
        added.append(ir.Tensor(name, extents, tensor.dtype, "chip"))
        return name

    kernels = tuple(_kernel(kernel, program, fresh) for kernel in program.kernels)
    return replace(program, tensors=(*program.tensors, *added), kernels=kernels) if added else program


def _kernel(kernel: ir.Kernel, program: ir.Program, fresh: Callable[[ir.Tensor, tuple[int, ...]], str]) -> ir.Kernel:
    """The kernel with what its reduction reads computed again after it, if all that it would hold across the reduction
    does not fit the registers, and the narrower inputs do; else the kernel itself."""
    body = [stmt for stmt in kernel.body if isinstance(stmt, ir.Store)]
    reducing = [n for n, s in enumerate(body) if any(isinstance(e, ir.Reduce) for e in expressions(s))]
    others = any(isinstance(e, ir.Dot | ir.Gather) for s in body for e in expressions(s))
    if len(body) < len(kernel.body) or len(reducing) != 1 or others:
        return kernel
    threads, at = LANES * (kernel.num_warps or DEFAULT_WARPS), reducing[0] + 1
    held = _rows_used_again(body[:at], body[at:], program)
    again = [s for s in body[:at] if tile_read(s.target) in held and may_compute_again(s, kernel, program)]
    later = (*again, *body[at:])
    first, written = _rows_read(body[:at], program), written_tensors(kernel)
    loaded = {t: a for t, a in _rows_read(later, program).items() if t in first and t.tensor not in written}
    kept = {e for e in held if isinstance(e, ir.Access) and _on_chip(e, program)} - {tile_read(s.target) for s in again}
    wide = _registers(held.values(), threads)
    narrow = _registers((_bytes(a, program) for a in kept | loaded.keys()), threads)
    fits = wide + BESIDE <= min(MOST_OF_THREAD, NVIDIA_REGISTERS // threads)
    alone = _at_a_time(wide, threads) < 2 <= _at_a_time(narrow, threads) and prod(a.extent for a in kernel.grid) >= MANY
    if narrow >= wide or (fits and not alone):
        return kernel
    if any(itemsize(program.tensor(a.tensor).dtype) != LOADED_BYTES for a in loaded):
        return kernel
    copies: dict[ir.Access, ir.Store] = {}
    for tile, source in loaded.items():
        tensor = program.tensor(source.tensor)
        name = fresh(tensor, shape_of_access(source))
        target = ir.Access(name, tuple(replace(i, start=ir.Int(0)) for i in source.index if isinstance(i, ir.Slice)))
        value = ir.Elementwise("again", (source,), tensor.dtype)
        copies[tile] = ir.Store(f"{body[at - 1].node_id}.{name}", target, value, body[at - 1].origin)

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        copy = copies.get(tile_read(expr)) if isinstance(expr, ir.Access) else None
        if copy is None or not isinstance(expr, ir.Access):
            return expr
        dims = (replace(d, start=ir.Int(0)) if isinstance(d, ir.Slice) else d for d in tile_dims(expr.index))
        return ir.Access(copy.target.tensor, tuple(dims))

    repeated = [replace(s, node_id=f"{s.node_id}/again") for s in again]
    rest = [rewrite_store(s, visit) for s in (*repeated, *body[at:])]
    return replace(kernel, body=(*body[:at], *copies.values(), *rest))


def may_compute_again(store: ir.Store, kernel: ir.Kernel, program: ir.Program) -> bool:
    """Whether a row that a kernel stores on chip is the same, number for number, if it is computed later.

    Formal statement.  The value is elementwise, of tensors that the kernel does not store to, and of single elements on
    chip, each of which one statement stores.  So nothing that it reads changes after it; and no other statement stores
    to the row.
    """
    stored = [s.target.tensor for s in stores(kernel.body)]
    if store.mask is not None or not _on_chip(store.target, program) or stored.count(store.target.tensor) > 1:
        return False
    if any(isinstance(e, ir.Reduce | ir.Dot | ir.Gather | ir.Permute) for e in expressions(store)):
        return False
    for access in reads(store):
        on_chip = _on_chip(access, program)
        if (on_chip and prod(shape_of_access(access)) > 1) or stored.count(access.tensor) != on_chip:
            return False
    return True


def _rows_used_again(
    before: Sequence[ir.Store], after: Sequence[ir.Store], program: ir.Program
) -> dict[ir.TileExpr, int]:
    """The rows that statements compute or load and later ones use again, with their bytes."""
    made = {_normal(e) for s in before for e in (s.target, *expressions(s))}
    held: dict[ir.TileExpr, int] = {}

    def visit(expr: ir.TileExpr) -> None:
        if isinstance(expr, ir.Access | ir.Elementwise) and _normal(expr) in made:
            if prod(shape_of(expr, program)) > 1:
                held[_normal(expr)] = _bytes(expr, program)
            return
        for child in children(expr):
            visit(child)

    for stmt in after:
        for root in roots(stmt):
            visit(root)
    return held


def _rows_read(body: Iterable[ir.Store], program: ir.Program) -> dict[ir.Access, ir.Access]:
    """The rows in global memory that statements read, by their tiles."""
    found = (ir.Access(a.tensor, region(a)) for s in body for a in reads(s) if not _on_chip(a, program))
    return {tile_read(a): a for a in found if prod(shape_of_access(a)) > 1}


def _normal(expr: ir.TileExpr) -> ir.TileExpr:
    return rewrite(expr, lambda e: tile_read(e) if isinstance(e, ir.Access) else e)


def _on_chip(access: ir.Access, program: ir.Program) -> bool:
    return program.tensor(access.tensor).space == "chip"


def _bytes(expr: ir.TileExpr, program: ir.Program) -> int:
    """Of a tile, padded as in registers."""
    return prod(map(power_of_two, shape_of(expr, program))) * itemsize(dtype_of(expr, program))


def _at_a_time(registers: int, threads: int) -> int:
    """How many programs a multiprocessor runs, of threads that hold so many registers."""
    return NVIDIA_REGISTERS // (threads * (registers + BESIDE))


def _registers(sizes: Iterable[int], threads: int) -> int:
    """The registers of a thread that tiles of such sizes take."""
    return sum(-(-size // (4 * threads)) for size in sizes)


__all__ = ["compute_again", "may_compute_again"]
