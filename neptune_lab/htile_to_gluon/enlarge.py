"""What giving tiles more rows and giving them more columns share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.sizes import at_samples
from neptune_lab.htile.verify import verify
from neptune_lab.htile.walk import expressions, stores


def indices_of(kernel: ir.Kernel) -> Iterator[tuple[ir.Index, ...]]:
    """The indices of all that a kernel stores and reads."""
    for store in stores(kernel.body):
        yield store.target.index
        for expr in expressions(store):
            if isinstance(expr, ir.Access | ir.Iota):
                yield expr.index


def with_kernel(program: ir.Program, kernel: ir.Kernel, made: ir.Kernel) -> tuple[ir.Program, ir.Kernel] | None:
    """The program with a kernel made anew, and that kernel; None if it does not verify, since what was enlarged in one
    tile is another dimension of another."""
    out = replace(program, kernels=tuple(made if k is kernel else k for k in program.kernels))
    try:
        for one in at_samples(out):
            verify(one)
    except TileError:
        return None
    return out, made


__all__ = ["indices_of", "with_kernel"]
