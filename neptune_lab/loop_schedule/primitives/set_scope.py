"""set_scope: the memory that a buffer is kept in."""

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
    """Puts the buffer that `block` writes into `scope`: "shared" and "local" are on chip.

    Triton places on-chip tiles itself, so the two mean the same there. A buffer left in global memory is written
    there only if another kernel, or the caller, reads it.

    Args:
        block: the block that writes the buffer.
        scope: "local", "shared" or "global".

    Raises:
        ScheduleError: the buffer is an output, which is in global memory.
    """
    _, found, _ = tree.find_block(program, block)
    if found.writes in program.params and scope != "global":
        raise ScheduleError(
            f"block {block!r} writes {found.writes!r}, an output, which is in global memory",
            node=block,
            help=f"cache_write({block!r}, {scope!r}) keeps a copy there and stores it at the end",
        )
    result = replace(
        program, buffers=tuple(replace(b, scope=scope) if b.name == found.writes else b for b in program.buffers)
    )
    return plain("set_scope", result, f"{found.writes} is kept in {scope} memory.")
