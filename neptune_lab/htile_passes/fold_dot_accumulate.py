"""Lets the matrix unit add: the tile to which a product is added becomes the dot's accumulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile.nodes import Access, Dot, Elementwise, Kernel, NewAxis, Program, Stmt, Store, TileExpr
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.walk import accesses, reads, same_region, stores, with_body
from neptune_lab.htile_passes.rewrite import edit_bodies, map_kernels, position, tile_pass
from neptune_lab.strict.dtypes import EIGHTS


@tile_pass(after="fold_initial_values")
def fold_dot_accumulate(program: Program) -> Program:
    """A product that is added to an accumulator, directly or through a tile used once, becomes `dot(..., acc=...)`.

        t[i, d] = dot(p[i, j], v[j, d])               =>
        o[i, d] = o[i, d] * s[i, NewAxis] + t[i, d]         o[i, d] = dot(p[i, j], v[j, d], acc=o[i, d] * s[i, NewAxis])

    The two stores are in one body, no statement between them stores what the product reads, and no other statement
    reads the product.  The sum is in float32 before and after.
    Left alone for factors of 8 bits: a matrix unit's own accumulator has fewer digits than float32 there.
    """

    def fold_in(kernel: Kernel) -> Kernel:
        def fold(store: Store, body: list[Stmt]) -> bool:
            at = position(body, store)
            folded = _find(store, body[:at], kernel, program)
            if folded is None:
                return False
            body[at] = replace(store, value=folded.value)
            body[:] = [other for other in body if other is not folded.product]
            return True

        return with_body(kernel, edit_bodies(kernel.body, fold))

    return map_kernels(program, fold_in)


@dataclass(frozen=True, slots=True)
class _Fold:
    value: Dot
    product: Store | None  # the store to remove


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
    if dtype_of(a, program) in EIGHTS:
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
    at = next((n for n, stmt in enumerate(before) if stmt is product), None)
    if at is None:
        return None
    operands = {access.tensor for access in reads(product)}
    between = {store.target.tensor for store in stores(before[at + 1 :])}
    return None if operands & between else product
