"""Names that no block, buffer or loop has yet, for what the compiler makes."""

from __future__ import annotations

from collections.abc import Collection

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Loop, Program


def unique(name: str, taken: Collection[str], separator: str = "") -> str:
    """`name`, or name2, name3, … (after `separator`) where it is taken.

    >>> unique("s_local", {"s_local", "s_local2"})
    's_local3'
    """
    found, n = name, 2
    while found in taken:
        found, n = f"{name}{separator}{n}", n + 1
    return found


def names_of(program: Program) -> set[str]:
    """Names of all blocks and buffers."""
    return {b.name for b in program.buffers} | {b.name for b in tree.blocks(program)}


def fresh(program: Program, name: str) -> str:
    """`name`, or `name2`, `name3`, … where it is taken by a block or a buffer."""
    return unique(name, names_of(program))


def loop_names(program: Program) -> set[str]:
    """Names of all loops."""
    return {stmt.var for _, stmt, _ in tree.statements(program) if isinstance(stmt, Loop)}
