"""Where a definition stops gradients: the operation `stop_gradient`, which is its operand, and has derivative 0.

Only the derivation of a backward pass reads it (`operators.reverse_mode`).  `unmarked` takes it out of everything that
is scheduled, so no pass of the compiler meets it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Previous, Program, children, rebuild
from neptune_lab.loop_ir.tree import blocks, map_blocks
from neptune_lab.loop_ir.walks import transform, walk

STOP = "stop_gradient"


def stopped(expr: Expr) -> Expr:
    """The expression, as a constant for derivatives.  Conversions stay outside, where their readers look for them."""
    if isinstance(expr, Cast):
        return rebuild(expr, (stopped(expr.arg),))
    return expr if is_mark(expr) or isinstance(expr, Const) else Op(STOP, (expr,))


def unmarked_expression(expr: Expr) -> Expr:
    """The expression without marks; the same object if it has none.

    >>> unmarked_expression(Op("neg", (stopped(Load("x", ())),)))
    Op(name='neg', args=(Load(buffer='x', indices=()),))
    """
    return transform(expr, lambda node: node.args[0] if isinstance(node, Op) and node.name == STOP else node)


def unmarked(program: Program) -> Program:
    """The program without marks; the same object if it has none."""

    if not any(map(is_mark, (node for block in blocks(program) for node in walk(block.body.value)))):
        return program

    def of_block(block: Block) -> Block:
        return replace(block, body=replace(block.body, value=unmarked_expression(block.body.value)))

    return map_blocks(program, of_block)


def followed(expr: Expr) -> set[str]:
    """Names of the tensors of which an expression reads an element outside of marks and of indices.

    >>> sorted(followed(Op("add", (Load("x", (Load("i", ()),)), stopped(Load("y", ()))))))
    ['x']
    """
    if isinstance(expr, Load | Previous):
        return {expr.buffer}
    return set() if is_mark(expr) else set().union(*map(followed, children(expr)))


def is_mark(expr: Expr) -> TypeGuard[Op]:
    """Whether the expression is one that is marked."""
    return isinstance(expr, Op) and expr.name == STOP


__all__ = ["STOP", "followed", "is_mark", "stopped", "unmarked", "unmarked_expression"]
