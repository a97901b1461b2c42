"""Removes the initial value of a reduction that runs once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from neptune_lab.htile.nodes import Access, Dot, Elementwise, Literal, Program, Stmt, Store, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import accesses, reads, same_region, stores, subexpressions, with_body
from neptune_lab.htile_passes.rewrite import edit_bodies, map_kernels, position, tile_pass
from neptune_lab.strict.dtypes import FLOATS, INTEGERS


@tile_pass(after="keep_stored_tiles")
def fold_initial_values(program: Program) -> Program:
    """A tile that is set to a reducer's identity and updated once in the same body gets the update's value.

        m[i0*4:i0*4+4] = -inf
        m[i0*4:i0*4+4] = max(m[i0*4:i0*4+4], reduce(max, x[...], dim=1))
        =>
        m[i0*4:i0*4+4] = reduce(max, x[...], dim=1)

    The update may be `op(tile, X)`, `op(X, tile)` or `dot(a, b, acc=tile)`; nothing between the two may read the
    tile, and X may not either.
    """

    def fold(init: Store, body: list[Stmt]) -> bool:
        update = _update(init, body, program)
        if update is None:
            return False
        at, value = update
        body[at] = replace(body[at], value=value)
        body.remove(init)
        return True

    return map_kernels(program, lambda kernel: with_body(kernel, edit_bodies(kernel.body, fold)))


def _update(init: Store, body: list[Stmt], program: Program) -> tuple[int, TileExpr] | None:
    """The update of the tile that `init` sets: its position in `body` and its value without the initial one."""
    tensor = program.tensor(init.target.tensor)
    if tensor.space != "chip" or not isinstance(init.value, Literal) or init.mask is not None:
        return None
    for at in range(position(body, init) + 1, len(body)):
        stmt = body[at]
        if isinstance(stmt, Store) and stmt.target.tensor == tensor.name:
            if stmt.mask is not None or not same_region(stmt.target, init.target):
                return None
            value = _without_initial(stmt, init.value, tensor.dtype)
            ok = value is not None and shape_of(value, program) == shape_of(stmt.target, program)
            return (at, value) if ok and value is not None else None
        if any(tensor.name in _touched(s) for s in stores((stmt,))):
            return None
    return None


def _touched(store: Store) -> Iterator[str]:
    yield store.target.tensor
    yield from (access.tensor for access in reads(store))


def _without_initial(update: Store, initial: Literal, dtype: str) -> TileExpr | None:
    name = update.target.tensor

    def is_tile(expr: TileExpr) -> bool:
        # The whole tile, without NewAxis.
        return isinstance(expr, Access) and expr.tensor == name and len(expr.index) == len(update.target.index)

    match update.value:
        case Elementwise(op="add" | "mul" | "max" | "min" as op, args=(a, b)) if initial.value == _identity(op, dtype):
            rest = b if is_tile(a) else a if is_tile(b) else None
        case Dot(a=a, b=b, acc=acc) if acc is not None and is_tile(acc) and initial.value == 0:
            rest = Dot(a, b)
        case _:
            rest = None
    if rest is None or any(access.tensor == name for expr in subexpressions(rest) for access in accesses(expr)):
        return None
    return rest


def _identity(op: str, dtype: str) -> float | None:
    match op:
        case "add":
            return 0
        case "mul":
            return 1
        case "max" | "min" if dtype in FLOATS:
            return -math.inf if op == "max" else math.inf
        case _:
            assert dtype in FLOATS | INTEGERS | {"bool"}
            return None
