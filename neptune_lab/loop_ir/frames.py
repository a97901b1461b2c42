"""A recorded run as frames to play: what is written in each iteration of the rolling loop, tensor by tensor.

The iterations of the loops around the rolling loop run side by side, as the programs of a GPU do: a frame holds what
all of them write in one iteration. Statements before, between and after the rolling loops have frames of their own, so
the frames are in the order of execution for each program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from neptune_lab.loop_ir.iteration_domain import evaluate
from neptune_lab.loop_ir.materialized_example import Judged, judged_writes
from neptune_lab.loop_ir.nodes import Block, Load, Loop, Program
from neptune_lab.loop_ir.render import loop_id
from neptune_lab.loop_ir.roles import PARTIAL
from neptune_lab.loop_ir.tag_events import Index, Number, Write
from neptune_lab.loop_ir.tag_table import Cell
from neptune_lab.loop_ir.tags import TagTrace
from neptune_lab.loop_ir.tree import Path, statements
from neptune_lab.loop_ir.walks import loads, walk

Kind: TypeAlias = Literal["input", "tile", "part", "running", "result"]
At: TypeAlias = Callable[[Write], int]  # the frame of a write


@dataclass(frozen=True, slots=True)
class Frame:
    """What runs together: one iteration of a rolling loop, or the statements outside of all rolling loops.

    Args:
        name: such as "j0 = 1", or "before j0".
        segment: number of the run of blocks that it belongs to; frames of one rolling loop have the same.
        blocks: that run in it, in program order.
        iteration: of the rolling loop; None outside of it.
        loop: id of the rolling loop's line; "" outside of it.
    """

    name: str
    segment: int
    blocks: tuple[str, ...]
    iteration: int | None
    loop: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that an element gets in a frame, with its row and column in the tag table; `cell` is None if it has none:
    an input, or a value that the same iteration replaces."""

    index: Index
    value: Number
    label: str
    column: str
    cell: Cell | None


@dataclass(frozen=True, slots=True)
class PlayedTensor:
    """A tensor of the run.

    Args:
        name: of the tensor.
        kind: "input": read in the rolling loop; "tile": each element is written in one iteration; "part": the same,
            reduced over a part of the data; "running": written in several iterations; "result": outside of the loop.
        shape: without the dimension of tags.
        blocks: that write it; none for an input.
        repaired: one of them applies a repair.
        frames: what it gets in each frame, each element once.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    blocks: tuple[str, ...]
    repaired: bool
    frames: tuple[tuple[Shown, ...], ...]


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """A run as frames; `tensors` are in the order of their first writes, inputs first."""

    rolling: str
    frames: tuple[Frame, ...]
    tensors: tuple[PlayedTensor, ...]

    def tensor(self, name: str) -> PlayedTensor:
        """The tensor of that name; KeyError if there is none."""
        return {t.name: t for t in self.tensors}[name]

    def values(self, name: str) -> np.ndarray:
        """A tensor's values after the last frame, in float64; NaN where nothing was written."""
        tensor = self.tensor(name)
        found = np.full(tensor.shape, np.nan)
        for frame in tensor.frames:
            for shown in frame:
                found[shown.index] = shown.value
        return found


def played(trace: TagTrace, reference: TagTrace | None = None, *, rolling: str) -> PlayedRun:
    """The frames of a run.

    Args:
        trace: the run.
        reference: a run of the unscheduled program on the same inputs, to compare with.
        rolling: variable of the loop whose iterations are the frames.

    Raises:
        ScheduleError: the program has no such loop.
    """
    program = trace.program
    writes = judged_writes(trace, reference, rolling=rolling)
    frames, first = _frames(program, rolling)
    segment_of = {block: f.segment for f in frames for block in f.blocks}

    def at(write: Write) -> int:
        return first[segment_of[write.block]] + dict(write.loops).get(rolling, 0)

    tensors = _inputs(trace, writes, at, len(frames)) + _computed(trace, writes, at, frames)
    return PlayedRun(rolling, frames, tensors)


def _frames(program: Program, rolling: str) -> tuple[tuple[Frame, ...], dict[int, int]]:
    """The frames in order, and the first frame of each segment."""
    placed = [
        (stmt.name, _rolling_loop(path, loops, rolling))
        for path, stmt, loops in statements(program)
        if isinstance(stmt, Block)
    ]
    groups = [(loop, tuple(name for name, _ in group)) for loop, group in groupby(placed, key=lambda p: p[1])]
    rolls = [n for n, (loop, _) in enumerate(groups) if loop is not None]
    found: list[Frame] = []
    first: dict[int, int] = {}
    for n, (loop, names) in enumerate(groups):
        first[n] = len(found)
        if loop is None:
            where = "before" if n < rolls[0] else "after" if n > rolls[-1] else "between"
            found.append(Frame(f"{where} {rolling}", n, names, None, ""))
        else:
            found += [Frame(f"{rolling} = {i}", n, names, i, loop.line) for i in range(loop.extent)]
    return tuple(found), first


class _Roll(NamedTuple):
    """A rolling loop: where it is, its extent, and the id of its line."""

    path: Path
    extent: int
    line: str


def _rolling_loop(path: Path, loops: tuple[Loop, ...], rolling: str) -> _Roll | None:
    """The loop of that name around a statement."""
    for depth, loop in enumerate(loops, 1):
        if loop.var == rolling:
            return _Roll(path[:depth], loop.extent, loop_id(loops[:depth]))
    return None


def _computed(
    trace: TagTrace, writes: tuple[Judged, ...], at: At, frames: tuple[Frame, ...]
) -> tuple[PlayedTensor, ...]:
    """The tensors that the writes of a trace fill, with their elements at each frame and the kind of their values."""
    program = trace.program
    tagged = {b.name for b in program.buffers if b.tagged}
    shapes = {b.name: b.shape for b in program.buffers}
    blocks = {s.name: s for _, s, _ in statements(program) if isinstance(s, Block)}
    by_frame: dict[str, list[dict[Index, Shown]]] = {}
    written: dict[str, dict[Index, set[int]]] = defaultdict(lambda: defaultdict(set))
    by_block: dict[str, dict[str, None]] = defaultdict(dict)
    for judged in writes:
        write, frame = judged.write, at(judged.write)
        index = write.index[1:] if write.buffer in tagged else write.index
        kept = by_frame.setdefault(write.buffer, [{} for _ in frames])
        kept[frame][index] = Shown(index, write.value, judged.label, judged.column, judged.cell)
        by_block[write.buffer][write.block] = None
        if frames[frame].iteration is not None:
            written[write.buffer][index].add(frame)

    def kind(name: str) -> Kind:
        if not written[name]:
            return "result"
        if any(blocks[b].role in PARTIAL for b in by_block[name]):
            return "part"
        return "running" if max(len(f) for f in written[name].values()) > 1 else "tile"

    return tuple(
        PlayedTensor(
            name,
            kind(name),
            shapes[name][1:] if name in tagged else shapes[name],
            tuple(by_block[name]),
            any(blocks[b].repair is not None for b in by_block[name]),
            tuple(tuple(shown.values()) for shown in kept),
        )
        for name, kept in by_frame.items()
    )


def _inputs(trace: TagTrace, writes: tuple[Judged, ...], at: At, count: int) -> tuple[PlayedTensor, ...]:
    """The parts of inputs that each frame reads; an input whose index is read from another tensor is left out."""
    program = trace.program
    blocks = {s.name: s for _, s, _ in statements(program) if isinstance(s, Block)}
    seen: dict[str, list[dict[Index, None]]] = {name: [{} for _ in range(count)] for name in program.inputs}
    by_block: dict[str, list[Write]] = defaultdict(list)
    for judged in writes:
        by_block[judged.write.block].append(judged.write)
    left_out = set()
    for name, events in by_block.items():
        block = blocks[name]
        reads = [r for r in loads(block.body.value) if isinstance(r, Load) and r.buffer in seen]
        frames = [at(w) for w in events]
        loops = {var: np.array([dict(w.loops)[var] for w in events]) for var, _ in events[0].loops}
        points = {it.name: np.broadcast_to(evaluate(it.binding, loops), len(events)) for it in block.iters}
        for read in reads:
            if any(isinstance(node, Load) for index in read.indices for node in walk(index)):
                left_out.add(read.buffer)
                continue
            places = [np.broadcast_to(evaluate(index, points), len(events)).tolist() for index in read.indices]
            shape = program.buffer(read.buffer).shape
            for frame, index in zip(frames, zip(*places, strict=True) if places else [()] * len(frames), strict=True):
                if all(0 <= i < size for i, size in zip(index, shape, strict=True)):
                    seen[read.buffer][frame][index] = None
    found = []
    for name, kept in seen.items():
        values = trace.values[name]
        frames = tuple(tuple(Shown(i, values[i].item(), "", "", None) for i in frame) for frame in kept)
        if name not in left_out and any(frames):
            found.append(PlayedTensor(name, "input", values.shape, (), False, frames))
    return tuple(found)


__all__ = ["Frame", "PlayedRun", "PlayedTensor", "Shown", "played"]
