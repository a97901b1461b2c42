"""What an explorer holds: a schedule that is edited, the kernel that comes of it, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets import schedule_text

if TYPE_CHECKING:
    from neptune_lab import Kernel, Schedule
    from neptune_lab.loop_schedule import Step
    from neptune_lab.operators import Operator
    from neptune_lab.trace import StepRecord, Trace


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an edit was refused; `step` is its position in the edited steps, from 0, `line` and `column` count from 1."""

    message: str
    help: str | None = None
    step: int | None = None
    line: int | None = None
    column: int | None = None
    node: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As the page takes it."""
        return {n: getattr(self, n) for n in ("message", "help", "step", "line", "column", "node")}


class Refused(Exception):
    """An edit that left everything as it was."""

    def __init__(self, refusal: Refusal, record: StepRecord | None = None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.record = record


def refusal_of(error: NeptuneError, step: int | None = None, line: int | None = None) -> Refusal:
    """An error as a refusal."""
    column = getattr(error, "column", None)
    return Refusal(error.reason, error.help, step, line or getattr(error, "line", None), column, error.node)


def normal(primitive: str, arguments: Mapping[str, Any]) -> Step:
    """A step with its arguments in the primitive's own order, so that equal steps are equal data."""
    from neptune_lab.loop_schedule import PRIMITIVES, Step

    known = [p.name for p in PRIMITIVES[primitive].parameters] if primitive in PRIMITIVES else []
    ordered = sorted(arguments, key=lambda k: known.index(k) if k in known else len(known))
    return Step.of(primitive, **{k: arguments[k] for k in ordered if arguments[k] is not None})


@dataclass(frozen=True, slots=True)
class Version:
    """A schedule and its kernel, None if it makes none: as it was opened, or before the last edit."""

    schedule: Schedule
    kernel: Kernel | None


class Session:
    """An operator's schedule under edit. Every edit compiles; a refused one changes nothing."""

    def __init__(self, schedule: Schedule, kernel: Kernel | None = None, sample: Operator | None = None) -> None:
        """`sample` is the operator at small sizes, for tag tables and checks of a large one.

        `opened` is the first version, `before` the one before the last edit, undo or redo; None without any.
        """
        self.sample = sample
        self.schedule = schedule.copy()
        self.kernel, self.kernel_error = (kernel, None) if kernel is not None else compiled(self.schedule)
        self.opened = Version(self.schedule, self.kernel)
        self.before: Version | None = None
        self._refused: StepRecord | None = None
        self._past: list[Schedule] = []
        self._future: list[Schedule] = []

    @property
    def operator(self) -> Operator:
        """What is scheduled."""
        return self.schedule.operator

    @property
    def trace(self) -> Trace:
        """The record, of the kernel where there is one; a step that was refused last stands where it was meant to."""
        from neptune_lab.pipeline import schedule_trace

        made = self.kernel.trace if self.kernel is not None else schedule_trace(self.schedule)
        if self._refused is None:
            return made
        at = self._refused.index
        return replace(made, steps=(*made.steps[:at], self._refused, *made.steps[at:]))

    @property
    def undoable(self) -> int:
        """How many edits can be taken back."""
        return len(self._past)

    @property
    def redoable(self) -> int:
        """How many edits can be made again."""
        return len(self._future)

    def edit(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """These steps, as JSON, instead of the ones there were; Refused where one of them is."""
        self._take([_from_json(n, step) for n, step in enumerate(steps)], [None] * len(steps))

    def edit_text(self, text: str) -> None:
        """The steps that a text writes down; Refused, with the line, where one of them is not to be had."""
        try:
            parsed = schedule_text.parse(text, self._expand)
        except NeptuneError as error:
            self._refused = None
            raise Refused(refusal_of(error)) from error
        self._take([p.step for p in parsed], [p.line for p in parsed])

    def undo(self) -> None:
        """The schedule before the last edit."""
        if not self._past:
            raise Refused(Refusal("there is no edit to undo"))
        self._move(self._past, self._future)

    def redo(self) -> None:
        """The edit that was undone last."""
        if not self._future:
            raise Refused(Refusal("there is no edit to redo"))
        self._move(self._future, self._past)

    def _move(self, source: list[Schedule], target: list[Schedule]) -> None:
        """The newest of `source` is taken, and what was there is put on `target`."""
        now = self.schedule
        self._set(source[-1])
        source.pop()
        target.append(now)

    def schedule_before(self, steps: Sequence[Mapping[str, Any]], index: int) -> Schedule:
        """The schedule of the steps, as JSON, before the one at `index`; Refused where it cannot be reached."""
        if not 0 <= index <= len(steps):
            raise Refused(Refusal(f"there is no step {index} among {len(steps)}"))
        head = [_from_json(n, step) for n, step in enumerate(steps[:index])]
        return self._replayed(head, [None] * index)

    def other(self, steps: Sequence[Mapping[str, Any]]) -> Kernel:
        """A kernel of other steps on the same operator; NeptuneError where they make none."""
        from neptune_lab import compile

        try:
            return compile(self.schedule_before(steps, len(steps)))
        except Refused as refused:
            raise ScheduleError(refused.refusal.message, help=refused.refusal.help) from refused

    def _take(self, steps: list[Step], lines: Sequence[int | None]) -> None:
        try:
            made = self._replayed(steps, lines)
        except Refused as refused:
            self._refused = refused.record
            raise
        if made.steps == self.schedule.steps:  # a refused edit was taken back
            self._refused = None
            return
        before = self.schedule
        self._set(made)
        self._past.append(before)
        self._future.clear()

    def _set(self, schedule: Schedule) -> None:
        """All at once: where compiling breaks down, everything is as it was."""
        before = Version(self.schedule, self.kernel)
        self.kernel, self.kernel_error = compiled(schedule)
        self.schedule = schedule
        self.before = before
        self._refused = None

    def _replayed(self, steps: list[Step], lines: Sequence[int | None]) -> Schedule:
        """A schedule of these steps; those that it shares with the present one are not run again."""
        from neptune_lab.pipeline import refused_step

        same = 0
        for old, new in zip(self.schedule.steps, steps, strict=False):
            if old != new:
                break
            same += 1
        schedule = prefix(self.schedule, same)
        for n, step in enumerate(steps[same:], same):
            try:
                schedule.apply(step)
            except NeptuneError as error:
                raise Refused(refusal_of(error, n, lines[n]), refused_step(error, step, n + 1)) from error
        return schedule

    def _expand(self, before: list[schedule_text.ParsedStep], template: str, options: dict[str, Any]) -> Iterable[Step]:
        from neptune_lab import templates

        schedule = self._replayed([p.step for p in before], [p.line for p in before])
        return templates.TEMPLATES[template](schedule, **options).steps[len(before) :]


def compiled(schedule: Schedule) -> tuple[Kernel | None, Refusal | None]:
    """The kernel of a schedule, or why there is none yet: half a schedule is no mistake."""
    from neptune_lab import compile

    try:
        return compile(schedule), None
    except NeptuneError as error:
        return None, refusal_of(error)


def prefix(schedule: Schedule, count: int) -> Schedule:
    """The schedule with its first `count` steps alone; nothing is run again."""
    if not 0 <= count <= len(schedule.steps):
        raise ScheduleError(f"there is no step {count}; the schedule has {len(schedule.steps)}")
    shorter = schedule.copy()
    while len(shorter.steps) > count:
        shorter.undo()
    return shorter


def _from_json(position: int, step: Mapping[str, Any]) -> Step:
    """A step as the page sends it."""
    match step:
        case {"primitive": str(primitive), "arguments": dict(arguments)} if all(isinstance(k, str) for k in arguments):
            return normal(primitive, arguments)
    raise Refused(Refusal("this is not a step: a primitive's name and its arguments were expected", step=position))


__all__ = ["Refusal", "Refused", "Session", "Version", "compiled", "normal", "prefix", "refusal_of"]
