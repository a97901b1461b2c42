"""What a text of a tile program leaves out, since it follows from the rest: dtypes of expressions, axes of slices.

In a program as it is read or printed, a dtype or axis that the text does not state is "".  `infer_unstated` puts in
what follows, and `elide_inferable` takes out what would follow, so `infer_unstated(elide_inferable(store)) == store`
for a store that is valid.

What follows:

- the axis of a slice of a tensor: the axis that the tensor's declaration gives to the dimension, or `d0`, `d1`, ...;
- the axis of positions (`iota`): that of a slice in what the statement stores to and reads, the first from left to
  right with the same start, extent and dimension in a tile of equal rank; else with the same start and extent; else
  with the same extent and dimension in a tile of equal rank; else `d0`, `d1`, ... by the dimension;
- the dtype of an elementwise operator: bool for a comparison, else that of the operands;
- the dtype of a literal: that of the other operands; if all are literals, what the expression is used for, such as the
  dtype of the tensor that it is stored to; else float32, int32 or bool, by how the first of them is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import assert_never

from neptune_lab.htile.nodes import (
    Access,
    Cast,
    Dot,
    Elementwise,
    Gather,
    Index,
    Iota,
    Literal,
    NewAxis,
    Permute,
    Program,
    Reduce,
    Scalar,
    Slice,
    Store,
    Tensor,
    TileExpr,
)
from neptune_lab.htile.shapes import COMPARISONS, LOGICAL
from neptune_lab.htile.walk import gathered_tensors, reads, rewrite, rewrite_store, stores, subexpressions
from neptune_lab.strict.dtypes import usual

_BOOLEAN = COMPARISONS | LOGICAL | {"not"}


@dataclass(frozen=True, slots=True)
class Declared:
    """What a program declares about its tensors.

    Args:
        tensors: as in the program.
        axes: for each of them the axis of each dimension, or "" for none.
    """

    tensors: tuple[Tensor, ...]
    axes: tuple[tuple[str, ...], ...]

    def of_stores(self) -> Callable[[Store], Declared]:
        """For each store, the declarations of what it writes and reads."""
        by_name = {tensor.name: (tensor, axes) for tensor, axes in zip(self.tensors, self.axes, strict=True)}

        def of_store(store: Store) -> Declared:
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


def declared(program: Program) -> Declared:
    """The declarations for a program's text: each dimension has the axis of most of its slices, the first of these in
    a tie."""
    walked: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for kernel in program.kernels:
        for store in stores(kernel.body):
            for place, axis in _walked(store):
                walked[place][axis] += 1

    def most(name: str, dim: int) -> str:
        found = walked.get((name, dim))
        return max(found, key=found.__getitem__) if found else ""

    axes = tuple(tuple(most(t.name, dim) for dim in range(len(t.shape))) for t in program.tensors)
    return Declared(program.tensors, axes)


@lru_cache(maxsize=4096)
def _walked(store: Store) -> tuple[tuple[tuple[str, int], str], ...]:
    """The tensor, dimension and axis of each slice of a tensor in a store."""
    return tuple(
        ((access.tensor, dim), part.axis)
        for access in (store.target, *reads(store))
        for dim, part in enumerate(p for p in access.index if not isinstance(p, NewAxis))
        if isinstance(part, Slice)
    )


@lru_cache(maxsize=4096)
def _tensors_of(store: Store) -> tuple[str, ...]:
    """The names of the tensors that a store writes and reads."""
    return tuple(
        dict.fromkeys((store.target.tensor, *(access.tensor for access in reads(store)), *gathered_tensors(store)))
    )


# -- taking out -----------------------------------------------------------------------------------------------------


def bare(expr: TileExpr) -> TileExpr:
    """`expr` with no dtype of a literal and no axis stated."""
    return rewrite(expr, lambda e: _without(e, None))


def elide_inferable(store: Store, known: Declared) -> Store:
    """`store` without what `infer_unstated` would put in."""
    nodes = (node for root in (store.value, store.mask) if root is not None for node in subexpressions(root))
    if not any(isinstance(node, Literal | Iota) for node in nodes):  # all that is left out are axes of tensors
        short = rewrite_store(store, lambda expr: _short(expr, known) if isinstance(expr, Access) else expr)
        return replace(short, target=_short(store.target, known))
    mask = None if store.mask is None else bare(store.mask)
    target = bare(store.target)
    assert isinstance(target, Access)
    guessed = infer_unstated(replace(store, target=target, value=bare(store.value), mask=mask), known)
    target = _without(store.target, guessed.target)
    assert isinstance(target, Access)
    mask = None if store.mask is None or guessed.mask is None else _elided(store.mask, guessed.mask)
    return replace(store, target=target, value=_elided(store.value, guessed.value), mask=mask)


def _short(access: Access, known: Declared) -> Access:
    """`access` without the axes that its tensor's declaration gives."""
    parts: list[Index] = []
    dim = 0
    for part in access.index:
        if isinstance(part, Slice) and part.axis == known.axis(access.tensor, dim):
            part = Slice(part.start, part.extent, "")
        dim += not isinstance(part, NewAxis)
        parts.append(part)
    return Access(access.tensor, tuple(parts))


def _elided(expr: TileExpr, guessed: TileExpr) -> TileExpr:
    order: list[TileExpr] = []

    def listed(node: TileExpr) -> TileExpr:
        order.append(node)
        return node

    rewrite(guessed, listed)
    twins = iter(order)
    return rewrite(expr, lambda node: _without(node, next(twins)))


def _without(expr: TileExpr, guessed: TileExpr | None) -> TileExpr:
    """`expr` without what is stated in itself, as far as `guessed`, if given, agrees."""
    match expr, guessed:
        case Literal(), None:
            return Literal(expr.value, "")
        case Literal(dtype=dtype), Literal(dtype=other):
            return Literal(expr.value, "") if dtype == other else expr
        case ((Access(index=index) | Iota(index=index)), (None | Access() | Iota())):
            twins = index if guessed is None else guessed.index
            parts = [
                Slice(part.start, part.extent, "") if isinstance(part, Slice) and part == twin else part
                for part, twin in zip(index, twins, strict=True)
            ]
            return _indexed(expr, parts)
        case _:
            return expr


def _indexed(expr: Access | Iota, parts: list[Index]) -> Access | Iota:
    """`expr` with other parts of its index, of the same kinds."""
    if isinstance(expr, Access):
        return Access(expr.tensor, tuple(parts))
    return Iota(tuple(part for part in parts if isinstance(part, Slice | NewAxis)))


# -- putting in -----------------------------------------------------------------------------------------------------


def infer_unstated(store: Store, known: Declared) -> Store:
    """`store` with every dtype and axis that it does not state."""

    iotas = False

    def tiles(expr: TileExpr) -> TileExpr:
        nonlocal iotas
        iotas |= isinstance(expr, Iota)
        return _tile(expr, known) if isinstance(expr, Access) else expr

    target = _tile(store.target, known)
    store = rewrite_store(store, tiles)
    if iotas:
        read = (target, *reads(store))
        store = rewrite_store(store, lambda expr: _positions(expr, read) if isinstance(expr, Iota) else expr)
    value = _typed(store.value, known.dtype(target.tensor), known)
    mask = None if store.mask is None else _typed(store.mask, "bool", known)
    return replace(store, target=target, value=value, mask=mask)


def _tile(access: Access, known: Declared) -> Access:
    parts: list[Index] = []
    dim = 0
    for part in access.index:
        if isinstance(part, Slice) and not part.axis:
            part = Slice(part.start, part.extent, known.axis(access.tensor, dim))
        dim += not isinstance(part, NewAxis)
        parts.append(part)
    return Access(access.tensor, tuple(parts))


def _positions(iota: Iota, read: tuple[Access, ...]) -> Iota:
    def walked(part: Slice, dim: int) -> str:
        dims = [[p for p in access.index if isinstance(p, Slice | NewAxis)] for access in read]
        beside = [p for d in dims if len(d) == len(iota.index) and isinstance(p := d[dim], Slice)]
        slices = [p for d in dims for p in d if isinstance(p, Slice)]
        same = [p for p in (*beside, *slices) if (p.start, p.extent) == (part.start, part.extent)]
        found = (*same, *(p for p in beside if p.extent == part.extent))
        return found[0].axis if found else f"d{dim}"

    index = (
        replace(part, axis=walked(part, dim)) if isinstance(part, Slice) and not part.axis else part
        for dim, part in enumerate(iota.index)
    )
    return Iota(tuple(index))


def _typed(expr: TileExpr, wanted: str, known: Declared) -> TileExpr:
    """`expr` with all dtypes; `wanted` is what its place asks for, or "" if that is anything."""
    match expr:
        case Literal(value=value, dtype=dtype):
            return expr if dtype else replace(expr, dtype=wanted or usual(value))
        case Elementwise(op=op, args=args):
            whole = "bool" if op in _BOOLEAN else wanted
            inner = "bool" if op in LOGICAL or op == "not" else "" if op in COMPARISONS else wanted
            condition, operands = (args[:1], args[1:]) if op == "where" else ((), args)
            common = next(_definite(operands, known), inner) or usual(next(_values(operands), 0.0))
            found = tuple(_typed(arg, "bool", known) for arg in condition)
            found += tuple(_typed(arg, common, known) for arg in operands)
            return Elementwise(op, found, whole if op in _BOOLEAN else common)
        case Cast(arg=arg, dtype=dtype):
            return Cast(_typed(arg, "", known), dtype)
        case Permute(arg=arg) | Reduce(arg=arg):
            return replace(expr, arg=_typed(arg, wanted, known))
        case Gather(indices=indices):
            return replace(expr, indices=tuple(_typed(index, "int32", known) for index in indices))
        case Dot(a=a, b=b, acc=acc):
            common = next(_definite((a, b), known), "")
            acc = None if acc is None else _typed(acc, "float32", known)
            return Dot(_typed(a, common, known), _typed(b, common, known), acc)
        case Access() | Iota() | Scalar():
            return expr
        case _:
            assert_never(expr)


def _definite(exprs: tuple[TileExpr, ...], known: Declared) -> Iterator[str]:
    """The dtypes, from left to right, that do not depend on the context of the expressions."""
    for expr in exprs:
        match expr:
            case Access(tensor=name) | Gather(tensor=name):
                dtype = known.dtype(name)
            case Iota() | Scalar():
                dtype = "int32"
            case Literal(dtype=dtype) | Cast(dtype=dtype):
                pass
            case Elementwise(op=op, args=args):
                operands = args[1:] if op == "where" else args
                dtype = "bool" if op in _BOOLEAN else next(_definite(operands, known), "")
            case Permute(arg=arg) | Reduce(arg=arg):
                dtype = next(_definite((arg,), known), "")
            case Dot():
                dtype = "float32"
            case _:
                assert_never(expr)
        if dtype:
            yield dtype


def _values(exprs: tuple[TileExpr, ...]) -> Iterator[float | int | bool]:
    """The literals that give expressions without a definite dtype theirs, from left to right."""
    for expr in exprs:
        match expr:
            case Literal(value=value):
                yield value
            case Elementwise(op=op, args=args):
                yield from _values(args[1:] if op == "where" else args)
            case Permute(arg=arg) | Reduce(arg=arg):
                yield from _values((arg,))
            case _:
                pass
