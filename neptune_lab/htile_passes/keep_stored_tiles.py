"""Also keeps on chip a tile that a kernel stores to global memory and reads again (store-to-load forwarding).

Program instances run many threads: what one of them stored, another may load before it is visible. So a kernel never
reads back what it wrote.
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
    reads,
    region,
    rewrite_store,
    same_region,
    stores,
    subexpressions,
    written_tensors,
)
from neptune_lab.htile_passes.rewrite import tile_pass


@tile_pass(after="unroll_single_iterations")
def keep_stored_tiles(program: ir.Program) -> ir.Program:
    """Before => after, for a tensor `x` in global memory:

        x[i0*8:i0*8+8] = e            x_chip[i0*8:i0*8+8] = e
        y[...] = x[i0*8:i0*8+8]   =>  x[i0*8:i0*8+8] = x_chip[i0*8:i0*8+8]
                                      y[...] = x_chip[i0*8:i0*8+8]

    A tile that is read before this kernel stores it holds what an earlier kernel stored: it is loaded first.  The store
    to `x` leaves the loops that its region does not depend on: an output that a loop carries is stored once.  A bound
    that moves with such a loop drops a whole iteration, after which the tile is what it was.  A tile that a dot reads
    is 0 past the tensor's end, as a load gives it.

    Raises:
        TileError: a kernel stores two regions of such a tensor, reads another one than it stored, or stores only some
            elements of a tile whose others are read.
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
                names[tensor] = _fresh(f"{tensor}_chip", set(tensors) | {t.name for t in added})
                added.append(replace(tensors[tensor], name=names[tensor], space="chip"))
        if names:
            kernel = replace(kernel, body=tuple(_without_moving_bounds(s, names, tensors, ()) for s in kernel.body))
            stored = _stored(kernel, names, earlier)
        kernels.append(_keep(kernel, names, stored, tensors) if names else kernel)
        earlier |= written_tensors(kernel)
    if not added:
        return program
    return replace(program, tensors=program.tensors + tuple(added), kernels=tuple(kernels))


def _stored(kernel: ir.Kernel, names: Collection[str], earlier: Collection[str]) -> dict[str, ir.Access]:
    """The one tile of each tensor of `names` that a kernel stores and reads; `earlier` kernels store the tensors.

    Formal statement: all accesses of a tensor are of one region, whose variables are of the same loops; all stores have
    one mask, which reads nothing; and none if an earlier kernel stores the tensor, since a read may need what the mask
    leaves out.
    """
    tiles: dict[str, ir.Access] = {}
    bound: dict[str, tuple[str, ...]] = {}
    masks: dict[str, ir.TileExpr | None] = {}

    def refuse(store: ir.Store, tensor: str, found: str, expected: str) -> NoReturn:
        raise TileError(
            f"kernel {kernel.name} stores {tensor!r} and reads it, {found}; expected {expected}",
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
                    found = f"as {flat_access(first)} and as {flat_access(access)}"
                    refuse(stmt, name, found, "one tile, which it can keep on chip")
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


def _fresh(name: str, taken: set[str]) -> str:
    unique, n = name, 2
    while unique in taken:
        unique, n = f"{name}{n}", n + 1
    return unique


def _without_moving_bounds(
    stmt: ir.Stmt, names: Iterable[str], tensors: Mapping[str, ir.Tensor], loops: tuple[str, ...]
) -> ir.Stmt:
    """`x = e if moving and rest` => `x = where(moving, e, x) if rest`, of every store to one of `names`."""
    if isinstance(stmt, ir.For):
        body = tuple(_without_moving_bounds(s, names, tensors, (*loops, stmt.var)) for s in stmt.body)
        return stmt if body == stmt.body else replace(stmt, body=body)
    if stmt.mask is None or stmt.target.tensor not in names:
        return stmt
    others = set(loops) - set(names_of_access(stmt.target))
    moving = [bound for bound in conjuncts(stmt.mask) if _names(bound) & others]
    if not moving:
        return stmt
    rest = [bound for bound in conjuncts(stmt.mask) if bound not in moving]
    dtype = tensors[stmt.target.tensor].dtype
    return replace(
        stmt,
        value=ir.Elementwise("where", (_all(moving), stmt.value, stmt.target), dtype),
        mask=_all(rest) if rest else None,
    )


def _all(bounds: Sequence[ir.TileExpr]) -> ir.TileExpr:
    return reduce(lambda a, b: ir.Elementwise("and", (a, b), "bool"), bounds)


def _factors(kernel: ir.Kernel) -> set[str]:
    """The tensors that a dot reads."""
    dots = [e for s in stores(kernel.body) for e in subexpressions(s.value) if isinstance(e, ir.Dot)]
    return {access.tensor for dot in dots for access in (*accesses(dot.a), *accesses(dot.b))}


def _as_loaded(chip: ir.Access, tensor: ir.Tensor, env: Env) -> ir.TileExpr:
    """The tile on chip, 0 past the end of `tensor`, as a load gives it."""
    value: ir.TileExpr = chip
    parts = [part for part in chip.index if isinstance(part, ir.Slice | ir.NewAxis)]
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
    factors = _factors(kernel)

    def visit(expr: ir.TileExpr, env: Env) -> ir.TileExpr:
        if isinstance(expr, ir.Access) and expr.tensor in names:
            chip = ir.Access(names[expr.tensor], expr.index)
            return _as_loaded(chip, tensors[expr.tensor], env) if expr.tensor in factors else chip
        return expr

    late: dict[str, ir.Store] = {}
    early = _read_first(kernel, names)

    def loads(stmt: ir.Stmt) -> tuple[ir.Stmt, ...]:
        """Loads, before `stmt`, of the tiles that are read first and that no loop of `stmt` moves."""
        inside = {a.tensor: s.origin for s in stores((stmt,)) for a in reads(s)}
        moving = _variables(stmt)
        ready = [t for t in early if t in inside and not names_of_access(stored[t]) & moving]
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
        late[stmt.target.tensor] = out  # the last one counts
        return (kept,)

    body: list[ir.Stmt] = []
    for n, stmt in enumerate(kernel.body):
        body += statement(stmt, (), grid_env(kernel))
        rest = {s.target.tensor for s in stores(kernel.body[n + 1 :])}
        for tensor in [t for t in late if t not in rest]:
            body.append(late.pop(tensor))
    return replace(kernel, body=tuple(body))


def _names(expr: ir.TileExpr) -> set[str]:
    """Every loop variable that an expression uses."""
    found: set[str] = set()
    for part in subexpressions(expr):
        match part:
            case ir.Access() | ir.Iota():
                found |= names_of_access(ir.Access("", part.index))
            case ir.Scalar(value=value):
                found |= names_of_access(ir.Access("", (value,)))
            case _:
                pass
    return found


def _read_first(kernel: ir.Kernel, names: Iterable[str]) -> list[str]:
    """Those of `names` that the kernel reads before it stores them."""
    found: list[str] = []
    seen: set[str] = set()
    for store in stores(kernel.body):
        found += [a.tensor for a in reads(store) if a.tensor in names and a.tensor not in {*seen, *found}]
        seen.add(store.target.tensor)
    return found


def _variables(stmt: ir.Stmt) -> set[str]:
    """The variables of the loops that `stmt` is and has."""
    return {stmt.var}.union(*map(_variables, stmt.body)) if isinstance(stmt, ir.For) else set()
