"""Names of loops: a loop renamed, and the names that are taken around it."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import loop_names
from neptune_lab.loop_ir.nodes import Block, Loop, Program, Stmt, Var
from neptune_lab.loop_ir.walks import substitute


def rename_loop(program: Program, path: tree.Path, new: str) -> Program:
    """The loop at `path` under another name."""

    def visit(stmt: Stmt, old: str) -> Stmt:
        if isinstance(stmt, Block):
            env = {old: Var(new)}
            return replace(
                stmt,
                iters=tuple(replace(i, binding=substitute(i.binding, env)) for i in stmt.iters),
                predicates=tuple(substitute(p, env) for p in stmt.predicates),
            )
        return replace(stmt, body=tuple(visit(s, old) for s in stmt.body))

    def change(loop: Loop) -> Loop:
        return replace(loop, var=new, body=tuple(visit(s, loop.var) for s in loop.body))

    return tree.map_loop(program, path, change)


def names_beside(program: Program, block: str, loop: Loop) -> set[str]:
    """Names that a loop in the place of `loop` cannot have: of the loops around it and inside it."""
    around = {x.var for x in tree.find_block(program, block)[2]}
    return around | loop_names(loop)


__all__ = ["names_beside", "rename_loop"]
