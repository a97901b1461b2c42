"""Unused names for the blocks, buffers and loops that the compiler makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from neptune_lab.loop_ir.nodes import Loop, Program, Stmt


def unique(name: str, taken: Collection[str], separator: str = "") -> str:
    """`name`, or if it is taken, name2, name3, … (with `separator` before the number).

    >>> unique("s_local", {"s_local", "s_local2"})
    's_local3'
    """
    candidate, n = name, 2
    while candidate in taken:
        candidate, n = f"{name}{separator}{n}", n + 1
    return candidate


def fresh(program: Program, name: str) -> str:
    """`name`, or if a block or a buffer has it, `name2`, `name3`, …"""
    blocks = {stmt.name for stmt in _statements(program.body) if not isinstance(stmt, Loop)}
    return unique(name, blocks | {b.name for b in program.buffers})


def loop_names(*body: Stmt) -> set[str]:
    """Names of all loops in statements."""
    return {stmt.var for stmt in _statements(body) if isinstance(stmt, Loop)}


def _statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        if isinstance(stmt, Loop):
            yield from _statements(stmt.body)
