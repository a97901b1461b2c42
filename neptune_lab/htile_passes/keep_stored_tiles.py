"""Also keeps on chip a tile that a kernel stores to global memory and reads again (store-to-load forwarding).

A program instance has many threads: one may load an element before another thread's store of it is visible. So a kernel
must not read back what it stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NoReturn

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env, grid_env, interval, loop_interval
from neptune_lab.htile.printer import flat_access
from neptune_lab.htile.walk import (
    accesses,
    conjuncts,
    names_of_access,
    names_of_tile,
    reads,
    region,
    rewrite_store,
    same_region,
    stores,
    subexpressions,
    tile_dims,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import fresh_name, tile_pass


@tile_pass(after="unroll_single_iterations")
def keep_stored_tiles(program: ir.Program) -> ir.Program:
    """Before => after, for a tensor `x` in global memory:

        x[i0*8:i0*8+8] = e            x_chip[i0*8:i0*8+8] = e
        y[...] = x[i0*8:i0*8+8]   =>  x[i0*8:i0*8+8] = x_chip[i0*8:i0*8+8]
                                      y[...] = x_chip[i0*8:i0*8+8]

    A tile that this kernel reads before it stores it holds an earlier kernel's result, so it is loaded first.  The
    store to `x` moves out of the loops that its region does not depend on: an output that a loop carries is stored
    once.  A condition of the store's mask that depends on such a loop becomes a `where` of the tile on chip, which
    keeps its value in the iterations that the condition excludes.  A tile that a dot reads is 0 past the tensor's end,
    as if it were loaded.

    Raises:
        TileError: a kernel stores two regions of such a tensor, reads a region that it did not store, or stores only
            some elements of a tile and reads others.
    """
    tensors = {t.name: t for t in program.tensors}
    added: list[ir.Tensor] = []
    kernels: list[ir.Kernel] = []
    earlier: set[str] = set()
    for kernel in program.kernels:
        read = {a.tensor for store in stores(kernel.body) for a in reads(store)}
        names: dict[str, str] = {}
        for tensor in dict.fromkeys(store.target.tensor for store in stores(kernel.body)):
            if tensor in read and tensors[tensor].space != "chip":
                names[tensor] = fresh_name(f"{tensor}_chip", set(tensors) | {t.name for t in added})
                added.append(replace(tensors[tensor], name=names[tensor], space="chip", strides=None))
        if names:
            kernel = replace(kernel, body=tuple(_split_masks(s, names, tensors, ()) for s in kernel.body))
            stored = _stored(kernel, names, earlier)
        kernels.append(_keep(kernel, names, stored, tensors) if names else kernel)
        earlier |= written_tensors(kernel)
    if not added:
        return program
    return replace(program, tensors=program.tensors + tuple(added), kernels=tuple(kernels))


def _stored(kernel: ir.Kernel, names: Collection[str], earlier: Collection[str]) -> dict[str, ir.Access]:
    """The one tile of each tensor of `names` that a kernel stores and reads.

    Formal statement: all accesses of a tensor have one region, whose variables belong to the same loops; all its stores
    have one mask, which reads no tensor; and none of them has a mask if an earlier kernel stores the tensor, since a
    read may need elements that the mask leaves out.

    Args:
        earlier: the tensors that earlier kernels store.
    """
    tiles: dict[str, ir.Access] = {}
    bound: dict[str, tuple[str, ...]] = {}
    masks: dict[str, ir.TileExpr | None] = {}

    def refuse(store: ir.Store, tensor: str, how: str, expected: str) -> NoReturn:
        raise TileError(
            f"kernel {kernel.name} stores {tensor!r} and reads it, {how}; expected {expected}",
            node=store.node_id,
            help="compute the reader in a kernel of its own",
        )

    def visit(body: tuple[ir.Stmt, ...], loops: tuple[ir.For, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, ir.For):
                visit(stmt.body, (*loops, stmt))
                continue
            for access in (stmt.target, *reads(stmt)):
                name = access.tensor
                if name not in names:
                    continue
                first = tiles.setdefault(name, access)
                if not same_region(first, access):
                    how = f"as {flat_access(first)} and as {flat_access(access)}"
                    refuse(stmt, name, how, "one tile, which it can keep on chip")
                around = tuple(loop.node_id for loop in loops if loop.var in names_of_access(access))
                if bound.setdefault(name, around) != around:
                    refuse(stmt, name, f"as {flat_access(access)} in two loops", "one loop around both")
            if stmt.target.tensor in names:
                name = stmt.target.tensor
                if masks.setdefault(name, stmt.mask) != stmt.mask:
                    refuse(stmt, name, "each time under another mask", "one mask for all stores of a tile")
                if stmt.mask is not None and name in earlier:
                    refuse(stmt, name, "and its mask leaves elements of an earlier kernel", "a store of the whole tile")
                if any(True for _ in accesses(stmt.mask)):
                    refuse(stmt, name, "under a mask that is computed from tensors", "a mask of positions")

    visit(kernel.body, ())
    return tiles


def _split_masks(
    stmt: ir.Stmt, names: Iterable[str], tensors: Mapping[str, ir.Tensor], loops: tuple[str, ...]
) -> ir.Stmt:
    """In every store to one of `names`: `x = e if varying and rest` => `x = where(varying, e, x) if rest`, where
    `varying` are the conditions that depend on loops that the store's region does not depend on."""
    if isinstance(stmt, ir.For):
        body = tuple(_split_masks(s, names, tensors, (*loops, stmt.var)) for s in stmt.body)
        return stmt if body == stmt.body else replace(stmt, body=body)
    if stmt.mask is None or stmt.target.tensor not in names:
        return stmt
    others = set(loops) - set(names_of_access(stmt.target))
    varying = [condition for condition in conjuncts(stmt.mask) if names_of_tile(condition) & others]
    if not varying:
        return stmt
    rest = [condition for condition in conjuncts(stmt.mask) if condition not in varying]
    dtype = tensors[stmt.target.tensor].dtype
    return replace(
        stmt,
        value=ir.Elementwise("where", (_conjunction(varying), stmt.value, stmt.target), dtype),
        mask=_conjunction(rest) if rest else None,
    )


def _conjunction(conditions: Sequence[ir.TileExpr]) -> ir.TileExpr:
    return reduce(lambda a, b: ir.Elementwise("and", (a, b), "bool"), conditions)


def _dot_operands(kernel: ir.Kernel) -> set[str]:
    """The tensors that a dot reads."""
    dots = [e for s in stores(kernel.body) for e in subexpressions(s.value) if isinstance(e, ir.Dot)]
    return {access.tensor for dot in dots for access in (*accesses(dot.a), *accesses(dot.b))}


def _as_loaded(chip: ir.Access, tensor: ir.Tensor, env: Env) -> ir.TileExpr:
    """The on-chip tile with 0 past the end of `tensor`, as if it were loaded."""
    value: ir.TileExpr = chip
    parts = tile_dims(chip.index)
    for part, size in zip(region(chip), tensor.shape, strict=True):
        if isinstance(part, ir.Slice) and interval(part.start, env).hi + part.extent > size:
            place = ir.Iota(tuple(p if p is part else ir.NewAxis() for p in parts))
            inside = ir.Elementwise("lt", (place, ir.Literal(size, "int32")), "bool")
            zero = ir.Literal(0.0 if "float" in tensor.dtype else 0, tensor.dtype)
            value = ir.Elementwise("where", (inside, value, zero), tensor.dtype)
    return value


def _keep(
    kernel: ir.Kernel, names: dict[str, str], stored: dict[str, ir.Access], tensors: Mapping[str, ir.Tensor]
) -> ir.Kernel:
    """The kernel with each tile of `names` on chip: loaded before its first read if it is read first, else kept as it
    is stored; a tile that no loop moves is stored once, after its last value.

    Args:
        names: by tensor, the name of its tile on chip.
        stored: by tensor, the access that is stored and read.
        tensors: all tensors, by name.
    """
    dot_operands = _dot_operands(kernel)

    def visit(expr: ir.TileExpr, env: Env) -> ir.TileExpr:
        if isinstance(expr, ir.Access) and expr.tensor in names:
            chip = ir.Access(names[expr.tensor], expr.index)
            return _as_loaded(chip, tensors[expr.tensor], env) if expr.tensor in dot_operands else chip
        return expr

    late: dict[str, ir.Store] = {}
    early = _read_first(kernel, names)

    def loads(stmt: ir.Stmt) -> tuple[ir.Stmt, ...]:
        """Loads, before `stmt`, of the tiles that are read first and do not depend on a loop of `stmt`."""
        inside = {a.tensor: s.origin for s in stores((stmt,)) for a in reads(s)}
        variables = _variables(stmt)
        ready = [t for t in early if t in inside and not names_of_access(stored[t]) & variables]
        early[:] = [t for t in early if t not in ready]
        return tuple(
            ir.Store(f"tile:{t}/load@{kernel.name}", ir.Access(names[t], stored[t].index), stored[t], inside[t])
            for t in ready
        )

    def statement(stmt: ir.Stmt, loops: tuple[str, ...], env: Env) -> tuple[ir.Stmt, ...]:
        if before := loads(stmt):
            return (*before, *statement(stmt, loops, env))
        if isinstance(stmt, ir.For):
            inner = {**env, stmt.var: loop_interval(stmt, env)}
            body = tuple(s for x in stmt.body for s in statement(x, (*loops, stmt.var), inner))
            return (replace(stmt, body=body),)
        stmt = rewrite_store(stmt, lambda expr: visit(expr, env))
        if stmt.target.tensor not in names:
            return (stmt,)
        chip = ir.Access(names[stmt.target.tensor], stmt.target.index)
        kept = ir.Store(f"{stmt.node_id}/chip", chip, stmt.value, stmt.origin)
        out = replace(stmt, value=chip)
        if names_of_access(stmt.target) & set(loops):
            return (kept, out)
        late[stmt.target.tensor] = out  # only the last one is stored
        return (kept,)

    body: list[ir.Stmt] = []
    for n, stmt in enumerate(kernel.body):
        body += statement(stmt, (), grid_env(kernel))
        rest = {s.target.tensor for s in stores(kernel.body[n + 1 :])}
        for tensor in [t for t in late if t not in rest]:
            body.append(late.pop(tensor))
    return replace(kernel, body=tuple(body))


def _read_first(kernel: ir.Kernel, names: Iterable[str]) -> list[str]:
    """Those of `names` that the kernel reads before it stores them."""
    read_first: list[str] = []
    stored: set[str] = set()
    for store in stores(kernel.body):
        read = dict.fromkeys(a.tensor for a in reads(store))  # (a store may read a tensor twice)
        read_first += [t for t in read if t in names and t not in {*stored, *read_first}]
        stored.add(store.target.tensor)
    return read_first


def _variables(stmt: ir.Stmt) -> set[str]:
    """The variables of `stmt`, if it is a loop, and of all loops in it."""
    return {stmt.var}.union(*map(_variables, stmt.body)) if isinstance(stmt, ir.For) else set()
