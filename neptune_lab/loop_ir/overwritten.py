"""Reads of elements that each iteration of a loop writes anew."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.loop_ir.nodes import Block, Loop, Program
from neptune_lab.loop_ir.tree import statements
from neptune_lab.loop_ir.walks import loads, substitute, variables


@dataclass(frozen=True, slots=True)
class OverwrittenRead:
    """`reader` reads elements of `buffer` that `writer` overwrites with other values in each iteration of `loop`."""

    reader: str
    writer: str
    buffer: str
    loop: str


def escaped_read(before: Program, after: Program) -> OverwrittenRead | None:
    """A read that saw the value of each iteration of a loop before a step, and sees that of the last one after it.

    Formal statement: in `before`, a loop is around reader and writer; its variable changes the value that is written,
    but not its element.  In `after`, such a loop is around the writer alone.
    A reader that itself writes the same element in each iteration, and does not read it, may leave the loop: its last
    value is the one that stays.
    """
    inside = {(read.reader, read.writer) for read in _overwritten(before, together=True)}
    if not inside:
        return None
    return next((r for r in _overwritten(after, together=False) if (r.reader, r.writer) in inside), None)


def _overwritten(program: Program, *, together: bool) -> list[OverwrittenRead]:
    """The reads of elements that a loop around the writer overwrites; the loop is around the reader too (`together`),
    or is not."""
    nest = _Nest({s.name: (s, loops) for _, s, loops in statements(program) if isinstance(s, Block)})
    overwritten: dict[str, list[tuple[Block, Loop]]] = {}
    for block, loops in nest.places.values():
        if not nest.folds(block):
            overwritten.setdefault(block.writes, []).extend((block, x) for x in loops if nest.overwrites(block, x))
    found: list[OverwrittenRead] = []
    if not any(overwritten.values()):
        return found
    for reader, around in nest.places.values():
        for buffer in dict.fromkeys(read.buffer for read in loads(reader.body.value)):
            for writer, loop in overwritten.get(buffer, ()):
                if writer.name == reader.name or any(loop is other for other in around) is not together:
                    continue
                if together and nest.overwrites(reader, loop) and not nest.folds(reader):
                    continue
                found.append(OverwrittenRead(reader.name, writer.name, buffer, loop.var))
    return found


@dataclass(frozen=True, slots=True)
class _Nest:
    """The blocks of a program by name, each with the loops around it."""

    places: dict[str, tuple[Block, tuple[Loop, ...]]]

    def writers(self, buffer: str) -> list[tuple[Block, tuple[Loop, ...]]]:
        return [(block, loops) for block, loops in self.places.values() if block.writes == buffer]

    def folds(self, block: Block) -> bool:
        """Whether the block updates what it wrote before, so that the loop ends with the value of all iterations."""
        return any(read.buffer == block.writes for read in loads(block.body.value))

    def overwrites(self, block: Block, loop: Loop) -> bool:
        """Whether each iteration of the loop writes other values to the same elements."""
        env = {it.name: it.binding for it in block.iters}
        written = {name for index in block.body.indices for name in variables(substitute(index, env))}
        return loop.extent > 1 and loop.var not in written and self._varies(block, loop)

    def _varies(self, block: Block, loop: Loop) -> bool:
        """Whether a value that the block writes depends on the iteration of the loop."""
        ahead, seen = [block], {block.name}
        while ahead:
            block = ahead.pop()
            env = {it.name: it.binding for it in block.iters}
            if loop.var in variables(substitute(block.body.value, env)):
                return True
            for read in loads(block.body.value):
                for writer, loops in self.writers(read.buffer):
                    if writer.name not in seen and any(loop is other for other in loops):
                        seen.add(writer.name)
                        ahead.append(writer)
        return False


__all__ = ["OverwrittenRead", "escaped_read"]
