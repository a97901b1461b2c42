"""cache_write: makes a block write to a copy, which a new block stores to the buffer."""

from __future__ import annotations

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.copies import check_free, check_untagged, with_origin
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName, Scope
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm


@primitive(after="cache_read", makes="one", made="The block that stores the copy.")
def cache_write(program: Program, *, block: BlockName, scope: Scope = "local") -> Outcome:
    """Makes `block` write to a copy of its buffer in memory `scope`, which a new block stores to the buffer.

    before ⇒ after, with scope "local":
        for i, j: B[i] += A[i, j]    ⇒    for i, j: B_local[i] += A[i, j]
                                          for i: B[i] = B_local[i]

    Args:
        block: the block that writes.
        scope: the memory of the copy, "local", "shared" or "global".

    Raises:
        ScheduleError: the buffer keeps one value per tag, or it has a copy in this scope already.
    """
    _, writer, _ = tree.find_block(program, block)
    check_untagged(program, writer.writes, block)
    check_free(program, f"{writer.writes}_{scope}", block)
    before = {b.name for b in tree.blocks(program)}
    result = apply_in_tvm(program, "cache_write", block, lambda s: s.cache_write(s.get_sblock(block), 0, scope))
    result = with_origin(result, before, writer.origin)
    made = tuple(b.name for b in tree.blocks(result) if b.name not in before)
    note = f"{block} writes to {scope} memory; {made[0]} stores the result to {writer.writes}."
    return plain("cache_write", result, note, made)
