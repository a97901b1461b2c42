"""Lets the matrix unit add: the tile to which a product is added becomes the dot's accumulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile.nodes import Access, Dot, Elementwise, Kernel, NewAxis, Program, Stmt, Store, TileExpr
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import accesses, reads, same_region, stores, with_body
from neptune_lab.htile_passes.rewrite import map_kernels, tile_pass


@tile_pass(after="fold_initial_values")
def fold_dot_accumulate(program: Program) -> Program:
    """A product that is added to an accumulator, directly or through a tile used once, becomes `dot(..., acc=...)`.

        t[i, d] = dot(p[i, j], v[j, d])               =>
        o[i, d] = o[i, d] * s[i, NewAxis] + t[i, d]         o[i, d] = dot(p[i, j], v[j, d], acc=o[i, d] * s[i, NewAxis])

    The two stores are in one body, no statement between them stores what the product reads, and no other statement
    reads the product.  The sum is in float32 before and after.
    """
    return map_kernels(program, lambda kernel: with_body(kernel, _fold_body(kernel.body, kernel, program)))


@dataclass(frozen=True, slots=True)
class _Fold:
    value: Dot
    product: Store | None  # the store to remove


def _fold_body(body: tuple[Stmt, ...], kernel: Kernel, program: Program) -> tuple[Stmt, ...]:
    out: list[Stmt] = list(body)
    changed = False
    for stmt in body:
        if isinstance(stmt, Store):
            at = next(n for n, other in enumerate(out) if other is stmt)
            fold = _find(stmt, out[:at], kernel, program)
            if fold is None:
                continue
            out[at] = replace(stmt, value=fold.value)
            out = [other for other in out if other is not fold.product]
            changed = True
        else:
            inner = _fold_body(stmt.body, kernel, program)
            if inner is not stmt.body:
                out[next(n for n, other in enumerate(out) if other is stmt)] = replace(stmt, body=inner)
                changed = True
    return tuple(out) if changed else body


def _find(store: Store, before: list[Stmt], kernel: Kernel, program: Program) -> _Fold | None:
    match store.value:
        case Elementwise(op="add", args=(x, y), dtype="float32") if store.mask is None:
            return _fold(store, x, y, before, kernel, program) or _fold(store, y, x, before, kernel, program)
        case _:
            return None


def _fold(
    store: Store, acc: TileExpr, added: TileExpr, before: list[Stmt], kernel: Kernel, program: Program
) -> _Fold | None:
    if not any(access.tensor == store.target.tensor for access in accesses(acc)):
        return None  # an addition, but no accumulation
    match added:
        case Dot(a=a, b=b, acc=None):
            product = None
        case Access(tensor=name) if program.tensor(name).space == "chip":
            product = _product(added, before, kernel)
            if product is None:
                return None
            assert isinstance(product.value, Dot)
            a, b = product.value.a, product.value.b
        case _:
            return None
    value = Dot(a, b, acc)
    return _Fold(value, product) if shape_of(acc, program) == shape_of(Dot(a, b), program) else None


def _product(tile: Access, before: list[Stmt], kernel: Kernel) -> Store | None:
    """The store of a dot without accumulator that `tile` reads, if the dot can be moved to the read."""
    name = tile.tensor
    uses = [access for store in stores(kernel.body) for access in reads(store) if access.tensor == name]
    writes = [store for store in stores(kernel.body) if store.target.tensor == name]
    if len(uses) != 1 or len(writes) != 1:
        return None
    product = writes[0]
    whole = not any(isinstance(index, NewAxis) for index in tile.index) and same_region(product.target, tile)
    if not whole or product.mask is not None or not isinstance(product.value, Dot) or product.value.acc is not None:
        return None
    position = next((n for n, stmt in enumerate(before) if stmt is product), None)
    if position is None:
        return None
    operands = {access.tensor for access in reads(product)}
    between = {store.target.tensor for store in stores(before[position + 1 :])}
    return None if operands & between else product
