"""Starts a running extremum with a constant that every iteration would fold in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from neptune_lab.htile.nodes import Access, Elementwise, For, Int, Kernel, Literal, Program, Stmt, Store, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import (
    names_of_access,
    read_tensors,
    same_region,
    stores,
    subexpressions,
    with_body,
)
from neptune_lab.htile_passes.rewrite import map_kernels, position, tile_pass

_START = {"max": float("-inf"), "min": float("inf")}


@tile_pass(before="drop_dead_tiles")
def start_with_constants(program: Program) -> Program:
    """Before => after, for the sink of an attention:

        m[...] = -inf
        for j0 in range(4):
            m[...] = max(m[...], max(reduce(max, score[...], dim=1), sink[...]))
        =>
        m[...] = max(-inf, sink[...])
        for j0 in range(4):
            m[...] = max(m[...], reduce(max, score[...], dim=1))

    The constant uses neither the loop's variable nor a tile that the loop stores to, the loop runs at least once, and
    nothing reads the tile between its start and the loop.  Each value in the loop is the same to the bit, and a tile
    that a mask hides then changes nothing, so that `partition_masked_loops` can skip it.
    """
    return map_kernels(program, lambda kernel: _kernel(kernel, program))


def _kernel(kernel: Kernel, program: Program) -> Kernel:
    return with_body(kernel, _body(kernel.body, program))


def _body(body: tuple[Stmt, ...], program: Program) -> tuple[Stmt, ...]:
    out = list(body)
    changed = False
    for stmt in body:
        if not isinstance(stmt, For):
            continue
        loop = with_body(stmt, _body(stmt.body, program))
        out[position(out, stmt)] = loop
        changed |= loop is not stmt
        for update in [s for s in loop.body if isinstance(s, Store)]:
            changed |= _move(update, position(out, loop), out, program)
            loop = next(s for s in out if isinstance(s, For) and s.node_id == loop.node_id)
    return tuple(out) if changed else body


def _move(update: Store, at: int, out: list[Stmt], program: Program) -> bool:
    """Moves the constants of `update`, which the loop at `out[at]` has, to the start; False if there are none."""
    loop = out[at]
    assert isinstance(loop, For)
    if not (isinstance(loop.start, Int) and isinstance(loop.stop, Int) and loop.start.value < loop.stop.value):
        return False
    match update.value:
        case Elementwise(op="max" | "min" as op, dtype=dtype) if update.mask is None:
            operands = list(_operands(update.value, op))
        case _:
            return False
    stored = {store.target.tensor for store in stores(loop.body)}
    carried = [e for e in operands if isinstance(e, Access) and e.tensor in stored and _carries(loop, update, e)]
    constant = [e for e in operands if not _varies(e, loop, stored)]
    rest = [e for e in operands if e not in carried and e not in constant]
    if len(carried) != 1 or not constant or not rest or not isinstance(carried[0], Access):
        return False
    start = _start(out, at, carried[0], _START[op])
    if start is None:
        return False
    first = reduce(lambda a, b: Elementwise(op, (a, b), dtype), constant, start.value)
    value = reduce(lambda a, b: Elementwise(op, (a, b), dtype), [carried[0], *rest])
    if shape_of(value, program) != shape_of(update.target, program):
        return False
    new = tuple(replace(s, value=value) if s is update else s for s in loop.body)
    out[at] = with_body(loop, new)
    out.remove(start)
    out.insert(at - 1, replace(start, value=first))
    return True


def _operands(value: TileExpr, op: str) -> Iterator[TileExpr]:
    match value:
        case Elementwise(op=name, args=args) if name == op:
            for arg in args:
                yield from _operands(arg, op)
        case _:
            yield value


def _carries(loop: For, update: Store, read: Access) -> bool:
    """Whether `read` is what `update` stored in the iteration before: its own tile, or one that the loop stores only to
    copy it, after `update`."""
    writers = [store for store in stores(loop.body) if store.target.tensor == read.tensor]
    if len(writers) != 1 or not same_region(writers[0].target, read) or writers[0].mask is not None:
        return False
    if any(store.target.tensor == update.target.tensor and store is not update for store in stores(loop.body)):
        return False
    (writer,) = writers
    copies = isinstance(writer.value, Access) and writer.value == update.target and writer in loop.body
    return writer is update or (copies and loop.body.index(writer) > loop.body.index(update))


def _varies(expr: TileExpr, loop: For, stored: set[str]) -> bool:
    """Whether an operand may change in the loop: its index has the loop's variable, or the loop stores to its tile."""
    for node in subexpressions(expr):
        match node:
            case Literal():
                continue
            case Access(tensor=name) if name not in stored and loop.var not in names_of_access(node):
                continue
            case Elementwise():
                continue
            case _:
                return True
    return False


def _start(out: list[Stmt], at: int, carried: Access, identity: float) -> Store | None:
    """The store before the loop at `out[at]` that sets `carried` to the identity, and that nothing reads or repeats
    until the loop."""
    for stmt in reversed(out[:at]):
        for store in stores((stmt,)):
            if store.target.tensor != carried.tensor:
                if carried.tensor in read_tensors(store):
                    return None
                continue
            plain = isinstance(store.value, Literal) and store.value.value == identity and store.mask is None
            return store if plain and store is stmt and same_region(store.target, carried) else None
    return None
