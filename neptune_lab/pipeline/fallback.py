"""The fallback if a template is refused: the definition is cut into parts, down to one stage per kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from neptune_lab.errors import EmitError, NeptuneError, RepairError, ScheduleError, TileError
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.loop_ir.render import definition
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_schedule.normalising import divided
from neptune_lab.loop_schedule.primitives.cut import Part, extract
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import CONFIGS, TEMPLATES, TileConfig, choose_template
from neptune_lab.loop_schedule.templates.config import config_of
from neptune_lab.loop_schedule.templates.elementwise import schedule_maps
from neptune_lab.loop_schedule.templates.one_stage import schedule_stage

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

# Errors of a compiler stage that cannot handle a legal schedule.
REFUSALS = (ScheduleError, RepairError, TileError, EmitError)
# The most stages of a run that is tried (other than all of them), and the most runs that are tried; after that, only
# runs as long as the last that was taken are, and each other stage is a kernel.  A try takes about 0.05 s.
LONGEST_RUN, ATTEMPTS = 10, 24
# The most elements of a tile of a part. A multiprocessor has registers for half as many, and ptxas does not end for
# eight times as many (ten minutes for the sums of a performer's gradients, in tiles of 2**20).
LARGEST_TILE = 1 << 17


def schedule_apart(
    operator: Operator, refusal: NeptuneError, check: Callable[[Schedule], object], config: TileConfig | None = None
) -> Schedule:
    """A schedule of `operator` in parts: the longest runs of stages that a template can fuse, from the last stage on;
    a stage that no template takes is a kernel.

    Args:
        refusal: why the whole could not be fused.
        check: lowers a schedule as far as it can be refused, perhaps to a program of tiles, whose sizes count then.
        config: of the templates: the GPU that sizes are chosen for.

    Raises:
        ScheduleError, TileError, EmitError: a stage cannot be written as a kernel even alone; the stage is named.
    """
    search = _Search(operator, check, config)
    stages = tuple(b.name for b in blocks(operator.program))
    parts = search.parts(stages, refusal)
    return _together(operator, parts)


def parts_of(operator: Operator) -> list[Operator]:
    """Each part of an operator that has `parts`, as an operator."""
    return [_part_as_operator(operator, _part_of(operator, stages)) for stages in operator.parts]


def schedule_parts(operator: Operator, schedules: Iterable[Schedule]) -> Schedule:
    """A schedule of an operator in its own parts.

    Args:
        operator: with `parts`.
        schedules: of each part (`parts_of`).

    Returns:
        The schedules of the parts as one, with a cut between each two, after the normalisations of all parts.

    Raises:
        ScheduleError, RepairError, TileError, EmitError: a part is refused.
    """
    whole = Schedule(operator)
    own = [(schedule, *divided(schedule.history)) for schedule in schedules]
    for schedule, normalisations, _ in own:
        whole.adopt(schedule, normalisations)
    for schedule, _, _ in own[1:]:
        first = blocks(schedule.base)[0].name
        whole.cut(first)
        whole.remark(f"A part starts at {first}, as the definition says.")
    for schedule, _, steps in own:
        whole.adopt(schedule, steps)
    return whole


def schedule_each_stage(operator: Operator, refusal: NeptuneError, check: Callable[[Schedule], object]) -> Schedule:
    """A schedule of `operator` with one kernel per stage."""
    search = _Search(operator, check)
    parts = [search.alone(b.name, refusal, refusal) for b in blocks(operator.program)]
    return _together(operator, parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """Stages that were scheduled separately.

    Args:
        refusal: why they are not fused with the stage before them.
        alone: if it is one stage, why no template took it.
    """

    stages: tuple[str, ...]
    schedule: Schedule
    refusal: NeptuneError
    alone: NeptuneError | None = None


def _check_tiles(made: object) -> None:
    """Refuses a program of tiles of which one has more than `LARGEST_TILE` elements."""
    if not isinstance(made, TileProgram):
        return
    for store in (store for kernel in made.kernels for store in stores(kernel.body)):
        size = max(prod(shape_of(part, made)) for part in subexpressions(store.value))
        if size > LARGEST_TILE:
            raise TileError(
                f"a tile has {size} elements; in a part, at most {LARGEST_TILE} are taken",
                node=store.origin,
                help="give the operator parts of its own, or a template with smaller tiles",
            )


@dataclass(slots=True)
class _Search:
    operator: Operator
    check: Callable[[Schedule], object]
    config: TileConfig | None = None
    attempts: int = ATTEMPTS
    found: int = 0  # the stages of the run that a template took last

    def parts(self, stages: tuple[str, ...], refusal: NeptuneError) -> list[_Part]:
        """The parts of `stages`, in order: each is the longest run of stages that a template takes.

        Args:
            refusal: why all of them cannot be one.
        """
        done: list[_Part] = []
        stop = len(stages)
        while stop:
            part = self._last(stages[:stop], refusal if stop == len(stages) else None)
            done.insert(0, part)
            stop -= len(part.stages)
        return done

    def _last(self, stages: tuple[str, ...], refusal: NeptuneError | None) -> _Part:
        """The longest run at the end of `stages` that a template takes, or the last stage alone."""
        first = max(0, len(stages) - LONGEST_RUN)
        for start in range(first, len(stages)):
            if start == 0 and refusal is not None and _reductions(self.operator, stages):
                continue  # all of them were tried
            # (Layers repeat: after all attempts, a run as long as the one behind it is still tried.)
            if self.attempts <= 0 and len(stages) - start != self.found:
                continue
            fused = self._fused(stages[start:])
            if isinstance(fused, Schedule):
                self.found = len(stages) - start
                return _Part(stages[start:], fused, refusal or self._enough())
            if start < len(stages) - 1:
                refusal = fused
            else:
                return self.alone(stages[-1], refusal or fused, fused)
        refusal = refusal or self._enough()
        return self.alone(stages[-1], refusal, refusal)

    def _enough(self) -> ScheduleError:
        """Why a longer run was not tried."""
        if self.attempts > 0:
            return ScheduleError(f"no more than {LONGEST_RUN} stages are tried together")
        return ScheduleError(f"{ATTEMPTS} ways to fuse other stages were tried before")

    def _fused(self, stages: tuple[str, ...]) -> Schedule | NeptuneError:
        """The stages by a template, or why it is refused."""
        self.attempts -= 1
        part = _part_of(self.operator, stages)
        try:
            operator = _part_as_operator(self.operator, part)
            if _reductions(self.operator, stages):
                name = operator.template or choose_template(operator.program)[0]
                scheduled = TEMPLATES[name](Schedule(operator), config_of(name, CONFIGS[name], self.config))
            else:
                scheduled = schedule_maps(Schedule(operator))
            _check_tiles(self.check(scheduled))
        except REFUSALS as error:
            if hasattr(error, "phases"):
                error.phases = part.phases(error.phases)  # type: ignore[attr-defined]
            return error
        return scheduled

    def alone(self, stage: str, refusal: NeptuneError, why: NeptuneError) -> _Part:
        """One stage as one kernel."""
        try:
            scheduled = schedule_stage(
                Schedule(_part_as_operator(self.operator, _part_of(self.operator, (stage,)))), stage
            )
            self.check(scheduled)
        except REFUSALS as error:
            kind = next((k for k in (TileError, EmitError) if isinstance(error, k)), ScheduleError)
            raise kind(
                f"stage {stage!r} of {self.operator.name} cannot be written as a kernel, even by itself: "
                f"{error.reason}\n  in {_line(self.operator, stage)}{_users_line(self.operator, stage)}",
                node=stage,
                help=error.help,
            ) from error
        return _Part((stage,), scheduled, refusal, why)


def _line(operator: Operator, stage: str) -> str:
    """The line of the definition that computes a stage."""
    return next(line.text.strip() for line in definition(operator.program) if line.origin == stage)


def _users_line(operator: Operator, stage: str) -> str:
    """The line of the user's file that a stage of a traced function comes from; "" for other operators."""
    return f"\n  from {operator.lines[stage]}" if stage in operator.lines else ""


def _part_of(operator: Operator, stages: Sequence[str]) -> Part:
    part = extract(operator.program, frozenset(stages))
    assert part is not None, "the stages follow each other in the definition"
    return part


def _part_as_operator(operator: Operator, part: Part) -> Operator:
    """The stages of a part as an operator: what they read is an input, what others read is an output."""
    return replace(operator, build=lambda: part.program, parts=())


def _together(operator: Operator, parts: list[_Part]) -> Schedule:
    """The schedules of all parts as one, with why the definition was cut, and the phases that the refusals reached."""
    whole = Schedule(operator)
    for before, part in pairwise(parts):
        whole.cut(part.stages[0])
        whole.preface(tuple(getattr(part.refusal, "phases", ())))
        whole.remark(_why_apart(before, part))
    for part in parts:
        if part.alone is not None and len(_reductions(operator, part.stages)):
            whole.remark(f"{part.stages[0]} takes no template, only tiles that fit: {part.alone.reason}.")
        whole.adopt(part.schedule)
    return whole


def _reductions(operator: Operator, stages: Sequence[str]) -> list[str]:
    return [b.name for b in blocks(operator.program) if b.name in stages and b.is_reduction]


# What a refusal means for the stages that were tried together, by the stage of the compiler that refused.
_MEANS = {
    RepairError: "The algebra has no repair for them",
    TileError: "Fused, they cannot be written as tiles",
    EmitError: "Fused, they cannot be written in Triton",
}


def _why_apart(before: _Part, part: _Part) -> str:
    name, several = part.stages[0], len(part.stages) > 1
    what = f"{name}{' and what follows it' if several else ''} {'are' if several else 'is'} computed apart"
    means = _MEANS.get(type(part.refusal), "They cannot be fused")
    return f"{what} from {before.stages[-1]}, which is kept in global memory. {means}: {part.refusal.reason}."


__all__ = ["REFUSALS", "parts_of", "schedule_apart", "schedule_each_stage", "schedule_parts"]
