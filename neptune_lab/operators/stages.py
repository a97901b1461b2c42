"""Programs from tensor expressions, with blocks in the order of the definition's stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program, Stmt


def builder(
    name: str,
    stages: tuple[str, ...],
    define: Callable[..., tuple[list[Any], list[Any]]],
    *args: Any,
    masked: tuple[str, ...] = (),
) -> Callable[[], Program]:
    """A function without arguments that builds a definition's program, for `Operator.build`.

    Args:
        name: the program's name.
        stages: names of all stages, in the order of the definition; TVM's own order follows the outputs' dependences.
        define: a function that returns the inputs and the outputs as tensor expressions.
        args: the arguments of `define`.
        masked: names of the inputs in which -inf marks absent elements.

    Returns:
        The function; it imports TVM when it is called.
    """

    def build() -> Program:
        from neptune_lab.loop_ir.tvm_compat import from_te

        program = from_te(name, *define(*args))
        body = tuple(sorted(program.body, key=lambda stmt: stages.index(stage_name(stmt))))
        return replace(program, body=body, masked=masked)

    return build


def stage_name(stmt: Stmt) -> str:
    """The name of the only block in a loop nest of a definition.

    Args:
        stmt: a block, or a loop with one statement in its body.

    Returns:
        The block's name, which is the stage's.
    """
    from neptune_lab.loop_ir.nodes import Loop

    while isinstance(stmt, Loop):
        (stmt,) = stmt.body
    return stmt.name
