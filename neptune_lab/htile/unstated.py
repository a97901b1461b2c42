"""Dtypes of expressions and axes of slices that the text of a tile program need not state.

While a program is parsed or printed, a dtype or axis that the text does not state is "".  `infer_unstated` infers
these; `elide_inferable` removes what would be inferred, so `infer_unstated(elide_inferable(store)) == store` for a
valid store.

The rules of inference:

- the axis of a slice of a tensor: the axis that the tensor's declaration gives to the dimension, or `d0`, `d1`, ...;
- the axis of positions (`iota`): that of a slice in what the statement stores to and reads, the first from left to
  right with the same start, extent and dimension in a tile of equal rank; else with the same start and extent; else
  with the same extent and dimension in a tile of equal rank; else `d0`, `d1`, ... by the dimension;
- the dtype of an elementwise operator: bool for a comparison, else that of the operands;
- the dtype of a literal: that of the other operands; if all are literals, the one that the context requires, such as
  the dtype of the tensor that the expression is stored to; else float32, int32 or bool, by the form of the first one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import assert_never

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.shapes import COMPARISONS, LOGICAL
from neptune_lab.htile.walk import (
    expressions,
    gathered_tensors,
    reads,
    region,
    rewrite,
    rewrite_store,
    stores,
    tile_dims,
)
from neptune_lab.strict.dtypes import usual

_BOOLEAN = COMPARISONS | LOGICAL | {"not"}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a program declares about its tensors.

    Args:
        tensors: as in the program.
        axes: for each of them the axis of each dimension, or "" for none.
    """

    tensors: tuple[ir.Tensor, ...]
    axes: tuple[tuple[str, ...], ...]

    def of_stores(self) -> Callable[[ir.Store], Declared]:
        """A function from a store to the declarations of the tensors that it stores to and reads."""
        by_name = {tensor.name: (tensor, axes) for tensor, axes in zip(self.tensors, self.axes, strict=True)}

        def of_store(store: ir.Store) -> Declared:
            known = [by_name[name] for name in _tensors_of(store) if name in by_name]
            return Declared(tuple(tensor for tensor, _ in known), tuple(axes for _, axes in known))

        return of_store

    def dtype(self, name: str) -> str:
        """The dtype of the tensor called `name`; "" if there is none."""
        return next((t.dtype for t in self.tensors if t.name == name), "")

    def axis(self, name: str, dim: int) -> str:
        """The axis of a slice of dimension `dim` of the tensor called `name`."""
        for tensor, axes in zip(self.tensors, self.axes, strict=True):
            if tensor.name == name and dim < len(axes) and axes[dim]:
                return axes[dim]
        return f"d{dim}"


def declared(program: ir.Program) -> Declared:
    """The declarations for a program's text: each dimension has the axis of most of its slices, in a tie the first."""
    counts: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for kernel in program.kernels:
        for store in stores(kernel.body):
            for place, axis in _axes(store):
                counts[place][axis] += 1

    def most_common(name: str, dim: int) -> str:
        by_axis = counts.get((name, dim))
        return max(by_axis, key=by_axis.__getitem__) if by_axis else ""

    axes = tuple(tuple(most_common(t.name, dim) for dim in range(len(t.shape))) for t in program.tensors)
    return Declared(program.tensors, axes)


@lru_cache(maxsize=4096)
def _axes(store: ir.Store) -> tuple[tuple[tuple[str, int], str], ...]:
    """The tensor, dimension and axis of each slice of a tensor in a store."""
    return tuple(
        ((access.tensor, dim), part.axis)
        for access in (store.target, *reads(store))
        for dim, part in enumerate(region(access))
        if isinstance(part, ir.Slice)
    )


@lru_cache(maxsize=4096)
def _tensors_of(store: ir.Store) -> tuple[str, ...]:
    """The names of the tensors that a store writes to and reads."""
    return tuple(
        dict.fromkeys((store.target.tensor, *(access.tensor for access in reads(store)), *gathered_tensors(store)))
    )


# -- eliding --------------------------------------------------------------------------------------------------------


def elide_all(expr: ir.TileExpr) -> ir.TileExpr:
    """`expr` without any axis or dtype of a literal."""
    return rewrite(expr, lambda e: _without(e, None))


def elide_inferable(store: ir.Store, known: Declared) -> ir.Store:
    """`store` without the dtypes and axes that `infer_unstated` would infer."""
    if not any(isinstance(node, ir.Literal | ir.Iota) for node in expressions(store)):
        # Only axes of tensors can be inferred.
        short = rewrite_store(store, lambda expr: _elide_axes(expr, known) if isinstance(expr, ir.Access) else expr)
        return replace(short, target=_elide_axes(store.target, known))
    mask = None if store.mask is None else elide_all(store.mask)
    target = elide_all(store.target)
    assert isinstance(target, ir.Access)
    inferred = infer_unstated(replace(store, target=target, value=elide_all(store.value), mask=mask), known)
    target = _without(store.target, inferred.target)
    assert isinstance(target, ir.Access)
    mask = None if store.mask is None or inferred.mask is None else _elide(store.mask, inferred.mask)
    return replace(store, target=target, value=_elide(store.value, inferred.value), mask=mask)


def _elide_axes(access: ir.Access, known: Declared) -> ir.Access:
    """`access` without the axes that its tensor's declaration gives."""
    return _map_axes(access, lambda axis, dim: "" if axis == known.axis(access.tensor, dim) else axis)


def _map_axes(access: ir.Access, new_axis: Callable[[str, int], str]) -> ir.Access:
    """`access` with `new_axis(axis, dimension of the tensor)` for the axis of each slice."""
    parts: list[ir.Index] = []
    dim = 0
    for part in access.index:
        if isinstance(part, ir.Slice):
            part = ir.Slice(part.start, part.extent, new_axis(part.axis, dim))
        dim += not isinstance(part, ir.NewAxis)
        parts.append(part)
    return ir.Access(access.tensor, tuple(parts))


def _elide(expr: ir.TileExpr, inferred: ir.TileExpr) -> ir.TileExpr:
    """`expr` without the dtypes and axes that `inferred`, of the same structure, has too."""
    order: list[ir.TileExpr] = []

    def listed(node: ir.TileExpr) -> ir.TileExpr:
        order.append(node)
        return node

    rewrite(inferred, listed)
    counterparts = iter(order)
    return rewrite(expr, lambda node: _without(node, next(counterparts)))


def _without(expr: ir.TileExpr, inferred: ir.TileExpr | None) -> ir.TileExpr:
    """`expr` without its own dtype and axes; with `inferred`, without those that it has too."""
    match expr, inferred:
        case ir.Literal(), None:
            return ir.Literal(expr.value, "")
        case ir.Literal(dtype=dtype), ir.Literal(dtype=other):
            return ir.Literal(expr.value, "") if dtype == other else expr
        case ((ir.Access(index=index) | ir.Iota(index=index)), (None | ir.Access() | ir.Iota())):
            counterparts = index if inferred is None else inferred.index
            parts = [
                ir.Slice(part.start, part.extent, "") if isinstance(part, ir.Slice) and part == other else part
                for part, other in zip(index, counterparts, strict=True)
            ]
            return _indexed(expr, parts)
        case _:
            return expr


def _indexed(expr: ir.Access | ir.Iota, parts: list[ir.Index]) -> ir.Access | ir.Iota:
    """`expr` with another index, whose parts are of the same kinds."""
    if isinstance(expr, ir.Access):
        return ir.Access(expr.tensor, tuple(parts))
    return ir.Iota(tile_dims(parts))


# -- inferring ------------------------------------------------------------------------------------------------------


def infer_unstated(store: ir.Store, known: Declared) -> ir.Store:
    """`store` with every dtype and axis that it does not state."""

    has_iota = False

    def with_axes(expr: ir.TileExpr) -> ir.TileExpr:
        nonlocal has_iota
        has_iota |= isinstance(expr, ir.Iota)
        return declared_axes(expr) if isinstance(expr, ir.Access) else expr

    def declared_axes(access: ir.Access) -> ir.Access:
        return _map_axes(access, lambda axis, dim: axis or known.axis(access.tensor, dim))

    target = declared_axes(store.target)
    store = rewrite_store(store, with_axes)
    if has_iota:
        read = (target, *reads(store))
        store = rewrite_store(store, lambda expr: _positions(expr, read) if isinstance(expr, ir.Iota) else expr)
    value = _typed(store.value, known.dtype(target.tensor), known)
    mask = None if store.mask is None else _typed(store.mask, "bool", known)
    return replace(store, target=target, value=value, mask=mask)


def _positions(iota: ir.Iota, read: tuple[ir.Access, ...]) -> ir.Iota:
    def axis(part: ir.Slice, dim: int) -> str:
        dims = [tile_dims(access.index) for access in read]
        aligned = [p for d in dims if len(d) == len(iota.index) and isinstance(p := d[dim], ir.Slice)]
        slices = [p for d in dims for p in d if isinstance(p, ir.Slice)]
        same = [p for p in (*aligned, *slices) if (p.start, p.extent) == (part.start, part.extent)]
        candidates = (*same, *(p for p in aligned if p.extent == part.extent))
        return candidates[0].axis if candidates else f"d{dim}"

    index = (
        replace(part, axis=axis(part, dim)) if isinstance(part, ir.Slice) and not part.axis else part
        for dim, part in enumerate(iota.index)
    )
    return ir.Iota(tuple(index))


def _typed(expr: ir.TileExpr, wanted: str, known: Declared) -> ir.TileExpr:
    """`expr` with all dtypes; `wanted` is the dtype that its context requires, "" if any will do."""
    match expr:
        case ir.Literal(value=value, dtype=dtype):
            return expr if dtype else replace(expr, dtype=wanted or usual(value))
        case ir.Elementwise(op=op, args=args):
            inner = "bool" if op in LOGICAL or op == "not" else "" if op in COMPARISONS else wanted
            condition, operands = (args[:1], args[1:]) if op == "where" else ((), args)
            common = next(_definite(operands, known), inner) or usual(next(_values(operands), 0.0))
            typed = tuple(_typed(arg, "bool", known) for arg in condition)
            typed += tuple(_typed(arg, common, known) for arg in operands)
            return ir.Elementwise(op, typed, "bool" if op in _BOOLEAN else common)
        case ir.Cast(arg=arg, dtype=dtype):
            return ir.Cast(_typed(arg, "", known), dtype)
        case ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
            return replace(expr, arg=_typed(arg, wanted, known))
        case ir.Gather(indices=indices):
            return replace(expr, indices=tuple(_typed(index, "int32", known) for index in indices))
        case ir.Dot(a=a, b=b, acc=acc):
            common = next(_definite((a, b), known), "")
            acc = None if acc is None else _typed(acc, "float32", known)
            return ir.Dot(_typed(a, common, known), _typed(b, common, known), acc)
        case ir.Access() | ir.Iota() | ir.Scalar():
            return expr
        case _:
            assert_never(expr)


def _definite(exprs: tuple[ir.TileExpr, ...], known: Declared) -> Iterator[str]:
    """The dtypes, from left to right, that do not depend on the context of the expressions."""
    for expr in exprs:
        match expr:
            case ir.Access(tensor=name) | ir.Gather(tensor=name):
                dtype = known.dtype(name)
            case ir.Iota() | ir.Scalar():
                dtype = "int32"
            case ir.Literal(dtype=dtype) | ir.Cast(dtype=dtype):
                pass
            case ir.Elementwise(op=op, args=args):
                operands = args[1:] if op == "where" else args
                dtype = "bool" if op in _BOOLEAN else next(_definite(operands, known), "")
            case ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
                dtype = next(_definite((arg,), known), "")
            case ir.Dot():
                dtype = "float32"
            case _:
                assert_never(expr)
        if dtype:
            yield dtype


def _values(exprs: tuple[ir.TileExpr, ...]) -> Iterator[float | int | bool]:
    """The literals that give expressions without a definite dtype theirs, from left to right."""
    for expr in exprs:
        match expr:
            case ir.Literal(value=value):
                yield value
            case ir.Elementwise(op=op, args=args):
                yield from _values(args[1:] if op == "where" else args)
            case ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
                yield from _values((arg,))
            case _:
                pass
