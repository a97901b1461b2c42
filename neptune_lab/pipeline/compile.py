"""The driver: from an operator or schedule to a kernel, one arrow per line (paper, Figure 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from neptune_lab.choice import NOTHING, Choice, CodeOptions, Given
from neptune_lab.collector import uncollected
from neptune_lab.errors import EmitError, NeptuneError, ScheduleError, TileError
from neptune_lab.loop_schedule.arguments import closed_arguments
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.loop_schedule.templates.config import PerNest, for_target, with_sizes
from neptune_lab.operators import Operator
from neptune_lab.pipeline.crowded import with_copy_engine
from neptune_lab.pipeline.fallback import REFUSALS, schedule_apart, schedule_each_stage
from neptune_lab.pipeline.for_sizes import compile_family
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import lower, passed, translated_and_verified
from neptune_lab.pipeline.other_sizes import with_other_sizes
from neptune_lab.pipeline.row_forms import form_of_rows
from neptune_lab.pipeline.schedules import PLACES, candidates, check_numbers, check_operator
from neptune_lab.pipeline.tuned import choice_and_kernel, chooses_by_default, chosen_kernel
from neptune_lab.pipeline.validate import validate as run_validation
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_switch
from neptune_lab.target import ANY, Target, as_target

_IN_PARTS = "leave out the template and its sizes: stages that do not fit one kernel are then kernels of their own"

if TYPE_CHECKING:
    from neptune_lab.htile.nodes import Program as TileProgram


@uncollected
@closed_arguments(PLACES)
def compile(
    op: Operator | Schedule,
    template: str | None = None,
    *,
    config: TileConfig | None = None,
    code: CodeOptions | None = None,
    tuned: bool | None = None,
    target: Target | str | None = None,
    validate: str = "quick",
    block_q: PerNest = None,
    block_kv: PerNest = None,
    disable_passes: tuple[str, ...] = (),
) -> Kernel:
    """Compiles an operator (through a template), or a schedule without changing it.

    Args:
        op: an Operator, or a Schedule.  If an operator's sizes have names (`nl.dim`), one kernel takes all their
            values: in Triton, with loads through pointers, or with `tuned` in Gluon if the kernel of one size would be.
            That kernel is always checked at small sizes of every kind.
        template: "rolling_update" or "split_k_update"; default: the operator's own, else chosen by shape.
        config: tile sizes and launch hints, such as TileConfig(num_warps=8); for "split_k_update", a SplitKConfig
            also has the number of splits.
        code: options of code generation, such as CodeOptions(loads="descriptors").
        tuned: whether what is left out is chosen: from the tuning record (`nl.tune`) for this operator and GPU; if
            there is no record of these sizes, a calibrated model ranks the record of the nearest sizes, Gluon on a
            Hopper GPU, what the shape suggests and other tiles, and the first is compiled.  What is given here
            replaces that part of each choice: the template, fields of `config` that are not None, options of `code`
            that are given by name, block_q, block_kv and disable_passes; choices that it does not fit are skipped.  A
            record of these sizes that does not compile is skipped with a `RecordsWarning`.  None: True on a GPU if no
            target is given; otherwise False, and all that is left out follows from the shape.
        target: the GPU that code is emitted for, as a `Target` or by name ("h200"); default: the local GPU.
        validate: "quick" runs the emitted kernel in NumPy against the definition, at small sizes, on ordinary and on
            special numbers (docs/concepts/validation.md); "full" runs every stage; "none" runs nothing.
        block_q, block_kv: rows and columns per tile, the two most used fields of `config`, by name.
        disable_passes: names of HTile passes to leave out; the same as the field of `code`.

    Returns:
        The kernel: call it with torch tensors; it also has every intermediate program and the record.

    Raises:
        ScheduleError, TileError, EmitError: no such argument or field, a value that it does not take, or the stage that
            refused, with the block or loop and what would help.
        ValidationError: the compiled program differs from the definition; the error has a script that repeats it.
    """
    if tuned is not None:
        check_switch("tuned", tuned, ScheduleError)
    target = None if target is None else as_target(target)
    check_code(code)
    given = _Arguments(template, config, code, block_q, block_kv, disable_passes)
    if isinstance(op, Schedule):
        return validated(_of_schedule(op, given, target), validate)
    check_operator(op)
    if op.resized is not None:
        own = partial(
            compile,
            template=template,
            config=config,
            code=code,
            tuned=tuned,
            target=target,
            validate=validate,
            block_q=block_q,
            block_kv=block_kv,
            disable_passes=disable_passes,
        )
        return with_other_sizes(op, own, template, for_target(given.sizes, target), given.options, target)
    if tuned is None:
        tuned = target is None and chooses_by_default()
    if op.family is not None:
        if tuned:  # (it is written in Gluon if the kernel of one size is)
            return compile_family(op, None, None, None, target, given=given.parts)
        return compile_family(op, template, for_target(given.sizes, target), given.options, target)
    kernel = None
    if tuned:
        make = partial(compile_choice, op, target=target, validate="none")
        kernel = chosen_kernel(op, make, given=given.parts, target=target)
    if kernel is None:
        kernel = _by_shape(op, given, target, tuned=tuned)
    return validated(kernel, validate)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """What the caller of `compile` asked for; the fields are those of its arguments that a choice has too."""

    template: str | None
    config: TileConfig | None
    code: CodeOptions | None
    block_q: PerNest
    block_kv: PerNest
    disable_passes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises ScheduleError if a value is given twice."""
        _ = self.sizes, self.options

    @property
    def sizes(self) -> TileConfig | None:
        """The config with the sizes given by name; None: no size is given."""
        return with_sizes(self.config, self.block_q, self.block_kv)

    @property
    def options(self) -> CodeOptions:
        """The options of code generation, without the passes given by name; the defaults if no option is given."""
        return with_disabled(self.code or CodeOptions(), self.disable_passes)

    @property
    def parts(self) -> Given:
        """What replaces parts of a choice.

        Raises:
            ScheduleError: the template is none, or does not have these sizes.
        """
        named = Given.of_parts(self.template, self.sizes, self.code)
        if not self.disable_passes:
            return named
        return Given.of(named.template, dict(named.options) | {"disable_passes": self.disable_passes})


def _of_schedule(scheduled: Schedule, given: _Arguments, target: Target | None) -> Kernel:
    """The kernel of a schedule as it is.

    Raises:
        ScheduleError: a template or sizes are given too.
    """
    check_numbers(scheduled.operator, "a schedule")
    if given.template is not None or given.sizes is not None:
        raise ScheduleError(
            "a schedule is compiled without changes: template, config, block_q and block_kv go with an operator",
            help="compile(schedule.operator, …), or leave them out",
        )
    return lower(scheduled.copy(), given.options, target)


def _by_shape(op: Operator, given: _Arguments, target: Target | None, *, tuned: bool) -> Kernel:
    """The kernel of an operator whose choices, other than those given, follow from its shape; without `code`, loads and
    kernels that share rows or reduce them in lanes follow from it too, if the GPU is known."""
    kernel, template, sizes, options = None, given.template, given.sizes, given.options
    parts = given.parts if tuned else NOTHING
    if parts:
        template, sizes, options = parts.template, parts.alone.config, parts.alone.code
    free = (given.code is None or tuned) and (target is not None or chooses_by_default())
    if free and (tuned or (given.template is None and given.sizes is None and not given.options.disable_passes)):

        def made(choice: Choice) -> Kernel:
            return compile_operator(op, choice.template, choice.config, choice.code, target)

        gpu = target or Target.current(otherwise=ANY)
        kernel = form_of_rows(op, made, gpu, parts)
    if kernel is None:
        kernel = compile_operator(op, template, sizes, options, target)
    if not free or kernel.code.code == "gluon" or any(name == "loads" for name, _ in parts.options):
        return kernel
    return with_copy_engine(kernel)


def validated(kernel: Kernel, validate: str = "quick") -> Kernel:
    """The kernel after its comparison with the definition; `validate` as for `compile`.

    Raises:
        ValidationError: it differs from the definition.
    """
    return replace(kernel, validated=run_validation(kernel, kernel.code, kernel.target, validate))


def compile_chosen(
    op: Operator, target: Target | None = None, *, measured: bool = True
) -> tuple[Choice | None, Kernel]:
    """What `compile` chooses for an operator alone, and its kernel, not compared with the definition.

    Args:
        op: an operator of constant sizes.
        target: the GPU that code is emitted for, and whose tuning records are followed; None: what `compile` does here.
        measured: whether a tuning record of these very sizes counts; otherwise, it is as if there were none.

    Returns:
        The choice, None if all of it follows from the shape, and the kernel, whose `chosen` says what chose it.
    """
    tuned = target is not None or chooses_by_default()
    found = choice_and_kernel(op, target, measured=measured) if tuned else None
    return found or (None, _by_shape(op, _Arguments(None, None, None, None, None, ()), target, tuned=tuned))


def compile_choice(
    op: Operator, choice: Choice, *, target: Target | str | None = None, validate: str = "quick"
) -> Kernel:
    """`op` compiled with a choice of template, config and code; the arguments and errors are those of `compile`."""
    return compile(
        op,
        choice.template,
        config=choice.config,
        code=choice.code,
        tuned=False,
        target=target,
        validate=validate,
    )


def check_code(code: CodeOptions | None) -> None:
    """Raise ScheduleError unless `code` is a CodeOptions or None."""
    if code is not None and not isinstance(code, CodeOptions):
        raise ScheduleError(
            f"code={shown(code)}: expected a CodeOptions or None", help='for example code=nl.CodeOptions(code="gluon")'
        )


def with_disabled(code: CodeOptions, disable_passes: tuple[str, ...]) -> CodeOptions:
    """`code` without these passes; ScheduleError if `code` names passes to leave out as well."""
    if isinstance(disable_passes, tuple) and not disable_passes:
        return code
    if code.disable_passes:
        raise ScheduleError(
            f"disable_passes={shown(disable_passes)} is given by name, and code has {shown(code.disable_passes)}",
            help="give the passes once, by name or in code",
        )
    return replace(code, disable_passes=disable_passes)


def compile_operator(
    operator: Operator, template: str | None, config: TileConfig | None, code: CodeOptions, target: Target | None
) -> Kernel:
    """The kernel of an operator by a template; in parts, if neither a template nor sizes are given and it is refused
    whole."""
    check_operator(operator)
    refusal: NeptuneError | None = None
    planned = for_target(config, target)
    try:
        # tensor expressions -> loop-scalar IR -> scheduled loops
        for scheduled in candidates(operator, template, planned):
            try:
                return lower(scheduled, code, target)
            except REFUSALS as error:
                refusal = refusal or error
    except REFUSALS as error:
        refusal = refusal or error
    assert refusal is not None, "there is a candidate, or a refusal"
    if isinstance(refusal, EmitError) and code.code != "triton":
        raise refusal
    if template is not None or config is not None:
        # (a mistake in the config has a fix of its own)
        if isinstance(refusal, TileError | EmitError) or "TVM refuses" in refusal.reason:
            refusal = refusal.with_fix(_IN_PARTS).with_traceback(refusal.__traceback__)
        raise refusal
    return lower_apart(operator, refusal, code, target)


def lower_apart(operator: Operator, refusal: NeptuneError, code: CodeOptions, target: Target | None) -> Kernel:
    """`operator` in parts, since the whole was refused; one kernel per stage if the parts together are refused too.

    Raises:
        ScheduleError, TileError, EmitError: a stage cannot be written as a kernel; its name is in the message.
    """

    def check(scheduled: Schedule) -> TileProgram:
        tiles = translated_and_verified(scheduled)
        passed(tiles, code)
        return tiles

    apart = schedule_apart(operator, refusal, check, for_target(None, target))
    try:
        return lower(apart, code, target)
    except REFUSALS as again:
        return lower(schedule_each_stage(operator, again, check), code, target)
