"""Finds the exponentials that reach an output without a division, so that their own error is the output's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neptune_lab.htile.nodes import Access, Cast, Elementwise, Program, Reduce, TileExpr
from neptune_lab.htile.walk import children, expressions, stores, subexpressions, values_by_tensor
from neptune_lab.htile_passes.constants import split_factor
from neptune_lab.strict.dtypes import HALVES

_LINEAR = ("add", "sub", "mul", "neg", "where", "max", "min")
_LOGARITHMS = ("log", "log2")


def undivided_exponents(program: Program) -> frozenset[TileExpr]:
    """The arguments of exponentials that reach an output through sums, products and selections only.

    A softmax divides its exponentials by their sum, so an error that a row has in common cancels.  A sum that is an
    output itself, as a training step keeps it, has that error.  So has the logarithm of such a sum, if it is an output
    itself; if the row's maximum is added to it, the error is a rounding of that maximum.  Exponentials that are also
    rounded to 16 bits for a matrix product are left out: that rounding is larger, and their multiplications are what
    attention waits for.
    """
    every = [store for kernel in program.kernels for store in stores(kernel.body)]
    values = values_by_tensor(every)
    rounded = {
        expr.arg.tensor if isinstance(expr.arg, Access) else expr.arg
        for store in every
        for root in expressions(store)
        for expr in subexpressions(root)
        if isinstance(expr, Cast) and expr.dtype in HALVES
    }
    rounded |= {store.value for store in every if store.target.tensor in rounded}
    found: set[TileExpr] = set()
    seen = set(program.outputs)
    left: list[TileExpr] = [value for name in seen for value in values.get(name, ())]
    left += [arg for value in left for arg in _logarithms(value, values)]
    while left:
        match left.pop():
            case Elementwise(op="exp", args=(arg,)) as expr if expr not in rounded:
                found.add(arg)
            case Access(tensor=name) if name not in seen:
                seen.add(name)
                left += values.get(name, ())
            case (Elementwise(op=op) | Reduce(op=op)) as expr if isinstance(expr, Reduce) or op in _LINEAR:
                left += children(expr)
            case Cast(arg=arg):
                left.append(arg)
            case _:
                pass
    return frozenset(found)


def _logarithms(value: TileExpr, values: Mapping[str, Sequence[TileExpr]]) -> Iterator[TileExpr]:
    """The arguments of the logarithms that an output is, whatever selects it."""
    seen: set[str] = set()
    left = [value]
    while left:
        match split_factor(left.pop())[0]:
            case Elementwise(op=op, args=(arg,)) if op in _LOGARITHMS:
                yield arg
            case Elementwise(op="where", args=(_, a, b)):
                left += (a, b)
            case Access(tensor=name) if name not in seen:
                seen.add(name)
                left += values.get(name, ())
            case _:
                pass
