"""Lets the last pass over a row begin with what the second-level cache still holds of it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine
from neptune_lab.htile.substitute import substitute
from neptune_lab.htile.walk import (
    expressions,
    names_of_index,
    read_tensors,
    reads,
    region,
    simplify,
    stores,
    unchanged,
    with_body,
)
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass
from neptune_lab.strict.dtypes import itemsize

# Bytes of a tensor from which on a second-level cache does not hold it.
MANY_BYTES = 1 << 26


@tile_pass(after="shift_vectors")
def reread_backwards(program: ir.Program) -> ir.Program:
    """Before => after:

        for j0 in range(10): s[i] = s[i] + reduce(sum, x[i, j0*512:j0*512+512], dim=0)
        for j0 in range(10): y[i, j0*512:j0*512+512] = x[i, j0*512:j0*512+512] / s[i]
        =>
        for j0 in range(10): s[i] = s[i] + reduce(sum, x[i, j0*512:j0*512+512], dim=0)
        for j0 in range(10): y[i, (9-j0)*512:(9-j0)*512+512] = x[i, (9-j0)*512:(9-j0)*512+512] / s[i]

    A cache that is too small for the rows of all programs holds what they read last.  In the order of the first loop,
    the second reads what was dropped, and drops what it reads next.  For tensors of 64 MiB and more, and loops that
    only store to global memory, each iteration to other elements, without products.
    """
    return map_kernels(program, lambda kernel: _kernel(kernel, program))


def _kernel(kernel: ir.Kernel, program: ir.Program) -> ir.Kernel:
    if program.sizes or any(isinstance(e, ir.Dot) for s in stores(kernel.body) for e in expressions(s)):
        return kernel
    read: set[str] = set()
    body: list[ir.Stmt] = []
    for stmt in kernel.body:
        if isinstance(stmt, ir.For):
            own = {name for name in _tensors_along(stmt) if _bytes(program.tensor(name)) >= MANY_BYTES}
            body.append(_reversed(stmt) if own & read and may_reverse(stmt, program) else stmt)
            read |= own
        else:
            body.append(stmt)
    return kernel if unchanged(body, kernel.body) else with_body(kernel, tuple(body))


def may_reverse(loop: ir.For, program: ir.Program) -> bool:
    """Whether the order of a loop's iterations changes no number.

    Formal statement.  The order is free if no iteration reads what another stores, and no two store to one element.
    So: no tensor that the loop stores to is read in it, each statement stores to a tensor of its own in global memory,
    and one dimension of what it stores is `var*step+rest` and less than `step` elements beyond it, where `rest` is the
    same in every iteration.
    """
    own = [stmt for stmt in loop.body if isinstance(stmt, ir.Store)]
    if len(own) < len(loop.body) or loop.within or loop.listed:
        return False
    if not (isinstance(loop.start, ir.Int) and isinstance(loop.stop, ir.Int)):
        return False
    targets = [s.target.tensor for s in own]
    taken = set[str]().union(*map(read_tensors, own))
    if len(set(targets)) < len(targets) or taken & set(targets):
        return False
    return all(
        program.tensor(s.target.tensor).space != "chip" and _store_to_different_elements(s.target, loop.var)
        for s in own
    )


def _store_to_different_elements(target: ir.Access, var: str) -> bool:
    """Whether iterations store to different elements."""
    for index in region(target):
        start, extent = (index.start, index.extent) if isinstance(index, ir.Slice) else (index, 1)
        if not isinstance(start, ir.IndexExpr):
            continue
        form = affine(simplify(start))
        steps = [step for term, step in form.terms if term == ir.Name(var)]
        others = [term for term, _ in form.terms if term != ir.Name(var)]
        if any(var in names_of_index(term) for term in others):
            continue
        if len(steps) == 1 and abs(steps[0]) >= extent:
            return True
    return False


def _tensors_along(loop: ir.For) -> set[str]:
    """The tensors of which each iteration reads other elements."""
    return {
        a.tensor for s in stores(loop.body) for a in reads(s) if any(loop.var in names_of_index(i) for i in a.index)
    }


def _bytes(tensor: ir.Tensor) -> int:
    return prod(tensor.shape) * itemsize(tensor.dtype) if tensor.space != "chip" else 0


def _reversed(loop: ir.For) -> ir.For:
    assert isinstance(loop.start, ir.Int)
    assert isinstance(loop.stop, ir.Int)
    last = ir.Int(loop.start.value + loop.stop.value - 1)
    return replace(loop, body=substitute(loop.body, loop.var, ir.Arith("-", last, ir.Name(loop.var))))


__all__ = ["may_reverse", "reread_backwards"]
