"""Dtypes of constants in a text of a loop program: most follow from their place and are left out.

In an expression as it is read or printed, a dtype that the text does not state is "".  `filled` puts in what follows,
and `elided` takes out what would follow, so `filled(elided(e)) == e`.

What follows is the dtype of the other operands of the operation; if all are constants, what the place takes: int32 in
an index, a binding or a condition, bool in a condition's parts, in a stored value the tensor's dtype; in a conversion,
which takes anything, float32, int32 or bool, by how the first of them is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Var, children, rebuild
from neptune_lab.scalar_ops import in_loops
from neptune_lab.strict.dtypes import usual

INDEX = "int32"


def bare(expr: Expr) -> Expr:
    """`expr` with no dtype of a constant stated."""
    match expr:
        case Const(value):
            return Const(value, "")
        case Previous(buffer, indices, initial):
            return Previous(buffer, tuple(bare(index) for index in indices), Const(initial.value, ""))
    return rebuild(expr, tuple(bare(child) for child in children(expr)))


def elided(expr: Expr, wanted: str, dtypes: Mapping[str, str]) -> Expr:
    """`expr` without the dtypes that `filled` would put in."""
    short = _elided(expr, filled(bare(expr), wanted, dtypes))
    # A constant that states its dtype gives it to the others: of mixed ones, all are stated.
    return short if filled(short, wanted, dtypes) == expr else expr


def _elided(expr: Expr, guessed: Expr) -> Expr:
    match expr, guessed:
        case Const(value, dtype), Const(_, other):
            return Const(value, "") if dtype == other else expr
        case Previous(buffer, indices, initial), Previous(_, others, guess):
            short = tuple(_elided(a, b) for a, b in zip(indices, others, strict=True))
            return Previous(buffer, short, initial if initial.dtype != guess.dtype else Const(initial.value, ""))
    pairs = zip(children(expr), children(guessed), strict=True)
    return rebuild(expr, tuple(_elided(a, b) for a, b in pairs))


def filled(expr: Expr, wanted: str, dtypes: Mapping[str, str]) -> Expr:
    """`expr` with all dtypes.

    Args:
        wanted: the dtype that its place takes; "" if that is any.
        dtypes: of the buffers, by name.
    """
    match expr:
        case Const(value, dtype):
            return expr if dtype else Const(value, wanted or usual(value))
        case Var():
            return expr
        case Load(buffer, indices):
            return Load(buffer, tuple(filled(index, INDEX, dtypes) for index in indices))
        case Previous(buffer, indices, initial):
            start = initial if initial.dtype else Const(initial.value, dtypes.get(buffer, ""))
            return Previous(buffer, tuple(filled(index, INDEX, dtypes) for index in indices), start)
        case Cast(dtype, arg):
            return Cast(dtype, filled(arg, "", dtypes))
        case Op(name, args):
            condition, operands = _parts(name, args)
            inner = {"logic": "bool", "comparison": ""}.get(_kind(name), wanted)
            common = next(_definite(operands, dtypes), inner) or usual(next(_values(operands), 0.0))
            conditions = tuple(filled(arg, "bool", dtypes) for arg in condition)
            return Op(name, conditions + tuple(filled(arg, common, dtypes) for arg in operands))


def _kind(name: str) -> str:
    row = in_loops(name)
    return "number" if row is None else row.kind


def _parts(name: str, args: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The condition of a choice, if it is one, and the operands of one dtype."""
    return (args[:1], args[1:]) if name == "select" else ((), args)


def _definite(exprs: Sequence[Expr], dtypes: Mapping[str, str]) -> Iterator[str]:
    """The dtypes, from left to right, that do not depend on where the expressions are."""
    for expr in exprs:
        match expr:
            case Const(_, dtype) | Cast(dtype, _):
                pass
            case Var():
                dtype = INDEX
            case Load(buffer, _) | Previous(buffer, _, _):
                dtype = dtypes.get(buffer, "")
            case Op(name, args):
                boolean = _kind(name) in ("comparison", "logic")
                dtype = "bool" if boolean else next(_definite(_parts(name, args)[1], dtypes), "")
        if dtype:
            yield dtype


def _values(exprs: Sequence[Expr]) -> Iterator[float | int | bool]:
    """The constants that give expressions without a definite dtype theirs, from left to right."""
    for expr in exprs:
        match expr:
            case Const(value):
                yield value
            case Op(name, args):
                yield from _values(_parts(name, args)[1])
            case _:
                pass
