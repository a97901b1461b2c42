"""What a primitive gives back: the new program, and the phases it went through."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.repair import RepairTerm, VectorRepair
from neptune_lab.repair import Step as DerivationStep
from neptune_lab.strict.console import shown


class Refusal(NamedTuple):
    """Where the algebra refused: its step, the expression there, why, the reducer ("" if there is none to read), and
    the steps before that one."""

    step: str
    expression: str
    reason: str
    reducer: str
    passed: tuple[DerivationStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a primitive.

    Args:
        key: "dataflow", "naive", "repair", "repaired", or the primitive's own name.
        title: a few words.
        note: what happened and why, for a reader.
        program: the program after the phase.
        derivation: the repair term, or the vector repair, in the phase that derives it.
        wrong: the program is *meant* to be wrong here (naive fusion).
        reads_early: blocks that read a reduction before it is complete, as (reader, producer).
        refusal: where the algebra refused, in the phase that would derive the repair.
    """

    key: str
    title: str
    note: str
    program: Program
    derivation: RepairTerm | VectorRepair | None = None
    wrong: bool = False
    reads_early: tuple[tuple[str, str], ...] = ()
    refusal: Refusal | None = None

    def __repr__(self) -> str:
        return f"<Phase {self.key}: {self.note}>"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The program after a primitive, its phases in order, and names of what it made.

    Args:
        program: the program.
        phases: in order.
        made: names of blocks or loops.
        sources: for each stage that a normalisation adds to the definition, (its name, the stage it is made of).
    """

    program: Program
    phases: tuple[Phase, ...] = ()
    made: tuple[str, ...] = field(default=())
    sources: tuple[tuple[str, str], ...] = ()


def plain(primitive: str, program: Program, note: str, made: tuple[str, ...] = ()) -> Outcome:
    """A primitive of a single phase."""
    return Outcome(program, (Phase(primitive, primitive.replace("_", " "), note, program),), made)


def program_of_phase(phases: tuple[Phase, ...], key: str) -> Program:
    """The program after a phase; ScheduleError if there is none with this key."""
    programs = {phase.key: phase.program for phase in phases}
    if not isinstance(key, str) or key not in programs:
        raise ScheduleError(
            f"the last step has no phase {shown(key)}", help=tree.nearest(key, list(programs), "phases")
        )
    return programs[key]


def marked_wrong(outcome: Outcome) -> Outcome:
    """The outcome with `wrong` set in each phase whose program applies a repair that numbers show to be wrong."""
    phases = tuple(replace(p, wrong=True) if _repairs_wrongly(p.program) else p for p in outcome.phases)
    return replace(outcome, phases=phases)


def _repairs_wrongly(program: Program) -> bool:
    return any(b.repair is not None and b.repair.wrong for b in tree.blocks(program))
