"""Removes stores to tiles that nothing reads (dead code elimination)."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile.nodes import Program, Stmt, Store
from neptune_lab.htile.walk import gathered_tensors, loop_bounds, reads, stores
from neptune_lab.htile_passes.rewrite import tile_pass


@tile_pass(after="hoist_invariant_loads")
def drop_dead_tiles(program: Program) -> Program:
    """Removes stores to on-chip tiles and global temporaries that no other statement reads, and their tensors.

        t[i0*4:i0*4+4] = exp(x[i0*4:i0*4+4])          =>
        y[i0*4:i0*4+4] = x[i0*4:i0*4+4]                     y[i0*4:i0*4+4] = x[i0*4:i0*4+4]

    A tile that only its own stores read (`t = t + ...`) is dead too.  Loops and kernels that become empty are removed.
    """
    while True:
        dead = _dead(program)
        if not dead:
            return program
        kernels = tuple(replace(k, body=body) for k in program.kernels if (body := _without(k.body, dead)))
        tensors = tuple(tensor for tensor in program.tensors if tensor.name not in dead)
        program = replace(program, kernels=kernels, tensors=tensors)


def _dead(program: Program) -> frozenset[str]:
    needed = {
        name
        for kernel in program.kernels
        for store in stores(kernel.body)
        for name in (*(access.tensor for access in reads(store)), *gathered_tensors(store))
        if name != store.target.tensor
    }
    needed |= {bound.tensor for kernel in program.kernels for bound in loop_bounds(kernel.body)}
    return frozenset(t.name for t in program.tensors if t.space in ("chip", "global") and t.name not in needed)


def _without(body: tuple[Stmt, ...], dead: frozenset[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store):
            if stmt.target.tensor not in dead:
                out.append(stmt)
        elif inner := _without(stmt.body, dead):
            out.append(stmt if inner == stmt.body else replace(stmt, body=inner))
    return tuple(out)
