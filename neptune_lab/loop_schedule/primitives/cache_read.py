"""cache_read: copies a buffer, and makes its readers read the copy."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.walks import loads
from neptune_lab.loop_schedule.copies import check_free, check_untagged, with_origin
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName, BufferName, Scope
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm


@primitive(after="inline", makes="one", made="The block that makes the copy.")
def cache_read(program: Program, *, block: BlockName, buffer: BufferName, scope: Scope = "shared") -> Outcome:
    """Copies `buffer` to memory `scope` in a new block; `block` and all other readers of the buffer read the copy.

    before ⇒ after, with scope "shared":
        for i, j: B[i] += A[i, j]    ⇒    for i, j: A_shared[i, j] = A[i, j]
                                          for i, j: B[i] += A_shared[i, j]

    Args:
        block: a block that reads the buffer.
        buffer: the buffer to copy, by name.
        scope: the memory of the copy, "local", "shared" or "global".

    Raises:
        ScheduleError: the block does not read the buffer, the buffer keeps one value per tag, or it has a copy in this
            scope already.
    """
    _, reader, _ = tree.find_block(program, block)
    reads = list(dict.fromkeys(r.buffer for r in loads(reader.body.value) if r.buffer != reader.writes))
    if buffer not in reads:
        raise ScheduleError(
            f"block {block!r} does not read {buffer!r}",
            node=block,
            help=tree.nearest(buffer, reads, "buffers it reads"),
        )
    check_untagged(program, buffer, block)
    check_free(program, f"{buffer}_{scope}", block)
    before = {b.name for b in tree.blocks(program)}
    result = apply_in_tvm(
        program, "cache_read", block, lambda s: s.cache_read(s.get_sblock(block), reads.index(buffer), scope)
    )
    result = with_origin(result, before, reader.origin)
    made = tuple(b.name for b in tree.blocks(result) if b.name not in before)
    copy = tree.find_block(result, made[0])[1].writes
    readers = ", ".join(b.name for b in readers_of(result, copy))
    note = f"{buffer} is copied to {scope} memory; the copy is read by {readers}."
    return plain("cache_read", result, note, made)
