"""From tensor expressions to a program whose blocks stand in the order in which the definition names its stages."""

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
    """What `Operator.build` takes: a function that makes the program of `define(*args)`, its inputs and outputs.

    Args:
        name: the program's.
        stages: the stages as the definition orders them; TVM gives them in the order in which outputs reach them.
        masked: inputs whose elements may be -inf, for elements that are absent.
    """

    def build() -> Program:
        from neptune_lab.loop_ir.tvm_compat import from_te

        program = from_te(name, *define(*args))
        body = tuple(sorted(program.body, key=lambda stmt: stages.index(_stage(stmt))))
        return replace(program, body=body, masked=masked)

    return build


def _stage(stmt: Stmt) -> str:
    """The name of the one block of a loop nest of a definition."""
    from neptune_lab.loop_ir.nodes import Loop

    while isinstance(stmt, Loop):
        (stmt,) = stmt.body
    return stmt.name
