"""retire_tags: a scan buffer becomes a previous and a current value (paper, Algorithm 1, lines 8 to 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import fresh
from neptune_lab.loop_ir.nodes import (
    Block,
    Buffer,
    Const,
    Expr,
    Iter,
    Load,
    Loop,
    Previous,
    Program,
    Store,
    with_buffers,
)
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import bound_loops, loads, map_store, reads, transform, variables
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
    start = start_of(scan)
    if start is None:
        raise ScheduleError(
            f"block {block!r} does not read its own previous tag",
            node=block,
            help="retire the tags before other steps change what the block reads",
        )
    values = _TwoValues(block, name, fresh(program, f"{name}_1"), fresh(program, f"{name}_0"), start)
    inside = {b.name for b in tree.blocks_under(loops[depth])}
    after = [b for b in tree.blocks(program) if b.name not in inside and reads(b, name)]
    _check_last(after, scan, f"{block}.{loop}", loops[depth].extent - 1)
    readers_after = [b.name for b in after]

    def reader(b: Block) -> Block:
        if b.name == block:
            return _current(scan, tag, values)
        # After the loop the previous value is the last one. The buffer exists before the loop as well.
        rule = values.in_loop if b.name in inside else values.after_loop
        return replace(b, body=map_store(b.body, lambda e: transform(e, rule))) if reads(b, name) else b

    buffer = program.buffer(name)
    program = tree.map_blocks(program, reader)
    program = with_buffers(
        program, *(Buffer(n, buffer.shape[1:], buffer.dtype, buffer.scope) for n in (values.current, values.previous))
    )
    program = tree.drop_unused_buffers(program)
    program, made = _with_copies(program, scan, tag, loops[depth:], values)
    note = (
        f"{name} keeps two values instead of one per tag: {values.previous} of the previous iteration and "
        f"{values.current} of this one; {values.previous} starts as {start.value}."
    )
    if readers_after:
        note += f" After the loop, {', '.join(readers_after)} reads {values.previous}, which is then the last value."
    return plain("retire_tags", program, note, made)


def _check_last(readers: Sequence[Block], scan: Block, loop: str, last: int) -> None:
    """Raises ScheduleError if a reader outside of the rolling loop reads another tag than the last one."""
    for reader in readers:
        for read in loads(reader.body.value):
            if read.buffer == scan.writes and (isinstance(read, Previous) or read.indices[0] != Const(last)):
                raise ScheduleError(
                    f"block {reader.name!r} is outside of loop {loop!r} and reads {scan.writes!r} at every tag, of "
                    "which two would be left",
                    node=scan.name,
                    help=f"move {reader.name!r} into {loop!r} first, or undo the step that moved {scan.name!r} out of "
                    "its loop",
                )


@dataclass(frozen=True, slots=True)
class _TwoValues:
    """The buffers that replace a scan buffer.

    Args:
        block: the scan.
        tagged: its buffer.
        current, previous: the buffers of the current and the previous value.
        start: the previous value at the first tag.
    """

    block: str
    tagged: str
    current: str
    previous: str
    start: Const

    def in_loop(self, e: Expr) -> Expr:
        """A read of the scan buffer inside the rolling loop, as a read of the current or the previous value."""
        match e:
            case Load(buffer, (_, *rest)) if buffer == self.tagged:
                return Load(self.current, tuple(rest))
            case Previous(buffer, (_, *rest), initial) if buffer == self.tagged:
                if initial != self.start:
                    raise ScheduleError(
                        f"block {self.block!r} is read before its first tag with two start values, {self.start.value} "
                        f"and {initial.value}",
                        node=self.block,
                        help="undo the step that changed one of them: a previous value starts from one number",
                    )
                return Load(self.previous, tuple(rest))
        return e

    def after_loop(self, e: Expr) -> Expr:
        """A read of the scan buffer after the loop, as a read of the previous value."""
        return Load(self.previous, e.indices[1:]) if isinstance(e, Load) and e.buffer == self.tagged else e


def _current(scan: Block, tag: Iter, values: _TwoValues) -> Block:
    """The scan as the block that writes the current value."""
    value = transform(scan.body.value, values.in_loop)
    keeps_tag = tag.name in variables(value)
    return replace(
        scan,
        iters=scan.iters if keeps_tag else tuple(i for i in scan.iters if i.name != tag.name),
        body=Store(values.current, scan.body.indices[1:], value),
        role=Role.CURRENT,
    )


def _with_copies(
    program: Program, scan: Block, tag: Iter, loops: tuple[Loop, ...], values: _TwoValues
) -> tuple[Program, tuple[str, str]]:
    """The program with the blocks that set the previous value: before the rolling loop, and at its end.

    Args:
        scan: the scan before the step.
        tag: its variable along the rolling loop.
        loops: the rolling loop, and the loops around the scan inside it.
    """
    iters = tuple(i for i in scan.iters if i.name != tag.name)
    used = bound_loops(iters)
    inner = [(loop.var, loop.extent) for loop in loops[1:] if loop.var in used]
    predicates = tuple(p for p in scan.predicates if loops[0].var not in variables(p))
    indices = scan.body.indices[1:]

    def copy(label: str, value: Expr, role: Role) -> Block:
        store = Store(values.previous, indices, value)
        return Block(
            fresh(program, label), iters, store, None, predicates, scan.origin, role, companion_of=scan.companion_of
        )

    start_block = copy(f"{scan.name}_start", values.start, Role.INITIAL)
    next_block = copy(f"{scan.name}_next", Load(values.current, indices), Role.RETIRE)
    path, _, _ = tree.find_loop(program, scan.name, loops[0].var)
    program = tree.append_to_loop(program, path, (tree.loop_nest(inner, next_block),))
    program = tree.insert_before(program, path, (tree.loop_nest(inner, start_block),))
    return program, (start_block.name, next_block.name)
