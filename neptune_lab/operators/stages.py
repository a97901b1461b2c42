"""From tensor expressions to a program whose blocks are in the order of the definition's stages."""

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
    """A function that makes the program of a definition, for `Operator.build`.

    Args:
        name: the program's name.
        stages: the stages in the order of the definition; TVM orders them as the outputs depend on them.
        define: from `args` to the inputs and the outputs as tensor expressions.
        args: arguments of `define`.
        masked: inputs in which -inf marks absent elements.

    Returns:
        The function; TVM is imported when it is called.
    """

    def build() -> Program:
        from neptune_lab.loop_ir.tvm_compat import from_te

        program = from_te(name, *define(*args))
        body = tuple(sorted(program.body, key=lambda stmt: stages.index(stage_name(stmt))))
        return replace(program, body=body, masked=masked)

    return build


def stage_name(stmt: Stmt) -> str:
    """The name of the single block of a definition's loop nest."""
    from neptune_lab.loop_ir.nodes import Loop

    while isinstance(stmt, Loop):
        (stmt,) = stmt.body
    return stmt.name
