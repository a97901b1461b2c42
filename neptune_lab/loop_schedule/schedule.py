"""Schedule: an operator's program, the steps applied to it, and the phases of each step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.materialized_example import materialized_example
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.render import as_figure
from neptune_lab.loop_ir.run import Agreement, check_names, compare, run
from neptune_lab.loop_ir.tag_table import TagTable
from neptune_lab.loop_ir.tags import record
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule import normalising
from neptune_lab.loop_schedule.methods import PrimitiveMethods
from neptune_lab.loop_schedule.normalising import Applied
from neptune_lab.loop_schedule.outcome import Phase, marked_wrong, program_of_phase
from neptune_lab.loop_schedule.outcome_cache import cached_outcome, resized
from neptune_lab.loop_schedule.primitives import get
from neptune_lab.loop_schedule.primitives.cut import extract, part_of, stages_between
from neptune_lab.loop_schedule.steps import Step, as_step, steps_of
from neptune_lab.progress import tell
from neptune_lab.strict.console import no_attribute, shown
from neptune_lab.strict.values import check_integer, check_kind, check_number, items_of

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


class Schedule(PrimitiveMethods):
    """An operator's loop program, and the steps that transform it.

    Primitives are methods, which take names of blocks and loops: `sch.split("s_max.j", (None, 2))`,
    `sch.rolling_update("s_sum", "s_max.j")`. A loop is "block.loop". An illegal step raises ScheduleError or
    RepairError and leaves the schedule unchanged.

    Args:
        operator: from `neptune_lab.operators`.
    """

    def __init__(self, operator: Operator) -> None:
        if not hasattr(type(operator), "program"):  # of the class: the property itself would load TVM
            help = "make an operator first, for example operators.attention.causal(seq=128)"
            raise ScheduleError(f"Schedule takes an operator, and got {shown(operator)}", help=help)
        self.operator = operator
        self._applied: list[Applied] = []
        self._undone: list[Step] = []
        self._checked: dict[Program, Agreement] = {}

    if not TYPE_CHECKING:  # for checkers it would make every name one of a schedule's

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("a Schedule", name, dir(type(self)))

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def definition(self) -> Program:
        """The program before any step."""
        return self.operator.program

    @property
    def program(self) -> Program:
        """The current program."""
        return self._applied[-1].outcome.program if self._applied else self.definition

    @property
    def base(self) -> Program:
        """The definition after the normalisations, before any loop is changed: what templates plan for."""
        return normalising.base_of(self._applied, self.definition)

    @property
    def sources(self) -> dict[str, str]:
        """For each stage that a normalisation added, the stage of the definition that it was made of."""
        return normalising.sources_of(self._applied)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The applied steps, in order."""
        return tuple(a.step for a in self._applied)

    @property
    def history(self) -> tuple[Applied, ...]:
        """Each applied step, in order, with the program before it and its outcome."""
        return tuple(self._applied)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the last step; none if there is no step."""
        return self._applied[-1].outcome.phases if self._applied else ()

    @property
    def parts(self) -> tuple[frozenset[str], ...]:
        """The stages of each part of the program, in order; `cut` begins a new part."""
        cuts = [(a.before, str(dict(a.step.arguments)["block"])) for a in self._applied if a.step.primitive == "cut"]
        starts = {tree.find_block(before, name)[1].origin for before, name in cuts}
        return stages_between(self.base, starts)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, in program order."""
        return tuple(b.name for b in tree.blocks(self.program))

    def has_block(self, name: str) -> bool:
        """Whether the current program has a block called `name`.

        Args:
            name: a block, such as "s_max".

        Returns:
            True if there is one.
        """
        return tree.has_block(self.program, name)

    def loops(self, block: str) -> tuple[str, ...]:
        """The loops around `block`, outermost first, as "block.loop".

        Args:
            block: a block, such as "s_max".

        Returns:
            Loops such as "s_max.j", for the arguments of primitives.

        Raises:
            ScheduleError: there is no such block; the help names the nearest ones.
        """
        _, _, loops = tree.find_block(self.program, block)
        return tuple(f"{block}.{loop.var}" for loop in loops)

    def __str__(self) -> str:
        return as_figure(self.program).rstrip("\n")

    def tvmscript(self) -> str:
        """The current program in TVMScript, as TVM prints it: blocks, axes, reads and writes.

        Returns:
            The text of a TVM `prim_func`.
        """
        from neptune_lab.loop_ir.tvm_compat import tvmscript

        return tvmscript(self.program)

    def __repr__(self) -> str:
        return f"<Schedule of {self.operator.name}, steps: {len(self._applied)}>\n{self}"

    # -- steps as data --------------------------------------------------------------------------------------

    def apply(self, step: Step | str, /, **arguments: Any) -> tuple[str, ...]:
        """Applies one step, and discards the steps that `redo` could apply.

        Args:
            step: a Step, or the name of a primitive, followed by its arguments: `sch.apply("inline", block="s_exp")`.
            arguments: the primitive's arguments by name, if `step` is a name.

        Returns:
            The names of the loops or blocks that the step created.

        Raises:
            ScheduleError, RepairError: the step is illegal. The schedule is unchanged; the error's `step` is the step.
        """
        made = self._apply(as_step(step, arguments))
        self._undone.clear()
        return made

    def _apply(self, step: Step) -> tuple[str, ...]:
        tell("step", step)
        arguments = step.plain_arguments()
        part = None
        try:
            primitive = get(step.primitive, arguments, self.program)
            if primitive.normalises:
                normalising.check_first(self._applied, step)
            part = part_of(self.program, self.parts, primitive.blocks(arguments))
            outcome = cached_outcome(primitive, self.program if part is None else part.program, arguments)
            outcome = outcome if part is None else part.put_back(outcome)
            if outcome.program is not self.program and not resized():
                verify(outcome.program, outcome.program if primitive.normalises else self.base)
        except NeptuneError as error:
            error.step = step  # type: ignore[attr-defined]
            if part is not None and hasattr(error, "phases"):
                error.phases = part.phases(error.phases)  # type: ignore[attr-defined]
            raise
        except (TypeError, AttributeError, ValueError) as error:
            raise ScheduleError(
                f"{step}: an argument has the wrong type: {error}", help=f"see help(Schedule.{step.primitive})"
            ) from error
        self._applied.append(Applied(step, self.program, marked_wrong(outcome)))
        return outcome.made

    def preface(self, phases: tuple[Phase, ...]) -> None:
        """Inserts the phases of a refused attempt before the phases of the last step.

        Args:
            phases: the phases of the refused attempt.
        """
        last = self._applied[-1]
        self._applied[-1] = replace(last, outcome=replace(last.outcome, phases=(*phases, *last.outcome.phases)))

    def attribute(self, template: str, first: int) -> None:
        """Notes that the steps from number `first` on were applied by a template, for the record.

        Args:
            template: its name.
            first: how many steps there were before.
        """
        check_integer("first", first, 0, len(self._applied), ScheduleError)
        self._applied[first:] = [replace(applied, template=template) for applied in self._applied[first:]]

    def adopt(self, part: Schedule, history: Iterable[Applied] | None = None) -> None:
        """Appends the steps of a schedule of one part of the program, with their outcomes.

        Args:
            part: a schedule whose definition is one of the `parts` of this schedule's program.
            history: those of the part's steps to append; default: all.
        """
        check_kind("part", part, Schedule, "a schedule of one of the parts", ScheduleError)
        for applied in part.history if history is None else history:
            before = self.program
            here = extract(before, frozenset(b.origin for b in tree.blocks(applied.before)))
            assert here is not None, "a part is the nests between two cuts"
            self._applied.append(Applied(applied.step, before, here.put_back(applied.outcome), applied.template))

    def undo(self) -> Step:
        """Reverts the last step.

        Returns:
            The step, which `redo` applies again.

        Raises:
            ScheduleError: there is no step to undo.
        """
        if not self._applied:
            raise ScheduleError("there is no step to undo", help="the schedule is the definition; apply a step first")
        step = self._applied.pop().step
        self._undone.append(step)
        return step

    def back_to(self, count: int) -> None:
        """Removes all steps after the first `count`, and `redo` does not restore them; used if a template is refused.

        Args:
            count: the number of steps to keep.
        """
        check_integer("count", count, 0, len(self._applied), ScheduleError, help="sch.undo() reverts the last step")
        del self._applied[count:]

    def redo(self) -> Step:
        """Applies the last undone step again.

        Returns:
            The step.

        Raises:
            ScheduleError, RepairError: there is no step to redo, or it is refused.
        """
        if not self._undone:
            raise ScheduleError("there is no step to redo", help="redo follows undo, before any new step")
        step = self._undone[-1]
        self._apply(step)
        self._undone.pop()
        return step

    def to_json(self) -> str:
        """The steps as JSON, which `Schedule.replay` reads.

        Returns:
            A list of {"primitive": …, "arguments": {…}}, as text.
        """
        return json.dumps([s.as_record() for s in self.steps], indent=2)

    def to_python(self) -> str:
        """The steps as Python calls on `sch`.

        Returns:
            One call per line, such as `sch.retire_tags('s_max')`.
        """
        return "".join(f"sch.{s}\n" for s in self.steps)

    @classmethod
    def replay(cls, operator: Operator, steps: str | Iterable[Step]) -> Schedule:
        """A schedule of `operator` with `steps` applied.

        Args:
            operator: from `neptune_lab.operators`.
            steps: Steps, or the JSON of `to_json`.

        Returns:
            A new schedule; every step is checked again.

        Raises:
            ScheduleError, RepairError: `steps` is not of that form, or a step is illegal for this operator.
        """
        schedule = cls(operator)
        if isinstance(steps, str):
            steps = steps_of(steps)
        items = items_of(steps)
        if items is None:
            raise ScheduleError(
                f"steps={shown(steps)}: expected Steps, or the JSON of Schedule.to_json",
                help="pass the steps of another schedule, other.steps, or the text of other.to_json()",
            )
        for step in items:
            schedule.apply(step)
        return schedule

    def copy(self) -> Schedule:
        """An independent schedule with the same steps.

        Returns:
            A schedule that shares the programs, which never change.
        """
        other = Schedule(self.operator)
        other._applied = list(self._applied)
        return other

    __copy__ = copy  # without the list of steps of this schedule, which `copy.copy` would share

    # -- numbers --------------------------------------------------------------------------------------------

    def check(self, seed: int = 0, tolerance: float = 1e-9) -> Agreement:
        """Whether the scheduled program computes the same as the definition: runs both natively in float64.

        Every intermediate buffer is allocated in full, so use small shapes.

        Args:
            seed: the seed of the random inputs, from 0 to 2**63 - 1.
            tolerance: the largest relative error (Frobenius norm) of an output that counts as equal.

        Returns:
            An Agreement: true if they are equal, with the error, and a sentence as its text.

        Raises:
            ScheduleError: `seed` or `tolerance` is not such a number.
        """
        check_integer("seed", seed, 0, 2**63 - 1, ScheduleError)
        check_number("tolerance", tolerance, ScheduleError, from_zero=True)
        program = self.program
        if seed == 0 and program in self._checked:
            return self._checked[program]
        result = compare(program, self.definition, self.operator.random_inputs(seed), tolerance)
        if seed == 0:
            self._checked[program] = result
        return result

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the current program natively.

        Args:
            inputs: an array for each input, by name, in the operator's shapes; they are cast to its dtypes.

        Returns:
            All buffers by name, including the intermediate ones.

        Raises:
            ScheduleError: an input is missing, unknown, not an array of numbers, or of another shape.
        """
        check_names(self.program, inputs)
        return run(self.program, inputs)

    def tag_table(
        self,
        rolling: str,
        *,
        phase: str | None = None,
        inputs: dict[str, np.ndarray] | None = None,
        where: dict[str, int] | None = None,
    ) -> TagTable:
        """The values of every buffer at every iteration of a loop, and the values that were read; for small programs.

        Args:
            rolling: the loop's name, "j" or "j0".
            phase: a phase of the last step, such as "naive"; default: the current program.
            inputs: arrays by input name, as in `run`; default: random ones, with seed 0.
            where: values of iteration variables, such as {"i": 0}: only these elements are shown; default: all.

        Returns:
            A table with one column per iteration; a notebook displays it.

        Raises:
            ScheduleError: there is no such loop or phase, the program runs more than 200,000 stores, or an input or
                `where` has another form.
        """
        program = self.program if phase is None else program_of_phase(self.phases, phase)
        arrays = self.operator.random_inputs(0) if inputs is None else inputs
        if not isinstance(arrays, Mapping):
            raise ScheduleError(
                f"inputs={shown(inputs)}: expected arrays by the names of the inputs",
                help="operator.random_inputs(0) has the form",
            )
        check_names(program, arrays)
        reference = record(self.base, arrays)
        return materialized_example(record(program, arrays), reference, rolling=rolling, where=where)


__all__ = ["Applied", "Schedule", "Step"]
