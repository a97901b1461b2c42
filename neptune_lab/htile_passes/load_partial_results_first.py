"""Loads all partial results of splits before the first of them is reduced, so that a program waits for them once."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neptune_lab.htile.nodes import Access, Dot, Kernel, Program, Reduce, Slice, Store, Tensor, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import expressions, read_tensors, region, rewrite_store, same_region, written_tensors
from neptune_lab.htile_passes.hoist_invariant_loads import loaded_first, tile_access
from neptune_lab.htile_passes.rewrite import tile_pass

# The most elements that a program holds.
MOST_ELEMENTS = 1 << 14


@tile_pass(after="compute_again")
def load_partial_results_first(program: Program) -> Program:
    """Before => after, in a kernel without loops and products that combines splits:

        s_max[h] = reduce(max, s_max_local[h, 0:16])
        acc[h, 0:64] = reduce(sum, exp2(s_max_local[h, 0:16, NewAxis] - s_max[h]) * acc_local[h, 0:16, 0:64])
        =>
        s_max_local_of_splits[0:16] = s_max_local[h, 0:16]
        acc_local_of_splits[0:16, 0:64] = acc_local[h, 0:16, 0:64]
        s_max[h] = reduce(max, s_max_local_of_splits[0:16])
        acc[h, 0:64] = reduce(
            sum, exp2(s_max_local_of_splits[0:16, NewAxis] - s_max[h]) * acc_local_of_splits[0:16, 0:64]
        )

    A reduction among threads has a barrier, which loads behind it wait for: on an H100, six problems of decoding with
    33 to 64 splits take 0.90 to 0.98 of the time so, and eight with fewer 0.99 to 1.02 of it.  Only where the kernel
    reads nothing but results of other kernels, at most `MOST_ELEMENTS` elements of them.
    """
    names, added = {tensor.name for tensor in program.tensors}, list[Tensor]()
    kernels = tuple(_with_loads_first(program, kernel, names, added) for kernel in program.kernels)
    return replace(program, kernels=kernels, tensors=(*program.tensors, *added)) if added else program


def _with_loads_first(program: Program, kernel: Kernel, names: set[str], added: list[Tensor]) -> Kernel:
    own = [stmt for stmt in kernel.body if isinstance(stmt, Store)]
    every = [expr for store in own for expr in expressions(store)]
    spaces = {program.tensor(name).space for store in own for name in read_tensors(store)}
    if len(own) < len(kernel.body) or "input" in spaces or any(isinstance(expr, Dot) for expr in every):
        return kernel
    if not any(isinstance(expr, Reduce) for expr in every):
        return kernel
    written, loads = written_tensors(kernel), list[Store]()

    def visit(expr: TileExpr) -> TileExpr:
        if not isinstance(expr, Access) or program.tensor(expr.tensor).space != "global" or expr.tensor in written:
            return expr
        for load in loads:
            assert isinstance(load.value, Access)
            if load.value.tensor == expr.tensor and same_region(load.value, expr):
                return tile_access(load.target.tensor, expr)
        bare = Access(expr.tensor, region(expr))
        slices = tuple(index for index in bare.index if isinstance(index, Slice))
        tile, load = loaded_first(
            program.tensor(expr.tensor), "of_splits", bare, slices, names, kernel.node_id, own[0].origin
        )
        tensors.append(tile)
        loads.append(load)
        return tile_access(tile.name, expr)

    tensors: list[Tensor] = []
    body = tuple(rewrite_store(store, visit) for store in own)
    if len(loads) < 2 or sum(prod(shape_of(load.value, program)) for load in loads) > MOST_ELEMENTS:
        names.difference_update(tensor.name for tensor in tensors)
        return kernel
    added += tensors
    return replace(kernel, body=(*loads, *body))


__all__ = ["MOST_ELEMENTS", "load_partial_results_first"]
