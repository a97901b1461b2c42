"""05_schedules: refusals as a reader meets them, and the exercises; what a schedule costs is in `schedule_costs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.walks import variables
from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.schedule_costs import Costs, costs, kib
from neptune_widgets.course.show import folded

if TYPE_CHECKING:
    from neptune_lab import Kernel, Schedule
    from neptune_lab.operators import Operator

# -- refusals ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal as it was raised, and whether the schedule is what it was before.

    Args:
        error: what was raised.
        untouched: the program is the same object and the steps are the same.
        steps: how many steps the schedule has now.
    """

    error: NeptuneError
    untouched: bool
    steps: int

    def __str__(self) -> str:
        lines = [folded(f"{type(self.error).__name__}: {self.error.reason}")]
        if self.error.help is not None:
            lines.append(folded(f"help: {self.error.help}"))
        state = "as it was" if self.untouched else "CHANGED"
        return "\n".join([*lines, f"(the schedule is {state}: {self.steps} step{'s' if self.steps != 1 else ''})"])

    __repr__ = __str__


def refused(sch: Schedule, action: Callable[[Schedule], object]) -> Refusal:
    """Does what is expected to be refused.

    Raises:
        ScheduleError: nothing refused it.
    """
    program, steps = sch.program, sch.steps
    try:
        action(sch)
    except NeptuneError as error:
        return Refusal(error, sch.program is program and sch.steps == steps, len(sch.steps))
    raise ScheduleError("this was expected to be refused, and it was accepted", help="undo() takes a step back")


# -- exercises --------------------------------------------------------------------------------------------------


def _attention() -> Operator:
    from neptune_lab.operators import attention

    return attention.causal(batch=1, heads=2, seq=256, head_dim=64)


def _chain() -> Operator:
    from neptune_lab.operators import gemm_chain

    return gemm_chain.gemm_chain(m=128, n=128, k=64, h=64)


def _applied(function: Any, operator: Operator) -> Schedule:
    """The schedule that the reader's function makes of an operator."""
    from neptune_lab import Schedule

    if isinstance(function, Schedule) or not callable(function):
        raise NotYet("give a function that takes `sch` and calls steps on it, not its result")
    sch = Schedule(operator)
    try:
        function(sch)
    except NeptuneError as error:
        step = getattr(error, "step", None)
        after = f"after {len(sch.steps)} step{'s' if len(sch.steps) != 1 else ''} that were accepted"
        raise NotYet(f"refused, {after}: `{step}`\n{error}" if step else f"refused, {after}\n{error}") from error
    except Exception as error:
        raise NotYet(f"calling it with a schedule raised {type(error).__name__}: {error}") from error
    if not sch.steps:
        raise NotYet("it applies no step to its argument")
    return sch


def _compiled(sch: Schedule) -> Kernel:
    from neptune_lab import compile

    try:
        return compile(sch)
    except NeptuneError as error:
        raise NotYet(f"every step is accepted, but `nl.compile` refuses\n{error}") from error


def _serial_outside(sch: Schedule, along: str) -> list[str]:
    """Loops of more than one iteration around the pass along a dimension that run one after the other."""
    name, _, iteration = along.partition(".")
    _, block, loops = tree.find_block(sch.program, name)
    mine = variables(block.iter(iteration).binding)
    outside = []
    for loop in loops:
        if loop.var in mine:
            break
        if loop.kind == "serial" and loop.extent > 1:
            outside.append(loop.var)
    return outside


def _whole(sch: Schedule, along: str) -> None:
    """One nest that agrees with the definition, its outer loops on the grid."""
    now = costs(sch.program, along)
    if now.nests > 1:
        last = ", ".join(b.name for stmt in sch.program.body[1:] for b in tree.blocks_under(stmt))
        raise NotYet(
            f"it compiles to {now.nests} kernels, with {kib(now.between)} between them: these blocks are in separate "
            f"nests: {last}"
        )
    serial = _serial_outside(sch, along)
    if serial:
        raise NotYet(f"it is one kernel, but its loops over {', '.join(serial)} run in order: bind them to the grid")
    agreement = sch.check()
    if not agreement.equal:
        raise NotYet(f"the program computes something else: {agreement}")


@exercise(
    "Mend the broken schedule",
    hints=(
        (
            "Run the steps one by one on a fresh schedule. A refusal names a step, but the step that is wrong may be "
            "an earlier one."
        ),
        ("The bound loop must carry no value. A producer keeps its tags until its last reader has been fused."),
        (
            "Bind `qk.i0`, not `qk.j0`; retire the tags of `s_max` after the last `rolling_update`; and two blocks "
            "carry a value over `j0`, so two of them need `decompose_reduction`."
        ),
    ),
)
def mended(function: Callable[[Schedule], object]) -> str:
    """A function that applies a complete schedule to causal attention."""
    sch = _applied(function, _attention())
    kernel = _compiled(sch)
    _whole(sch, "qk.j")
    now = costs(sch.program, "qk.j")
    return f"{len(sch.steps)} steps, {len(kernel.triton.kernels)} kernel, {now}; {sch.check()}"


_MOVES = (
    "tile",
    "bind",
    "reverse_compute_at('score'",
    "rolling_update('s_max'",
    "rolling_update('s_sum'",
    "rolling_update('acc'",
    "reverse_compute_at('out'",
    "retire_tags",
    "decompose_reduction",
    "set_scope",
)


def _ten_moves() -> list[list[Any]]:
    """The steps of the notebook's ten moves, a list a move."""
    from neptune_lab import Schedule, templates

    steps = templates.rolling_update(Schedule(_attention()), block_q=64, block_kv=64).steps
    return [[step for step in steps if str(step).startswith(move)] for move in _MOVES]


def _changed(case: str) -> tuple[list[Any], int]:
    """The steps of one of the four cases, and the number of the step that is changed."""
    from neptune_lab.loop_schedule import Step

    tile, bind, score, first, second, third, out, retire, start, scope = _ten_moves()
    before = [*tile, *bind, *score, *first]
    match case:
        case "A":
            return [*before, *third, *second, *out, *retire, *start, *scope], len(before)
        case "B":
            return [*before, *second, *retire, *third, *out, *start, *scope], len(before) + 1
        case "C":
            return [*before, *second, *third, *out, *retire, *start[:1], *scope], -1
        case "D":
            early = Step.of("reverse_compute_at", block="out", loop="qk.j0")
            return [*before, *second, *third, early, *retire, *start, *scope], len(before) + 2
    raise KeyError(case)


WHEN = ("at once", "later", "compile", "never")


def _when(case: str) -> tuple[str, str]:
    """When a case is refused, found by doing it, and what is said."""
    from neptune_lab import Schedule, compile

    steps, changed = _changed(case)
    # A step that names a block which another step would have made is no part of the question.
    sch = Schedule(_attention())
    for number, step in enumerate(steps):
        if step.primitive == "set_scope" and not sch.has_block(dict(step.arguments)["block"]):
            continue
        try:
            sch.apply(step)
        except NeptuneError as error:
            return ("at once" if number == changed else "later"), f"{step}: {error.reason}"
    try:
        compile(sch)
    except NeptuneError as error:
        return "compile", error.reason
    return "never", str(sch.check())


@exercise(
    "Which change is refused, and when?",
    hints=(
        (
            "Ask of each step what it needs: names, loops that are not bound, tags, values that are complete. When is "
            "that looked at?"
        ),
        (
            "A primitive looks at the program as it is now, not at what you will do next. What tiles cannot express is "
            "seen by `nl.compile` alone."
        ),
        (
            "Two of the three updates need no particular order. Retiring tags early is legal as long as nobody asks "
            "for them again. An output needs finished values, and that is looked at where it is moved."
        ),
    ),
)
def when(answer: Mapping[str, str]) -> str:
    """For each of the cases A to D one of `WHEN`."""
    if not isinstance(answer, Mapping) or set(answer) != set("ABCD"):
        raise NotYet("give a dictionary with an answer to each of A, B, C and D")
    unknown = [f"{case}: {said!r}" for case, said in answer.items() if said not in WHEN]
    if unknown:
        raise NotYet(f"{', '.join(unknown)}: each answer is one of {', '.join(map(repr, WHEN))}")
    found = {case: _when(case) for case in "ABCD"}
    wrong = [case for case in "ABCD" if answer[case] != found[case][0]]
    if wrong:
        case = wrong[0]
        so_far, why = f"{4 - len(wrong)} of 4 are right", _nudge(answer[case], found[case][0])
        raise NotYet(f"{so_far}. {case} is not {answer[case]!r}: {why}")
    return "all four\n" + "\n".join(f"{case}, {time}: {said}" for case, (time, said) in found.items())


def _nudge(said: str, is_so: str) -> str:
    if is_so == "never":
        return "every step is accepted, and so is the program"
    if said == "never":
        return "something refuses it"
    if is_so == "compile":
        return "every step is accepted"
    if said == "compile":
        return "a step is refused before there is anything to compile"
    return "it is refused by a step, but not by that one"


@exercise(
    "Tiles that fit",
    hints=(
        (
            "Every program of a head reads all keys and values that its rows may need. How many programs per head "
            "has depends on one of the two sizes only."
        ),
        "Print `costs(...)` for a few pairs. Which of the two sizes adds more to what a program holds, and why?",
        "Two programs per head mean tiles of at least 128 rows. Now make the other size small enough.",
    ),
)
def sizes(answer: tuple[int, int]) -> str:
    """(block_q, block_kv) for causal attention: at most two programs per head, and at most 128 KiB held."""
    from neptune_lab import Schedule, templates

    try:
        rows, keys = answer
    except (TypeError, ValueError):
        raise NotYet("give two numbers: rows of a tile, keys of a tile") from None
    sch = templates.rolling_update(Schedule(_attention()), block_q=rows, block_kv=keys)
    _, _, loops = tree.find_block(sch.program, "qk")
    programs = prod(loop.extent for loop in loops if loop.kind == "blockIdx.x")
    held = costs(sch.program, "qk.j").held
    if programs > 2:
        raise NotYet(f"{programs} programs per head read the keys, and a program holds {kib(held)}: too many readers")
    per_head = f"{programs} program{'s' * (programs > 1)} per head"
    if held > 128 * 1024:
        raise NotYet(f"{per_head}, but each holds {kib(held)}: more than 128 KiB")
    _compiled(sch)
    return f"{per_head}, {kib(held)} held by each"


@exercise(
    "Two products in one kernel",
    hints=(
        (
            "The blocks are `ab`, `ab_rounded`, `abd` and `out`, and `abd` folds along `j`. Which of attention's "
            "blocks play the same parts?"
        ),
        "`ab` is `qk`, `ab_rounded` is `score`, `abd` is `acc`. There is no maximum, so nothing has tags to retire.",
        (
            'Tile and bind `ab`, fuse `ab_rounded` at `"ab.j0"`, `rolling_update("abd", "ab.j0")`, then `out`, then '
            "the start value of `abd`."
        ),
    ),
)
def chain(function: Callable[[Schedule], object]) -> str:
    """A function that schedules two matrix products as one kernel, the product between them never stored."""
    sch = _applied(function, _chain())
    kernel = _compiled(sch)
    _whole(sch, "ab.j")
    held = costs(sch.program, "ab.j").held
    if held > 64 * 1024:
        raise NotYet(f"one kernel, but a program holds {kib(held)}: more than 64 KiB; smaller tiles hold less")
    repaired = sum(phase.derivation is not None for done in sch.history for phase in done.outcome.phases)
    needed = f"{repaired} repair{'s' if repaired != 1 else ''} needed" if repaired else "no repair was needed"
    return f"{len(kernel.triton.kernels)} kernel, {kib(held)} held by a program, {needed}; {sch.check()}"


__all__ = ["WHEN", "Costs", "Refusal", "chain", "costs", "kib", "mended", "refused", "sizes", "when"]
