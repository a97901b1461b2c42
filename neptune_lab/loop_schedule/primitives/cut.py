"""cut: divides a program before a block into two parts, which are scheduled separately and share no kernel.

A *part* of a program is the nests of the stages between two cuts. A primitive that names a block is applied to the part
that contains it: values from other parts are inputs of the part, and values that other parts read are outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program, Stmt
from neptune_lab.loop_ir.walks import loads
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, Phase, plain


@primitive(ours=True, same_values=True)
def cut(program: Program, *, block: BlockName) -> Outcome:
    """Divides the program before `block` into two parts, which are scheduled separately and share no kernel.

    before ⇒ after:
        for i, j: m[i] max= x[i, j]             for i, j: m[i] max= x[i, j]
        for i, j: s[i] += x[i, j] / m[i]   ⇒    ----- s -----
                                                for i, j: s[i] += x[i, j] / m[i]

    Args:
        block: the first block after the cut; its nest contains no block of an earlier stage.

    Raises:
        ScheduleError: no block comes before it, or it shares a nest with an earlier block.
    """
    path, first_block, _ = tree.find_block(program, block)
    if not any(path):
        raise ScheduleError(
            f"nothing comes before block {block!r}", node=block, help="name a block that comes after another kernel"
        )
    first = tree.blocks_under(program.body[path[0]])[0]
    if first.name != block:
        raise ScheduleError(
            f"block {block!r} shares a nest with {first.name!r}, which comes before it",
            node=block,
            help=f"cut before {first.name!r}, or cut before the two are fused",
        )
    return plain("cut", program, f"A new part starts at {first_block.origin}: no block is fused across it.")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a program: the nests `body[start:stop]` of `whole`, as the program `program`."""

    whole: Program
    start: int
    stop: int
    program: Program

    def put_back(self, outcome: Outcome) -> Outcome:
        """Converts a primitive's outcome from the part to the whole program.

        Args:
            outcome: the primitive's outcome for `program`.

        Returns:
            The outcome with the whole program, in the outcome itself and in its phases.

        Raises:
            ScheduleError: a new block or buffer has a name that another part uses.
        """
        return replace(outcome, program=self._whole(outcome.program), phases=self.phases(outcome.phases))

    def phases(self, phases: Iterable[Phase]) -> tuple[Phase, ...]:
        """Converts phases from the part to the whole program.

        Args:
            phases: phases of a primitive that was applied to `program`.

        Returns:
            The phases with the whole program.

        Raises:
            ScheduleError: a new block or buffer has a name that another part uses.
        """
        return tuple(replace(phase, program=self._whole(phase.program)) for phase in phases)

    def _whole(self, new: Program) -> Program:
        if new is self.program:
            return self.whole
        made = {b.name: b for b in new.buffers}
        old = {b.name for b in self.program.buffers}
        kept = [made.pop(b.name) if b.name in old & made.keys() else b for b in self.whole.buffers]
        kept = [b for b in kept if b.name not in old or b.name in {n.name for n in new.buffers}]
        rest = (*self.whole.body[: self.start], *self.whole.body[self.stop :])
        taken = {b.name for b in kept}
        blocks = {b.name for stmt in rest for b in tree.blocks_under(stmt)}
        clash = [*(taken & made.keys()), *(b.name for b in tree.blocks(new) if b.name in blocks)]
        if clash:
            raise ScheduleError(
                f"the name {clash[0]!r} is taken by another part of the program",
                node=clash[0],
                help="give the stage of the definition another name",
            )
        body = (*self.whole.body[: self.start], *new.body, *self.whole.body[self.stop :])
        return replace(self.whole, body=body, buffers=(*kept, *made.values()))


def stages_between(definition: Program, starts: Collection[str]) -> tuple[frozenset[str], ...]:
    """The stages of each part of a program.

    Args:
        definition: the program before any loop is changed.
        starts: the stages that a cut comes before.

    Returns:
        The parts, in order; one of all stages if there is no cut.
    """
    parts: list[set[str]] = [set()]
    for block in tree.blocks(definition):
        if block.name in starts and parts[-1]:
            parts.append(set())
        parts[-1].add(block.name)
    return tuple(map(frozenset, parts))


def part_of(program: Program, groups: Sequence[frozenset[str]], names: Iterable[str]) -> Part | None:
    """The part that contains the blocks that a step names.

    Args:
        program: the whole program.
        groups: the stages of each part, in order (`Schedule.parts`).
        names: names of blocks; names that are not in the program are ignored.

    Returns:
        The part; None if the step applies to the whole program, because nothing is cut, it names no block, or the part
        cannot be separated.

    Raises:
        ScheduleError: the blocks are in different parts.
    """
    if len(groups) < 2:
        return None
    origins = {b.name: b.origin for b in tree.blocks(program)}
    home = {name: n for name in names for n, group in enumerate(groups) if origins.get(name) in group}
    if len(set(home.values())) > 1:
        first, last = min(home, key=lambda n: home[n]), max(home, key=lambda n: home[n])
        raise ScheduleError(
            f"a cut separates block {first!r} from block {last!r}: they cannot share a loop",
            node=last,
            help="remove the cut from the schedule first",
        )
    return extract(program, groups[next(iter(home.values()))]) if home else None


def extract(program: Program, stages: frozenset[str]) -> Part | None:
    """Extracts the nests of some stages as a program.

    Args:
        program: the whole program.
        stages: stages of the definition.

    Returns:
        The part; None if there is no nest of these stages, if one also contains other stages, or if the nests are not
        consecutive.
    """
    mine = [_belongs(stmt, stages) for stmt in program.body]
    if True not in mine or None in mine:
        return None
    start = mine.index(True)
    stop = len(mine) - mine[::-1].index(True)
    if not all(mine[start:stop]):
        return None
    here = [b for stmt in program.body[start:stop] for b in tree.blocks_under(stmt)]
    there = [b for stmt in (*program.body[:start], *program.body[stop:]) for b in tree.blocks_under(stmt)]
    written = {b.writes for b in here}
    touched = written | {read.buffer for b in here for read in loads(b.body.value)}
    read_there = {read.buffer for b in there for read in loads(b.body.value)} | {b.writes for b in there}
    # The program's own parameters first, in their order, then the buffers that one part writes and another reads.
    order = dict.fromkeys((*program.params, *(b.name for b in program.buffers)))
    inputs = tuple(name for name in order if name in touched - written)
    outputs = tuple(name for name in order if name in written and (name in program.outputs or name in read_there))
    params = (*inputs, *outputs)
    buffers = (*(program.buffer(name) for name in params), *_inner(program, touched - set(params)))
    # In a buffer from another part, -inf may mark an absent element.
    masked = tuple(name for name in inputs if name in program.masked or name not in program.params)
    part = Program(program.name, params, outputs, buffers, program.body[start:stop], masked)
    return Part(program, start, stop, part)


def _inner(program: Program, names: set[str]):
    return (b for b in program.buffers if b.name in names)


def _belongs(stmt: Stmt, stages: frozenset[str]) -> bool | None:
    """Whether all blocks of a nest are of `stages`: True, False, or None if only some are."""
    memberships = {b.origin in stages for b in tree.blocks_under(stmt)}
    return memberships.pop() if len(memberships) == 1 else None


__all__ = ["Part", "cut", "extract", "part_of", "stages_between"]
