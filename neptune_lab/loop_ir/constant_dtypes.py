"""Dtypes of constants in the text of a loop program: most are inferred from their place and not printed.

In an expression that is read or printed, a dtype that the text does not state is "".  `filled` adds the inferred
dtypes, and `elided` removes those that would be inferred, so `filled(elided(e)) == e`.

A constant takes the dtype of the other operands of the operation.  If all are constants, it takes that of the place:
int32 in an index, a binding or a condition, bool in the parts of a condition, the tensor's dtype in a stored value.  A
conversion accepts any dtype; there, it is float32, int32 or bool, by the form of the first constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neptune_lab.loop_ir.nodes import Cast, Const, Expr, Load, Op, Previous, Var, children, rebuild
from neptune_lab.scalar_ops import in_loops
from neptune_lab.strict.dtypes import usual

INDEX = "int32"


def bare(expr: Expr) -> Expr:
    """`expr` without the dtypes of its constants."""
    match expr:
        case Const(value):
            return Const(value, "")
        case Previous(buffer, indices, initial):
            return Previous(buffer, tuple(bare(index) for index in indices), Const(initial.value, ""))
    return rebuild(expr, tuple(bare(child) for child in children(expr)))


def elided(expr: Expr, wanted: str, dtypes: Mapping[str, str]) -> Expr:
    """`expr` without the dtypes that `filled` would add; the arguments are those of `filled`."""
    short = _elided(expr, filled(bare(expr), wanted, dtypes))
    # The others take the dtype of a constant that states it, so if they differ, all are stated.
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
        expr: some of its constants may have the dtype "".
        wanted: the dtype that its place takes; "" for any.
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
    """The dtypes, from left to right, that do not depend on the place of the expressions."""
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
