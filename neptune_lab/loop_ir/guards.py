"""Reads with the conditions on positions under which each happens: a select evaluates one side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from neptune_lab.loop_ir.nodes import Expr, Load, Op, Previous, children, rebuild
from neptune_lab.loop_ir.walks import conjuncts, loads

Read: TypeAlias = "Load | Previous"
Guarded: TypeAlias = tuple[Read, tuple[Expr, ...]]
Change: TypeAlias = Callable[[Read, tuple[Expr, ...]], Expr]


def guarded_reads(expr: Expr) -> list[Guarded]:
    """All reads in evaluation order, with the conditions on iteration variables under which each happens.

    Args:
        expr: any expression.

    >>> from neptune_lab.loop_ir.nodes import Const, Var
    >>> inside = Op("lt", (Var("i"), Const(4)))
    >>> [(read.buffer, len(conditions)) for read, conditions in guarded_reads(
    ...     Op("select", (inside, Load("x", (Var("i"),)), Load("y", ()))))]
    [('x', 1), ('y', 1)]
    """
    found: list[Guarded] = []

    def keep(read: Read, conditions: tuple[Expr, ...]) -> Expr:
        found.append((read, conditions))
        return read

    with_guards(expr, keep)
    return found


def with_guards(expr: Expr, change: Change, conditions: tuple[Expr, ...] = ()) -> Expr:
    """The expression with each read changed, inner reads first.

    Args:
        expr: any expression.
        change: from a read and the conditions under which it happens to what replaces it.
        conditions: those that hold for all of `expr`.

    Returns:
        The expression; the same object if nothing changes.
    """
    match expr:
        case Op("select", (condition, yes, no)):
            # A condition that depends on data bounds no position.
            holds = tuple(c for c in conjuncts(condition) if not loads(c))
            fails = () if loads(condition) else (Op("not", (condition,)),)
            return rebuild(
                expr,
                (
                    with_guards(condition, change, conditions),
                    with_guards(yes, change, (*conditions, *holds)),
                    with_guards(no, change, (*conditions, *fails)),
                ),
            )
    operands = children(expr)
    made = rebuild(expr, tuple([with_guards(arg, change, conditions) for arg in operands])) if operands else expr
    return change(made, conditions) if isinstance(made, Load | Previous) else made


__all__ = ["guarded_reads", "with_guards"]
