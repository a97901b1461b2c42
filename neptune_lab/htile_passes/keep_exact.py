"""Keeps IEEE rounding in quotients and roots that a later step truncates or compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import cached_property

from neptune_lab.htile.nodes import (
    Access,
    Cast,
    Dot,
    Elementwise,
    Grouped,
    Literal,
    Permute,
    Program,
    Reduce,
    Store,
    TileExpr,
)
from neptune_lab.htile.shapes import operation
from neptune_lab.htile.walk import accesses, children, map_stores, stores, subexpressions, with_body
from neptune_lab.htile_passes.rewrite import map_kernels, rewrite_expressions, tile_pass
from neptune_lab.strict.dtypes import FLOATS

# Whether these are 0 depends only on whether their operands are, not on rounding.
_KEEP_ZERO = frozenset({"mul", "div", "neg", "abs", "sqrt", "max", "min", "where"})


class Use(IntEnum):
    """How a value is used: by operations that hide a difference in rounding, by `round`, or truncated or compared."""

    SMOOTH = 0
    ROUNDED = 1
    CUT = 2


_Visit = Callable[[TileExpr, Use], TileExpr]


@tile_pass(after="convert_positions_as_vectors")  # before any pass that rounds in another way
def keep_exact(program: Program) -> Program:
    """Before => after, in float32:

        score[...] + ceil(float32(j[...]) / 7.0)   =>   score[...] + ceil(div_rn(float32(j[...]), 7.0))

    A GPU's usual division and square root may be off by two units in the last place, and later passes divide by
    multiplying.  This shows only in results that are truncated: ceil(14 / 7) is 2, but ceil(14 * (1/7)) is 3.  So
    quotients and roots that reach floor, ceil, a comparison or a conversion to integers, also through tiles, are
    rounded as IEEE 754 requires, and so are all quotients of the same values: a softmax subtracts a row's maximum from
    elements that it computes again, and both are to be rounded alike.  For `round`, it shows halfway between two
    integers: there, a quotient by a constant is rounded exactly, but one by a computed scale is not (in quantisation,
    that took twice the time on an H200).
    """

    made: set[Hashable] = set()

    def exact(expr: TileExpr, use: Use) -> TileExpr:
        match expr:
            case Elementwise(op="div", args=(_, Literal()), dtype="float32") if use is Use.ROUNDED:
                return replace(expr, op="div_rn")
            case Elementwise(op=op, dtype="float32") if use is Use.CUT and operation(op).ieee:
                made.add(_form(expr))
                return replace(expr, op=operation(op).ieee)
            case _:
                return expr

    def alike(expr: TileExpr) -> TileExpr:
        match expr:
            case Elementwise(op=op, dtype="float32") if operation(op).ieee and _form(expr) in made:
                return replace(expr, op=operation(op).ieee)
            case _:
                return expr

    program = rewrite_by_use(program, exact)
    return rewrite_expressions(program, alike) if made else program


def _form(expr: TileExpr) -> Hashable:
    """An expression without the indices of what it reads; quotients and roots with IEEE rounding as those without."""
    match expr:
        case Access(tensor=name):
            return name
        case Elementwise(op=op, args=args, dtype=dtype):
            return op.removesuffix("_rn"), dtype, *map(_form, args)
        case Literal():
            return expr
        case _:
            return type(expr), getattr(expr, "dtype", None), *map(_form, children(expr))


def rewrite_by_use(program: Program, visit: _Visit) -> Program:
    """`program` with `visit` applied to every expression and its use, children first; the same object if nothing
    changed."""
    uses = _Uses(program)

    def store(stmt: Store) -> Store:
        value = uses.rewrite(stmt.value, uses.of_store(stmt), visit)
        mask = None if stmt.mask is None else uses.rewrite(stmt.mask, Use.CUT, visit)
        return stmt if value is stmt.value and mask is stmt.mask else replace(stmt, value=value, mask=mask)

    return map_kernels(program, lambda kernel: with_body(kernel, map_stores(kernel.body, store)))


class _Uses:
    """The uses of a program's values, also through tiles."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stores = [store for kernel in program.kernels for store in stores(kernel.body)]

    @cached_property
    def _tiles(self) -> Mapping[str, Use]:
        """The strictest use of each tensor, by iteration to a fixed point."""
        uses: dict[str, Use] = {}
        while True:
            before = dict(uses)
            for store in reversed(self._stores):  # most tiles are used after they are stored: two rounds are enough
                for read in accesses(store.mask):
                    uses[read.tensor] = Use.CUT
                self._note(store.value, self._of(store, uses), uses)
            if uses == before:
                return uses

    def _of(self, store: Store, tiles: Mapping[str, Use]) -> Use:
        whole = self._program.tensor(store.target.tensor).dtype not in FLOATS
        return Use.CUT if whole else tiles.get(store.target.tensor, Use.SMOOTH)

    def _note(self, expr: TileExpr, use: Use, uses: dict[str, Use]) -> None:
        if isinstance(expr, Access):
            uses[expr.tensor] = max(use, uses.get(expr.tensor, Use.SMOOTH))
        for child in children(expr):
            self._note(child, self.below(expr, use), uses)

    def of_store(self, store: Store) -> Use:
        """The use of the value of `store`."""
        return self._of(store, self._tiles)

    def below(self, expr: TileExpr, use: Use) -> Use:
        """The use of the operands of `expr`, whose own use is `use`."""
        match expr:
            case Elementwise(args=(_, Literal(value=value)) | (Literal(value=value), _)) if math.isinf(value):
                return use  # a guard: rounding does not make a finite number infinite
            case Elementwise(op="eq" | "ne", args=(a, Literal(value=0)) | (Literal(value=0), a)):
                return Use.SMOOTH if self._keeps_zero(a) else Use.CUT
            case Elementwise(op="round"):
                return Use.ROUNDED
            case Elementwise(op=op) if operation(op).jumps:
                return Use.CUT
            case Cast(dtype=dtype) if dtype not in FLOATS:
                return Use.CUT
            case _:
                return use

    @cached_property
    def _rounded(self) -> frozenset[str]:
        """The tensors that are 0 for inputs that depend on the rounding of quotients and roots, in themselves or in
        what they are computed from.
        """
        readers: dict[str, list[str]] = {}
        waiting: list[str] = []
        for store in self._stores:
            reads = _zero_of(store.value)
            if reads is None:
                waiting.append(store.target.tensor)
            for name in reads or ():
                readers.setdefault(name, []).append(store.target.tensor)
        found: set[str] = set()
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += readers.get(name, ())
        return frozenset(found)

    def _keeps_zero(self, expr: TileExpr) -> bool:
        """Whether the inputs for which `expr` is 0 do not depend on the rounding of its quotients and roots."""
        reads = _zero_of(expr)
        return reads is not None and self._rounded.isdisjoint(reads)

    def rewrite(self, expr: TileExpr, use: Use, visit: _Visit) -> TileExpr:
        """`expr` with `visit` applied to all of it, children first."""
        below = self.below(expr, use)

        def each(child: TileExpr) -> TileExpr:
            return self.rewrite(child, below, visit)

        match expr:
            case Elementwise(args=args):
                new = tuple(each(arg) for arg in args)
                same = all(a is b for a, b in zip(new, args, strict=True))
                return visit(expr if same else replace(expr, args=new), use)
            case Cast(arg=arg) | Permute(arg=arg) | Grouped(arg=arg) | Reduce(arg=arg):
                inner = each(arg)
                return visit(expr if inner is arg else replace(expr, arg=inner), use)
            case Dot(a=a, b=b, acc=acc):
                x, y, z = each(a), each(b), None if acc is None else each(acc)
                return visit(expr if x is a and y is b and z is acc else Dot(x, y, z), use)
            case _:
                return visit(expr, use)


def _zero_of(expr: TileExpr) -> frozenset[str] | None:
    """The tensors that decide for which inputs `expr` is 0; None if the rounding of its quotients and roots does."""
    match expr:
        case Access(tensor=name):
            return frozenset({name})
        case Elementwise(op="div", args=(a, _)):
            return _zero_of(a)
        case Elementwise(op=op, args=args) if op in _KEEP_ZERO:
            found = [_zero_of(arg) for arg in (args[1:] if op == "where" else args)]
            known = [reads for reads in found if reads is not None]
            return frozenset().union(*known) if len(known) == len(found) else None
        case Cast(arg=arg) | Permute(arg=arg) | Grouped(arg=arg) | Reduce(op="max" | "min" | "prod", arg=arg):
            return _zero_of(arg)
        case _:
            inside = list(subexpressions(expr))
            if any(isinstance(e, Elementwise) and e.op in ("div", "sqrt", "pow") for e in inside):
                return None
            return frozenset(e.tensor for e in inside if isinstance(e, Access))
