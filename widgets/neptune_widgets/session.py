"""What an explorer holds: an operator and its schedule that are edited, the kernel that comes of them, the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets import schedule_text

if TYPE_CHECKING:
    from neptune_lab import CodeOptions, Kernel, Schedule
    from neptune_lab.loop_schedule import Step
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Choice
    from neptune_lab.target import Target
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
class Source:
    """What a kernel is compiled from: a schedule, options of code generation, and the GPU, None if none was named.

    `sample` is the operator at small sizes, for tag tables and checks of a large one.
    """

    schedule: Schedule
    code: CodeOptions
    target: Target | None = None
    sample: Operator | None = None

    def same(self, other: Source) -> bool:
        """Whether both make the same kernel."""
        mine, theirs = self.schedule, other.schedule
        operators = mine.operator is theirs.operator or mine.definition == theirs.definition
        return operators and mine.steps == theirs.steps and (self.code, self.target) == (other.code, other.target)


@dataclass(frozen=True, slots=True)
class Version:
    """A source and its kernel, None if it makes none: as it was opened, or before the last edit."""

    source: Source
    kernel: Kernel | None

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.source.schedule


class Session:
    """An operator's schedule under edit. Every edit compiles; a refused one changes nothing."""

    def __init__(self, schedule: Schedule, kernel: Kernel | None = None, sample: Operator | None = None) -> None:
        """`sample` is that of `Source`.

        `opened` is the first version, `before` the one before the last edit, undo or redo; None without any.
        """
        from neptune_lab import CodeOptions

        self.source = Source(schedule.copy(), CodeOptions(), sample=sample)
        if kernel is not None:
            self.source = Source(schedule.copy(), kernel.code, kernel.target, sample)
        self.kernel, self.kernel_error = (kernel, None) if kernel is not None else compiled(self.source)
        self.opened = Version(self.source, self.kernel)
        self.before: Version | None = None
        self._refused: StepRecord | None = None
        self._past: list[Source] = []
        self._future: list[Source] = []

    @property
    def schedule(self) -> Schedule:
        """The schedule that is edited."""
        return self.source.schedule

    @property
    def sample(self) -> Operator | None:
        """The operator at small sizes, if one was given."""
        return self.source.sample

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
        made = [_from_json(n, step) for n, step in enumerate(steps)]
        self._take(made, [None] * len(steps), templates_kept(self.schedule, made))

    def edit_text(self, text: str) -> None:
        """The steps that a text writes down; Refused, with the line, where one of them is not to be had."""
        try:
            parsed = schedule_text.parse(text, self._expand)
        except NeptuneError as error:
            self._refused = None
            raise Refused(refusal_of(error)) from error
        steps = [p.step for p in parsed]
        kept = templates_kept(self.schedule, steps)
        self._take(steps, [p.line for p in parsed], [p.template or k for p, k in zip(parsed, kept, strict=True)])

    def take(self, choice: Choice) -> None:
        """The schedule and the options of a choice of the tuner, instead of the present ones; Refused if they make no
        kernel."""
        from neptune_lab.pipeline import compile_choice

        try:
            kernel = compile_choice(self.operator, choice, target=self.source.target)
        except NeptuneError as error:
            raise Refused(refusal_of(error)) from error
        self._change(replace(self.source, schedule=kernel.schedule, code=kernel.code, target=kernel.target), kernel)

    def with_default_code(self) -> None:
        """The default options of code generation, for the GPU here, instead of the present ones."""
        from neptune_lab import CodeOptions

        self._change(replace(self.source, code=CodeOptions(), target=None))

    def remake(self, values: Mapping[str, Any], *, anew: bool = False) -> str:
        """The operator with other arguments (`remake.remade`), and its schedule: the same steps, or if one of them is
        refused, or `anew` is true, those of its template.

        Returns:
            What became of the schedule, in a sentence.

        Raises:
            Refused: the operator cannot be made of these arguments, or neither schedule can.
        """
        from neptune_lab.pipeline import schedule
        from neptune_widgets.remake import remade, sample_again

        old = self.operator
        try:
            operator = remade(old, values)
        except NeptuneError as error:
            raise Refused(refusal_of(error)) from error
        sample = sample_again(self.sample, old, operator)
        lost = "" if sample is not None or self.sample is None else " The sample at small sizes is of the old operator."
        why = "" if anew else self._resized(operator, sample)
        if why is None:
            return f"The same {len(self.schedule.steps)} steps as before.{lost}"
        try:
            made = schedule(operator)
        except NeptuneError as error:
            raise Refused(refusal_of(error)) from error
        self._change(replace(self.source, schedule=made, sample=sample))
        return f"Scheduled anew by its template. {why}".strip() + lost

    def _resized(self, operator: Operator, sample: Operator | None) -> str | None:
        """Takes the present steps on another operator; if that cannot be, why, and nothing is changed."""
        from neptune_lab import Schedule

        made = Schedule(operator)
        for n, applied in enumerate(self.schedule.history):
            try:
                made.apply(applied.step)
            except NeptuneError as error:
                return f"Step {n + 1} of the schedule, {applied.step.primitive}, is refused: {error.reason}."
            made.attribute(applied.template, n)
        source = replace(self.source, schedule=made, sample=sample)
        kernel, refusal = compiled(source)
        if refusal is not None and self.kernel is not None:
            return f"The steps as they were make no kernel: {refusal.message}."
        self._change(source, kernel)
        return None

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

    def _move(self, source: list[Source], target: list[Source]) -> None:
        """The newest of `source` is taken, and what was there is put on `target`."""
        now = self.source
        self._set(source[-1])
        source.pop()
        target.append(now)

    def _change(self, source: Source, kernel: Kernel | None = None) -> None:
        """Another source, which can be undone; `kernel` is compiled from it already."""
        if source.same(self.source):  # a refused edit was taken back
            self._refused = None
            return
        before = self.source
        self._set(source, kernel)
        self._past.append(before)
        self._future.clear()

    def schedule_before(self, steps: Sequence[Mapping[str, Any]], index: int) -> Schedule:
        """The schedule of the steps, as JSON, before the one at `index`; Refused where it cannot be reached."""
        if not 0 <= index <= len(steps):
            raise Refused(Refusal(f"there is no step {index} among {len(steps)}"))
        head = [_from_json(n, step) for n, step in enumerate(steps[:index])]
        return self._replayed(head, [None] * index, [""] * index)

    def other(self, steps: Sequence[Mapping[str, Any]]) -> Kernel:
        """A kernel of other steps on the same operator, with the same options; NeptuneError where they make none."""
        from neptune_lab import compile

        try:
            found = self.schedule_before(steps, len(steps))
            return compile(found, code=self.source.code, target=self.source.target)
        except Refused as refused:
            raise ScheduleError(refused.refusal.message, help=refused.refusal.help) from refused

    def _take(self, steps: list[Step], lines: Sequence[int | None], templates: Sequence[str]) -> None:
        try:
            made = self._replayed(steps, lines, templates)
        except Refused as refused:
            self._refused = refused.record
            raise
        self._change(replace(self.source, schedule=made))

    def _set(self, source: Source, kernel: Kernel | None = None) -> None:
        """All at once: where compiling breaks down, everything is as it was."""
        before = Version(self.source, self.kernel)
        self.kernel, self.kernel_error = (kernel, None) if kernel is not None else compiled(source)
        self.source = source
        self.before = before
        self._refused = None

    def _replayed(self, steps: list[Step], lines: Sequence[int | None], templates: Sequence[str]) -> Schedule:
        """A schedule of these steps, with the template of each; those that it shares with the present one are not run
        again."""
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
                raise Refused(
                    refusal_of(error, n, lines[n]), refused_step(error, step, n + 1, schedule.program)
                ) from error
            schedule.attribute(templates[n], n)
        return schedule

    def _expand(self, before: list[schedule_text.ParsedStep], template: str, options: dict[str, Any]) -> Iterable[Step]:
        from neptune_lab import templates

        schedule = self._replayed([p.step for p in before], [p.line for p in before], [p.template for p in before])
        return templates.TEMPLATES[template](schedule, **options).steps[len(before) :]


def compiled(source: Source) -> tuple[Kernel | None, Refusal | None]:
    """The kernel of a source, or why there is none yet: half a schedule is no mistake."""
    from neptune_lab import compile

    try:
        return compile(source.schedule, code=source.code, target=source.target), None
    except NeptuneError as error:
        return None, refusal_of(error)


def templates_kept(schedule: Schedule, steps: Sequence[Step]) -> list[str]:
    """The template of each of `steps`, which are those of `schedule` after an edit; "" for a step that was added.

    A step that stayed, or whose arguments alone were changed, is still one of its template's.
    """
    old = schedule.history
    found = [""] * len(steps)
    matcher = SequenceMatcher(None, [a.step for a in old], list(steps), autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        if kind not in ("equal", "replace") or a_end - a != b_end - b:
            continue
        for applied, n in zip(old[a:a_end], range(b, b_end), strict=True):
            if applied.step.primitive == steps[n].primitive:
                found[n] = applied.template
    return found


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


__all__ = [
    "Refusal",
    "Refused",
    "Session",
    "Source",
    "Version",
    "compiled",
    "normal",
    "prefix",
    "refusal_of",
    "templates_kept",
]
