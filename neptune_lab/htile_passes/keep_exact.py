"""Quotients and roots that a later step cuts: they keep the rounding of IEEE arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from neptune_lab.htile.nodes import Cast, Dot, Elementwise, Literal, Permute, Program, Reduce, Store, TileExpr
from neptune_lab.htile.shapes import COMPARISONS, DIVISIONS, FLOATS
from neptune_lab.htile.walk import accesses, children, map_stores, stores

# Their value jumps where the operand crosses a number, so one rounding more or less can change it by a whole step.
_CUTS = frozenset({"floor", "ceil", "round", *DIVISIONS, *COMPARISONS})
_EXACT = {"div": "div_rn", "sqrt": "sqrt_rn"}

_Visit = Callable[[TileExpr], TileExpr]


def keep_exact(program: Program) -> Program:
    """Before => after, in float32:

        score[...] + ceil(float32(j[...]) / 7.0)   =>   score[...] + ceil(div_rn(float32(j[...]), 7.0))

    A GPU's usual division and square root are off by a unit in the last place or two, and the passes behind this one
    divide by multiplying.  No result shows that, except a result that is cut: ceil(14 / 7) is 2, and ceil(14 * (1/7))
    is 3.  So what reaches floor, ceil, round, a comparison or a conversion to whole numbers, through tiles too, is
    rounded as IEEE 754 says, which is what PyTorch computes.
    """

    def exact(expr: TileExpr) -> TileExpr:
        match expr:
            case Elementwise(op="div" | "sqrt" as op, dtype="float32"):
                return replace(expr, op=_EXACT[op])
            case _:
                return expr

    return rewrite_by_use(program, lambda expr: expr, exact)


def rewrite_by_use(program: Program, smooth: _Visit, cut: _Visit) -> Program:
    """`program` with `cut` applied to every expression whose value is cut, and `smooth` to all others, children first;
    the same object where nothing changed."""
    names = _cut_tiles(program)

    def store(stmt: Store) -> Store:
        value = _visit(stmt.value, stmt.target.tensor in names, smooth, cut)
        mask = None if stmt.mask is None else _visit(stmt.mask, True, smooth, cut)
        return stmt if value is stmt.value and mask is stmt.mask else replace(stmt, value=value, mask=mask)

    kernels = tuple(
        kernel if (body := map_stores(kernel.body, store)) is kernel.body else replace(kernel, body=body)
        for kernel in program.kernels
    )
    unchanged = all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    return program if unchanged else replace(program, kernels=kernels)


def _cut_tiles(program: Program) -> frozenset[str]:
    """The tensors that some cut reads, directly or through other tensors."""
    every = [store for kernel in program.kernels for store in stores(kernel.body)]
    names: set[str] = set()
    while True:
        found = set(names)
        for store in every:
            found |= {a.tensor for a in accesses(store.mask)}
            found |= _read_by_cuts(store.value, store.target.tensor in names or _is_whole(store, program))
        if found == names:
            return frozenset(names)
        names = found


def _is_whole(store: Store, program: Program) -> bool:
    return program.tensor(store.target.tensor).dtype not in FLOATS


def _read_by_cuts(expr: TileExpr, inside: bool) -> set[str]:
    inside = inside or cuts(expr)
    if inside:
        return {access.tensor for access in accesses(expr)}
    return set().union(*(_read_by_cuts(child, inside) for child in children(expr)))


def cuts(expr: TileExpr) -> bool:
    """Whether `expr` jumps where its operand crosses some number."""
    match expr:
        case Elementwise(args=(_, Literal(value=value)) | (Literal(value=value), _)) if math.isinf(value):
            return False  # a guard: no rounding makes an infinity of a finite number
        case Elementwise(op=op):
            return op in _CUTS
        case Cast(dtype=dtype):
            return dtype not in FLOATS
        case _:
            return False


def _visit(expr: TileExpr, inside: bool, smooth: _Visit, cut: _Visit) -> TileExpr:
    visit = cut if inside else smooth
    below = inside or cuts(expr)

    def each(child: TileExpr) -> TileExpr:
        return _visit(child, below, smooth, cut)

    match expr:
        case Elementwise(args=args):
            new = tuple(each(arg) for arg in args)
            same = all(a is b for a, b in zip(new, args, strict=True))
            return visit(expr if same else replace(expr, args=new))
        case Cast(arg=arg) | Permute(arg=arg) | Reduce(arg=arg):
            inner = each(arg)
            return visit(expr if inner is arg else replace(expr, arg=inner))
        case Dot(a=a, b=b, acc=acc):
            x, y, z = each(a), each(b), None if acc is None else each(acc)
            return visit(expr if x is a and y is b and z is acc else Dot(x, y, z))
        case _:
            return visit(expr)
