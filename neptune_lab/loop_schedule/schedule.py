"""Schedule: an operator's program, the steps applied to it, and the phases that each went through."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.render import to_text
from neptune_lab.loop_ir.run import Agreement, compare, run
from neptune_lab.loop_ir.tag_table import TagTable, table
from neptune_lab.loop_ir.tags import record
from neptune_lab.loop_ir.unproved import has_wrong_repair
from neptune_lab.loop_ir.verify import verify
from neptune_lab.loop_schedule.cut import extract, part_of
from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.loop_schedule.primitives import get
from neptune_lab.loop_schedule.remembered import outcome_of, resized
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import MIB
from neptune_lab.strict.json_text import parse
from neptune_lab.strict.typed import Name, unpack
from neptune_lab.strict.values import check_integer, check_number

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive with plain arguments: data, so that it can be written down, edited and replayed."""

    primitive: str
    arguments: tuple[tuple[str, Any], ...]

    def as_record(self) -> dict[str, Any]:
        """JSON form: {"primitive": …, "arguments": {…}}."""
        return {"primitive": self.primitive, "arguments": dict(_plain(v, k) for k, v in self.arguments)}

    @staticmethod
    def of(primitive: str, **arguments: Any) -> Step:
        """A step from keyword arguments; lists become tuples."""
        return Step(primitive, tuple((k, _frozen(v)) for k, v in arguments.items()))

    def __str__(self) -> str:
        """The call that makes this step, as one writes it: `tile('qk', i=64, j=64)`."""
        parts: list[str] = []
        for key, value in self.arguments:
            if (self.primitive, key) in _SPREAD:
                named = _is_mapping(value)
                parts += [f"{x[0]}={_python(x[1])}" if named else _python(x) for x in value]
            elif key in ("block", "loop"):
                parts.append(_python(value))
            else:
                parts.append(f"{key}={_python(value)}")
        return f"{self.primitive}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class _Written:
    """A step in a file."""

    primitive: Name
    arguments: dict[Name, Any]


# Bytes of a file of steps.
MOST_BYTES = 4 * MIB

# Arguments that a method of Schedule takes one by one.
_SPREAD = (("reorder", "loops"), ("fuse", "loops"), ("tile", "tiles"))


# What the two updates take where nothing is said.
_DEFAULTS: dict[str, Any] = {"maps": "auto", "repair": None, "proved": True}


def _given_only(**arguments: Any) -> dict[str, Any]:
    """The arguments that are not what is taken anyway, so that a step says no more than was asked for."""
    return {name: value for name, value in arguments.items() if value != _DEFAULTS[name]}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def _listed(value: Any) -> Any:
    """A list of what can be iterated; anything else as it is, for the primitive to refuse."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _is_mapping(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(x, tuple) and len(x) == 2 for x in value)


def _plain(value: Any, key: str) -> tuple[str, Any]:
    return key, _thawed(value)


def _thawed(value: Any) -> Any:
    if _is_mapping(value):
        return {k: _thawed(v) for k, v in value}
    return [_thawed(v) for v in value] if isinstance(value, tuple) else value


def _blocks_named(arguments: dict[str, Any]) -> list[str]:
    """The blocks that a primitive's arguments name; a loop is named with its block."""
    return [str(arguments[key]).partition(".")[0] for key in ("block", "loop") if key in arguments]


def _python(value: Any) -> str:
    return repr(_thawed(value)) if isinstance(value, tuple) else repr(value)


def _marked(outcome: Outcome) -> Outcome:
    """The phases after a wrong repair are wrong as well."""
    phases = tuple(replace(p, wrong=True) if has_wrong_repair(p.program) else p for p in outcome.phases)
    return replace(outcome, phases=phases)


@dataclass(frozen=True, slots=True)
class Applied:
    """A step that was applied: the program before it, and what came of it."""

    step: Step
    before: Program
    outcome: Outcome


class Schedule:
    """An operator on its way to a kernel.

    Primitives are methods, called by block and loop names: `sch.split("s_max.j", (None, 2))`,
    `sch.rolling_update("s_sum", "s_max.j")`. A loop is "block.loop". A primitive that refuses raises ScheduleError
    and leaves the schedule as it was.

    Args:
        operator: from `neptune_lab.operators`.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._applied: list[Applied] = []
        self._undone: list[Step] = []
        self._checked: dict[Program, Agreement] = {}

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def definition(self) -> Program:
        """The program before any step."""
        return self.operator.program

    @property
    def program(self) -> Program:
        """The program now."""
        return self._applied[-1].outcome.program if self._applied else self.definition

    @property
    def steps(self) -> tuple[Step, ...]:
        """What was applied, in order."""
        return tuple(a.step for a in self._applied)

    @property
    def history(self) -> tuple[Applied, ...]:
        """Each step with the program before it and its phases."""
        return tuple(self._applied)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the last step."""
        return self._applied[-1].outcome.phases if self._applied else ()

    @property
    def parts(self) -> tuple[frozenset[str], ...]:
        """The stages of the definition between two cuts, in order; a single part where nothing was cut."""
        starts = set()
        for applied in self._applied:
            if applied.step.primitive == "cut":
                name = str(dict(applied.step.arguments)["block"])
                starts.add(tree.find_block(applied.before, name)[1].origin)
        if not starts:
            return (frozenset(b.name for b in tree.blocks(self.definition)),)
        found: list[set[str]] = [set()]
        for block in tree.blocks(self.definition):
            if block.name in starts and found[-1]:
                found.append(set())
            found[-1].add(block.name)
        return tuple(map(frozenset, found))

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, in program order."""
        return tuple(b.name for b in tree.blocks(self.program))

    def has_block(self, name: str) -> bool:
        """Whether there is a block called `name` now."""
        return tree.has_block(self.program, name)

    def loops(self, block: str) -> tuple[str, ...]:
        """The loops around `block`, outermost first, as "block.loop"."""
        _, _, loops = tree.find_block(self.program, block)
        return tuple(f"{block}.{loop.var}" for loop in loops)

    def __str__(self) -> str:
        return to_text(self.program).rstrip("\n")

    def tvmscript(self) -> str:
        """The program now in TVMScript, as TVM itself prints it: blocks, axes, reads and writes."""
        from neptune_lab.loop_ir.tvm_compat import tvmscript

        return tvmscript(self.program)

    def __repr__(self) -> str:
        return f"<Schedule of {self.operator.name}, {len(self._applied)} steps>\n{self}"

    # -- steps as data --------------------------------------------------------------------------------------

    def apply(self, step: Step) -> tuple[str, ...]:
        """Applies one step; the names it made (loops, blocks)."""
        made = self._apply(step)
        self._undone.clear()
        return made

    def _apply(self, step: Step) -> tuple[str, ...]:
        if not isinstance(step, Step):
            raise ScheduleError(f"{shown(step)} is no step", help="write Step.of(primitive, **arguments)")
        arguments = {k: _thawed(v) for k, v in step.arguments}
        primitive = get(step.primitive, arguments)
        part = part_of(self.program, self.parts, _blocks_named(arguments))
        try:
            outcome = outcome_of(primitive, self.program if part is None else part.program, arguments)
            outcome = outcome if part is None else part.put_back(outcome)
            if outcome.program is not self.program and not resized():
                verify(outcome.program, self.definition)
        except NeptuneError as error:
            error.step = step  # type: ignore[attr-defined]
            if part is not None and hasattr(error, "phases"):
                error.phases = part.phases(error.phases)  # type: ignore[attr-defined]
            raise
        except (TypeError, AttributeError, ValueError) as error:
            raise ScheduleError(
                f"{step}: an argument has the wrong type: {error}", help=f"see help(Schedule.{step.primitive})"
            ) from error
        self._applied.append(Applied(step, self.program, _marked(outcome)))
        return outcome.made

    def preface(self, phases: tuple[Phase, ...]) -> None:
        """Puts phases before those of the last step: what was tried first, and refused."""
        last = self._applied[-1]
        self._applied[-1] = replace(last, outcome=replace(last.outcome, phases=(*phases, *last.outcome.phases)))

    def adopt(self, part: Schedule) -> None:
        """The steps of a schedule of one part (see `parts`), with what came of them there.

        Args:
            part: a schedule whose definition is a part of this one's, as `cut` leaves it.
        """
        stages = frozenset(b.name for b in tree.blocks(part.definition))
        for applied in part.history:
            before = self.program
            here = extract(before, stages)
            assert here is not None, "a part is the nests between two cuts"
            self._applied.append(Applied(applied.step, before, here.put_back(applied.outcome)))

    def undo(self) -> Step:
        """Takes the last step back."""
        if not self._applied:
            raise ScheduleError("there is no step to undo", help="the schedule is the definition; apply a step first")
        step = self._applied.pop().step
        self._undone.append(step)
        return step

    def back_to(self, count: int) -> None:
        """The schedule as it was after its first `count` steps, for good: what a refused template does."""
        del self._applied[count:]

    def redo(self) -> Step:
        """Applies the step that was undone last."""
        if not self._undone:
            raise ScheduleError("there is no step to redo", help="redo follows undo, before any new step")
        step = self._undone[-1]
        self._apply(step)
        self._undone.pop()
        return step

    def to_json(self) -> str:
        """The steps as JSON; `Schedule.replay` takes them back."""
        return json.dumps([s.as_record() for s in self.steps], indent=2)

    def to_python(self) -> str:
        """The steps as Python calls on `sch`."""
        return "".join(f"sch.{s}\n" for s in self.steps)

    @classmethod
    def replay(cls, operator: Operator, steps: str | Iterable[Step]) -> Schedule:
        """A schedule of `operator` with `steps` applied; `steps` are Steps or the JSON of `to_json`."""
        schedule = cls(operator)
        if isinstance(steps, str):
            try:
                found = unpack(
                    parse(steps, ScheduleError, most=MOST_BYTES), tuple[_Written, ...], "steps", ScheduleError
                )
            except ScheduleError as error:
                raise ScheduleError(
                    f"this is not a list of steps: {error.reason}", help="use Schedule.to_json"
                ) from error
            steps = [
                Step(written.primitive, tuple((k, _frozen(v)) for k, v in written.arguments.items()))
                for written in found
            ]
        if not isinstance(steps, Iterable):
            raise ScheduleError(
                f"steps={shown(steps)}: expected Steps, or the JSON of Schedule.to_json",
                help="pass other.steps, or the text that other.to_json() gives",
            )
        for step in steps:
            schedule.apply(step)
        return schedule

    def copy(self) -> Schedule:
        """An independent schedule with the same steps (programs are shared, they never change)."""
        other = Schedule(self.operator)
        other._applied = list(self._applied)
        return other

    # -- numbers --------------------------------------------------------------------------------------------

    def check(self, seed: int = 0, tolerance: float = 1e-9) -> Agreement:
        """Whether the scheduled program equals the unscheduled one: both run natively in float64 on random inputs.

        Every intermediate buffer is held whole, so this is for small shapes.

        Args:
            seed: of the inputs.
            tolerance: the largest relative error (Frobenius norm) of an output that counts as equal.

        Returns:
            An Agreement: true where they are equal, with the error, and a sentence as its text.
        """
        check_integer("seed", seed, 0, 2**63 - 1, ScheduleError)
        check_number("tolerance", tolerance, ScheduleError)
        program = self.program
        if seed == 0 and program in self._checked:
            return self._checked[program]
        result = compare(program, self.definition, self.operator.random_inputs(seed), tolerance)
        if seed == 0:
            self._checked[program] = result
        return result

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the program natively as it is now, intermediate buffers and all."""
        return run(self.program, inputs)

    def tag_table(
        self,
        rolling: str,
        *,
        phase: str | None = None,
        inputs: dict[str, np.ndarray] | None = None,
        where: dict[str, int] | None = None,
    ) -> TagTable:
        """Every value at every iteration of the loop `rolling`, with what each read saw; for small programs.

        Args:
            rolling: the loop's name, "j" or "j0".
            phase: a phase of the last step, such as "naive"; default: the program as it is now.
            inputs: arrays by input name; default: random ones.
            where: spatial iterations to show, such as {"i": 0}.
        """
        program = self.program
        if phase is not None:
            found = {p.key: p.program for p in self.phases}
            if not isinstance(phase, str) or phase not in found:
                raise ScheduleError(
                    f"the last step has no phase {shown(phase)}", help=tree.nearest(phase, list(found), "phases")
                )
            program = found[phase]
        arrays = self.operator.random_inputs(0) if inputs is None else inputs
        if not isinstance(arrays, Mapping):
            raise ScheduleError(
                f"inputs={shown(inputs)}: expected arrays by the names of the inputs",
                help="operator.random_inputs(0) has the form",
            )
        reference = record(self.definition, arrays)
        return table(record(program, arrays), reference, rolling=rolling, where=where)

    # -- the standard primitives (TVM's) --------------------------------------------------------------------

    def split(self, loop: str, factors: Iterable[int | None], names: Iterable[str] | None = None) -> tuple[str, ...]:
        """`loop` becomes nested loops of these extents, at most one None (worked out): the new loops."""
        extra = {} if names is None else {"names": _listed(names)}
        return self.apply(Step.of("split", loop=loop, factors=_listed(factors), **extra))

    def reorder(self, block: str, *loops: str) -> tuple[str, ...]:
        """The named loops around `block` (loop names without the block) in this order."""
        return self.apply(Step.of("reorder", block=block, loops=list(loops)))

    def fuse(self, block: str, *loops: str, name: str | None = None) -> str:
        """Nested loops made one; the new loop."""
        extra = {} if name is None else {"name": name}
        return self.apply(Step.of("fuse", block=block, loops=list(loops), **extra))[0]

    def tile(self, block: str, /, **tiles: int) -> tuple[str, ...]:
        """`sch.tile("qk", i=128, j=64)`: outer loops i0, j0, then inner ones i1, j1: all of them."""
        return self.apply(Step.of("tile", block=block, tiles=tiles))

    def bind(self, loop: str, thread: str) -> None:
        """`loop` runs along a grid axis, "blockIdx.x", "blockIdx.y" or "blockIdx.z"."""
        self.apply(Step.of("bind", loop=loop, thread=thread))

    def compute_at(self, block: str, loop: str) -> None:
        """Producer `block` is computed inside a loop of its consumer."""
        self.apply(Step.of("compute_at", block=block, loop=loop))

    def reverse_compute_at(self, block: str, loop: str) -> None:
        """Consumer `block` is computed inside a loop of its producers."""
        self.apply(Step.of("reverse_compute_at", block=block, loop=loop))

    def inline(self, block: str) -> None:
        """The elementwise `block` is written into its consumers."""
        self.apply(Step.of("inline", block=block))

    def cache_read(self, block: str, buffer: str, scope: str = "shared") -> str:
        """`block`, and later readers of `buffer`, read a copy; the copy's block."""
        return self.apply(Step.of("cache_read", block=block, buffer=buffer, scope=scope))[0]

    def cache_write(self, block: str, scope: str = "local") -> str:
        """`block` writes a copy first; the new block's name."""
        return self.apply(Step.of("cache_write", block=block, scope=scope))[0]

    def set_scope(self, block: str, scope: str = "shared") -> None:
        """What `block` writes lives in "global", "shared" or "local" memory; the last two are on chip."""
        self.apply(Step.of("set_scope", block=block, scope=scope))

    def decompose_reduction(self, block: str, loop: str) -> str:
        """The start value of `block` is written before `loop`; the new block's name."""
        return self.apply(Step.of("decompose_reduction", block=block, loop=loop))[0]

    def annotate(self, loop: str, key: str, value: str | int = 1) -> None:
        """A note on a loop: one of num_warps, num_stages, sequential and note.

        num_warps and num_stages reach the launch from the outermost loop of a nest or from one on the grid.
        """
        self.apply(Step.of("annotate", loop=loop, key=key, value=value))

    def cut(self, block: str) -> None:
        """What comes before `block`, and what comes from it on, is scheduled apart, in kernels of their own."""
        self.apply(Step.of("cut", block=block))

    def remark(self, text: str) -> None:
        """A sentence for readers of the record: why the schedule goes on as it does. The program stays."""
        self.apply(Step.of("remark", text=text))

    # -- ours -----------------------------------------------------------------------------------------------

    def fuse_under(self, block: str, loop: str) -> None:
        """`block` joins the end of a loop of an earlier nest, where all that it reads is complete."""
        self.apply(Step.of("fuse_under", block=block, loop=loop))

    def tile_outermost(self, loop: str, size: int) -> str:
        """Tiles of an inner loop run outside its whole nest; what does not need them is repeated: the new loop."""
        return self.apply(Step.of("tile_outermost", loop=loop, size=size))[0]

    def privatize_reduction(self, loop: str) -> str:
        """The reduction of "block.loop" split along it into a local and a global one (B.2); the local block."""
        return self.apply(Step.of("privatize_reduction", loop=loop))[0]

    def rolling_update(
        self, block: str, loop: str, maps: str = "auto", repair: str | None = None, proved: bool = True
    ) -> tuple[str, ...]:
        """Fuses the reduction `block` under the rolling loop `loop` and repairs it (4.2); local blocks made.

        The repair h is derived, or given as text over t, what is carried, and each producer's value before and now:
        `repair="t * exp(xmax_before - xmax_now)"`. A given h is proved as a derived one is, or refused with a
        counterexample; `proved=False` takes it in all the same, to see where it goes wrong; no kernel is made of it.
        """
        extra = _given_only(maps=maps, repair=repair, proved=proved)
        return self.apply(Step.of("rolling_update", block=block, loop=loop, **extra))

    def split_k_update(
        self, block: str, loop: str, maps: str = "auto", repair: str | None = None, proved: bool = True
    ) -> tuple[str, ...]:
        """Splits the reduction `block` along `loop`, and repairs as it combines (4.3); local blocks made.

        `repair` and `proved` as in `rolling_update`; before is a split's own value, and now the whole one.
        """
        extra = _given_only(maps=maps, repair=repair, proved=proved)
        return self.apply(Step.of("split_k_update", block=block, loop=loop, **extra))

    def materialize_tags(self, block: str) -> None:
        """The reduction `block` keeps its value after every tag, in a scan buffer."""
        self.apply(Step.of("materialize_tags", block=block))

    def retire_tags(self, block: str) -> None:
        """The scan buffer of `block` becomes a previous and a current value."""
        self.apply(Step.of("retire_tags", block=block))


__all__ = ["Applied", "Schedule", "Step"]
