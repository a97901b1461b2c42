"""Events of a recorded run, and the classification of its reads; `tags` defines the states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from neptune_lab.loop_ir.nodes import Block, Previous, Program
from neptune_lab.loop_ir.roles import PARTIAL, Role
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import loads, reads

State: TypeAlias = Literal["final", "carried", "early", "repaired"]
Number: TypeAlias = float | int | bool
Index: TypeAlias = tuple[int, ...]
Tag: TypeAlias = tuple[tuple[str, int], ...]

# Roles of blocks whose store continues from the element's last value in another buffer or at another tag.
_CONTINUING = (Role.SCAN, Role.CURRENT, Role.RETIRE)


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a computed tensor.

    Args:
        buffer: what was read.
        index: the element; in a scan buffer, the tag comes first.
        value: its value.
        written_at: step of the write that made the value; None for a scan's start value, and if nothing had been
            written.
        previous: a read at the previous tag.
        state: as in `tags`.
    """

    buffer: str
    index: Index
    value: Number
    written_at: int | None
    previous: bool
    state: State


@dataclass(frozen=True, slots=True)
class RepairValue:
    """The repair of one write: the factor by which the carried value is multiplied, or all of h if it is no product."""

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
        repair: the value of the repair term, in a repaired block.
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
    """The stage that a block came from; its own name if it has no origin."""
    return block.origin or block.name


def classify(program: Program, events: list[Write]) -> tuple[Write, ...]:
    """The events with the state of every read."""
    known = {b.name: b for b in blocks(program)}
    tagged = {b.name for b in program.buffers if b.tagged}
    covered = _covered(program)

    def element(buffer: str, index: Index) -> tuple[str, Index]:
        return buffer, index[1:] if buffer in tagged else index

    # A write that does not continue from the element's last value starts a new life of the element.
    life: dict[tuple[str, Index], int] = {}
    lived: list[tuple[tuple[str, Index], int]] = []
    ends: dict[tuple[tuple[str, Index], int], int] = {}
    for write in events:
        key, block = element(write.buffer, write.index), known[write.block]
        if write.init or not _continues(block) or _restarts(write, block, events, known):
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

    def judged(reader: Block, read: Read) -> Read:
        found = state(reader, read)
        return read if found == read.state else replace(read, state=found)

    result = []
    for write in events:
        if write.reads:
            block, repair = known[write.block], write.repair
            reads = tuple([judged(block, read) for read in write.reads])
            if repair is not None:
                repair = replace(repair, reads=tuple([judged(block, read) for read in repair.reads]))
            if repair is not None or any(a is not b for a, b in zip(reads, write.reads, strict=True)):
                write = replace(write, reads=reads, repair=repair)
        result.append(write)
    return tuple(result)


def _continues(block: Block) -> bool:
    """Whether the block's store continues from the element's last value."""
    return block.is_reduction or block.role in _CONTINUING or reads(block, block.writes)


def _restarts(write: Write, block: Block, events: list[Write], known: Mapping[str, Block]) -> bool:
    """Whether a scan, perhaps with two values, continues from its start value: a loop around the rolling loop, along
    which the scan does not run, computes it again."""
    if block.role is Role.SCAN:
        return any(r.previous and r.buffer == write.buffer and r.written_at is None for r in write.reads)
    before = (events[r.written_at] for r in write.reads if r.written_at is not None)
    return block.role is Role.CURRENT and any(
        known[e.block].role is Role.INITIAL and origin(known[e.block]) == origin(block) for e in before
    )


def _covered(program: Program) -> set[str]:
    """Blocks whose early reads are repaired: those with a repair, and those that only such blocks read."""
    all_blocks = blocks(program)
    tagged = {b.name for b in program.buffers if b.tagged}

    def repairs(block: Block) -> bool:
        if block.repair is not None:
            return block.repair.unproved is None  # an unproved repair does not count
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
