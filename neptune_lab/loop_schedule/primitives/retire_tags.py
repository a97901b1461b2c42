"""retire_tags: a scan buffer becomes a previous and a current value (paper, Algorithm 1, lines 8 to 10)."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import fresh
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Expr,
    Load,
    Previous,
    Program,
    Store,
    bound_loops,
    map_store,
    reads,
    transform,
    variables,
    with_buffers,
)
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.primitives.materialize_tags import is_tagged, rolling_loop, start_of


@primitive(ours=True)
def retire_tags(program: Program, *, block: BlockName) -> Outcome:
    """Reduces a scan buffer to a previous and a current value (contraction): `X⟨t-1⟩` is X_0 and `X⟨t⟩` is X_1.

    before ⇒ after:
        for t:                            X_0[i] = initial
            X⟨t⟩[i] = X⟨t-1⟩[i] (f) e     for t:
            … X⟨t-1⟩[i], X⟨t⟩[i] …    ⇒       X_1[i] = X_0[i] (f) e
                                              … X_0[i], X_1[i] …
                                              X_0[i] = X_1[i]

    Args:
        block: the scan, a reduction with tags.

    Raises:
        ScheduleError: the block has no tags, or a value other than the previous and the current one is read.
    """
    _, scan, loops = tree.find_block(program, block)
    name = scan.writes
    if not is_tagged(program, name):
        raise ScheduleError(
            f"block {block!r} has no tags to retire",
            node=block,
            help="a block gets tags when rolling_update fuses a reduction that reads it, or by materialize_tags",
        )
    tag, loop = rolling_loop(program, block)
    depth = tree.depth_of(loops, loop)
    buffer = program.buffer(name)
    current, previous = fresh(program, f"{name}_1"), fresh(program, f"{name}_0")
    start = start_of(scan)
    if start is None:
        raise ScheduleError(
            f"block {block!r} does not read its own previous tag",
            node=block,
            help="retire the tags before other steps change what the block reads",
        )
    under = {b.name for b in tree.blocks_under(loops[depth])}

    def retag(e: Expr) -> Expr:
        match e:
            case Load(buf, (_, *rest)) if buf == name:
                return Load(current, tuple(rest))
            case Previous(buf, (_, *rest), initial) if buf == name:
                if initial != start:
                    raise ScheduleError(
                        f"block {block!r} is read before its first tag with two start values, {start.value} and "
                        f"{initial.value}",
                        node=block,
                        help="undo the step that changed one of them: a previous value starts from one number",
                    )
                return Load(previous, tuple(rest))
        return e

    def last(e: Expr) -> Expr:
        return Load(previous, e.indices[1:]) if isinstance(e, Load) and e.buffer == name else e

    def reader(b: Block) -> Block:
        if b.name == block:
            iters = tuple(i for i in b.iters if i.name != tag.name)
            value = transform(b.body.value, retag)
            return replace(
                b,
                iters=b.iters if tag.name in variables(value) else iters,
                body=Store(current, b.body.indices[1:], value),
                role=Role.CURRENT,
            )
        if not reads(b, name):
            return b
        # Behind the loop the previous value is the last one, and it was there before the loop as well.
        rule = retag if b.name in under else last
        return replace(b, body=map_store(b.body, lambda e: transform(e, rule)))

    outside_reads = [b for b in tree.blocks(program) if b.name not in under and reads(b, name)]
    program = tree.map_blocks(program, reader)
    program = with_buffers(
        program, *(Buffer(n, buffer.shape[1:], buffer.dtype, buffer.scope) for n in (current, previous))
    )
    program = tree.drop_unused_buffers(program)
    # the loops that the copies need: those inside the rolling loop which the scan's own elements run along
    iters = tuple(i for i in scan.iters if i.name != tag.name)
    used = bound_loops(iters)
    inner = [(found.var, found.extent) for found in loops[depth + 1 :] if found.var in used]
    predicates = tuple(p for p in scan.predicates if loop not in variables(p))
    indices = scan.body.indices[1:]

    def copy(label: str, target: str, value: Expr, role: Role) -> Block:
        return Block(fresh(program, label), iters, Store(target, indices, value), None, predicates, scan.origin, role)

    start_block = copy(f"{block}_start", previous, start, Role.INITIAL)
    next_block = copy(f"{block}_next", previous, Load(current, indices), Role.RETIRE)
    loop_path, _, _ = tree.find_loop(program, block, loop)
    program = tree.append_to_loop(program, loop_path, (tree.loop_nest(inner, next_block),))
    program = tree.insert_before(program, loop_path, (tree.loop_nest(inner, start_block),))
    note = (
        f"{name} keeps two values instead of one a tag: {previous} from the iteration before, {current} from this one; "
        f"{previous} starts as {start.value}."
    )
    if outside_reads:
        note += f" {', '.join(b.name for b in outside_reads)} reads {previous} behind the loop: the last one."
    return plain("retire_tags", program, note, (start_block.name, next_block.name))
