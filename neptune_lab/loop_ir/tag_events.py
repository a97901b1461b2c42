"""Events of a recorded run, and the judgement which reads came too early; `tags` says what the states mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from neptune_lab.loop_ir.nodes import Block, Previous, Program, loads, reads
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.tree import blocks

State: TypeAlias = Literal["final", "carried", "early", "repaired"]
Number: TypeAlias = float | int | bool
Index: TypeAlias = tuple[int, ...]
Tag: TypeAlias = tuple[tuple[str, int], ...]

# Roles of blocks whose store goes on from the element's last value under another name or at another tag.
_CONTINUING = (Role.SCAN, Role.CURRENT, Role.RETIRE)


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a computed tensor.

    Args:
        buffer: what was read, at `index` (of a scan buffer, the tag first).
        value: what it saw.
        written_at: step of the write that it saw; None for a scan's start value and for what nothing had written.
        previous: a read at the tag before.
        state: see the module's text.
    """

    buffer: str
    index: Index
    value: Number
    written_at: int | None
    previous: bool
    state: State


@dataclass(frozen=True, slots=True)
class RepairValue:
    """The repair of one write: the factor that the carried value is multiplied with, or h where it is no product."""

    value: Number
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """A write of `value` to `buffer[index]` by `block`.

    Args:
        step: its position among all writes of the run.
        init: it is the start value of a reduction.
        loops: the tag, (variable, value) of each loop around the block, outermost first.
        reduces: (variable, value) of each reduce iteration of the block.
        reads: of computed tensors, in evaluation order.
        repair: in a repaired block, what its repair term was.
    """

    step: int
    block: str
    buffer: str
    index: Index
    value: Number
    init: bool
    loops: Tag
    reduces: Tag
    reads: tuple[Read, ...] = ()
    repair: RepairValue | None = None


def origin(block: Block) -> str:
    """The stage that a block came from; its own name where none is noted."""
    return block.origin or block.name


def classify(program: Program, events: list[Write]) -> tuple[Write, ...]:
    """The events with the state of every read."""
    known = {b.name: b for b in blocks(program)}
    tagged = {b.name for b in program.buffers if b.tagged}
    covered = _covered(program)

    def element(buffer: str, index: Index) -> tuple[str, Index]:
        return buffer, index[1:] if buffer in tagged else index

    # An element starts a new life where something writes it that does not go on from what it held.
    life: dict[tuple[str, Index], int] = {}
    lived: list[tuple[tuple[str, Index], int]] = []
    ends: dict[tuple[tuple[str, Index], int], int] = {}
    for write in events:
        key, block = element(write.buffer, write.index), known[write.block]
        if write.init or not _continues(block):
            life[key] = life.get(key, -1) + 1
        lived.append((key, life.setdefault(key, 0)))
        ends[lived[-1]] = write.step
    writers: dict[str, set[str]] = defaultdict(set)
    partial = {b.writes for b in known.values() if b.role in PARTIAL}
    for block in known.values():
        writers[block.writes].add(origin(block))

    def state(reader: Block, read: Read) -> State:
        if origin(reader) in writers[read.buffer]:
            return "carried"
        if read.written_at is None:
            complete = element(read.buffer, read.index) not in life
        else:
            complete = ends[lived[read.written_at]] == read.written_at
        if complete and read.buffer not in partial:
            return "final"
        return "repaired" if reader.name in covered else "early"

    def judged(reader: Block, reads: tuple[Read, ...]) -> tuple[Read, ...]:
        return tuple(replace(r, state=state(reader, r)) for r in reads)

    result = []
    for write in events:
        if write.reads:
            block, repair = known[write.block], write.repair
            if repair is not None:
                repair = replace(repair, reads=judged(block, repair.reads))
            write = replace(write, reads=judged(block, write.reads), repair=repair)
        result.append(write)
    return tuple(result)


def _continues(block: Block) -> bool:
    """Whether the block's store goes on from the element's last value."""
    return block.is_reduction or block.role in _CONTINUING or reads(block, block.writes)


def _covered(program: Program) -> set[str]:
    """Blocks whose early reads are made good: those with a repair, and those that only such blocks use."""
    all_blocks = blocks(program)
    tagged = {b.name for b in program.buffers if b.tagged}

    def repairs(block: Block) -> bool:
        if block.repair is not None:
            return block.repair.unproved is None  # a repair that is not proved repairs no read
        return any(isinstance(r, Previous) and r.buffer in tagged - {block.writes} for r in loads(block.body.value))

    def users(block: Block) -> Iterator[Block]:
        for other in all_blocks:
            if other.writes != block.writes and reads(other, block.writes):
                yield other

    covered = {b.name for b in all_blocks if repairs(b)}
    while True:
        more = {
            b.name
            for b in all_blocks
            if b.name not in covered
            and b.writes not in program.outputs
            and (using := list(users(b)))
            and all(u.name in covered for u in using)
        }
        if not more:
            return covered
        covered |= more
