"""set_scope: sets the memory of a buffer."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName, Scope
from neptune_lab.loop_schedule.outcome import Outcome, plain


@primitive(after="cache_write", same_values=True)
def set_scope(program: Program, *, block: BlockName, scope: Scope = "shared") -> Outcome:
    """Sets the memory of the buffer that `block` writes; "shared" and "local" are on chip.

    Triton places on-chip tiles itself, so "shared" and "local" have the same effect in Triton. A buffer in global
    memory is stored only if another kernel or the caller reads it.

    Args:
        block: the block that writes the buffer.
        scope: the memory: "local", "shared" or "global".

    Raises:
        ScheduleError: the buffer is an output, and the scope is not "global".
    """
    _, writer, _ = tree.find_block(program, block)
    if writer.writes in program.params and scope != "global":
        raise ScheduleError(
            f"block {block!r} writes {writer.writes!r}, an output, which is in global memory",
            node=block,
            help=f"cache_write({block!r}, {scope!r}) keeps a copy there and stores it at the end",
        )
    result = replace(
        program, buffers=tuple(replace(b, scope=scope) if b.name == writer.writes else b for b in program.buffers)
    )
    return plain("set_scope", result, f"{writer.writes} is kept in {scope} memory.")
