"""The driver: from an operator or schedule to a kernel, one arrow per line (paper, Figure 2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neptune_lab.collector import uncollected
from neptune_lab.errors import EmitError, NeptuneError, ScheduleError, ValidationError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.arguments import check_options
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES, choose_template
from neptune_lab.pipeline.fallback import REFUSALS, schedule_apart, schedule_each_stage
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import lower, passed, translated_and_verified
from neptune_lab.pipeline.options import CodeOptions, check_names, split
from neptune_lab.pipeline.validate import validate as run_validation
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_switch
from neptune_lab.target import ANY, Target, as_target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


def schedule(operator: Operator, template: str | None = None, **options: Any) -> Schedule:
    """A schedule of `operator` by a template, with the template's options.

    Without a template, the operator's own, or where it has none, one is chosen by shape, and a remark in the record
    says why.  If that one is refused, the definition is scheduled in parts, with a remark for each (`fallback`); a
    template or options that the caller gives are taken as they are, or refused.

    Args:
        operator: from `neptune_lab.operators`.
        template: "rolling_update" or "split_k_update".
        options: the template's, such as block_q and block_kv (elements of a tile) or splits.

    Returns:
        The schedule, with a remark for each decision.

    Raises:
        ScheduleError: no such template or option, or one that cannot be applied.
    """
    from neptune_lab.operators import Operator

    if not isinstance(operator, Operator):
        raise ScheduleError(
            f"expected an Operator or a Schedule, got {shown(operator)}",
            help="make an operator first, for example operators.attention.causal(seq=128)",
        )
    if template is not None or options:
        return by_template(operator, template, options)
    try:
        return by_template(operator, None, {})
    except REFUSALS as refusal:
        return schedule_apart(operator, refusal, translated_and_verified)


def by_template(operator: Operator, template: str | None, options: dict[str, Any]) -> Schedule:
    """A schedule of `operator` by one template, or its refusal."""
    name, why = operator.template if template is None else template, ""
    if name is None:
        name, why = choose_template(operator.program)
    if not isinstance(name, str) or name not in TEMPLATES:
        raise ScheduleError(
            f"there is no template {shown(name)}", help=nearest(str(name), list(TEMPLATES), "templates")
        )
    check_options(name, TEMPLATES[name], options)
    started = Schedule(operator)
    if why:
        started.remark(f"{name}: {why}.")
    return TEMPLATES[name](started, **options)


@uncollected
def compile(
    op: Operator | Schedule,
    template: str | None = None,
    *,
    tuned: bool = False,
    target: Target | str | None = None,
    validate: str = "quick",
    **options: Any,
) -> Kernel:
    """Compiles an operator (through a template) or a schedule as it is.

    Args:
        op: an Operator, or a Schedule that the caller made.
        template: "rolling_update" or "split_k_update"; default: the operator's own, else chosen by shape.
        tuned: take template and options from the records of tuning (`nl.tune`) for this operator and GPU, at these
            sizes or the nearest ones, where there are any, and on a Hopper GPU write rolling loops in Gluon where there
            are none; what is given here counts more.
        target: the GPU that code is emitted for, as a `Target` or by name ("h200"); default: the one at hand.
        validate: "quick" runs the emitted kernel in NumPy against the definition, at small sizes, on ordinary and on
            special numbers (docs/concepts/validation.md); "full" runs every stage; "none" runs nothing.
        options: the template's, such as block_q and block_kv, and those of code generation (`CodeOptions`).

    Returns:
        The kernel: call it with torch tensors; it also has every intermediate program and the record.

    Raises:
        ScheduleError, TileError, EmitError: the stage that refused, with the block or loop and what would help.
        ValidationError: the compiled program differs from the definition; the error has a script that repeats it.
    """
    check_switch("tuned", tuned, ScheduleError)
    if target is not None:
        target = as_target(target)
    if tuned and not isinstance(op, Schedule):
        return compile_tuned(op, template, target, {**options, "validate": validate})
    code, options = split(options)
    if isinstance(op, Schedule):
        if template or options:
            raise ScheduleError(
                "a schedule is compiled as it is; template and options apply to an operator",
                help="compile(schedule.operator, …), or leave them out",
            )
        kernel = lower(op.copy(), code, target)
    else:
        kernel = compile_operator(op, template, options, code, target)
    return replace(kernel, validated=run_validation(kernel, code, target, validate))


def compile_operator(
    operator: Operator, template: str | None, options: dict[str, Any], code: CodeOptions, target: Target | None
) -> Kernel:
    """The kernel of an operator by a template, and where the template was left open, in parts if need be."""
    scheduled = schedule(operator, template, **options)  # tensor expressions -> loop-scalar IR -> scheduled loops
    try:
        return lower(scheduled, code, target)
    except REFUSALS as refusal:
        if template is not None or options or (isinstance(refusal, EmitError) and code.code != "triton"):
            raise
        return lower_apart(operator, refusal, code, target)


def lower_apart(operator: Operator, refusal: NeptuneError, code: CodeOptions, target: Target | None) -> Kernel:
    """`operator` in parts, since the whole was refused; one kernel per stage if the parts together are refused too.

    Raises:
        ScheduleError, TileError, EmitError: a stage cannot be written as a kernel; its name is in the message.
    """

    def check(scheduled: Schedule) -> None:
        passed(translated_and_verified(scheduled), code)

    apart = schedule_apart(operator, refusal, check)
    try:
        return lower(apart, code, target)
    except REFUSALS as again:
        return lower(schedule_each_stage(operator, again, check), code, target)


# Where nothing was measured: what was good for every prefill attention that was, on the GPU that it is written for.
UNTUNED_ON_HOPPER = {"block_q": 128, "block_kv": 128, "code": "gluon"}


def compile_tuned(operator: Operator, template: str | None, target: Target | None, options: dict[str, Any]) -> Kernel:
    """`operator` with the choice of its record, or of the record of its nearest sizes; what is given counts more.

    A choice that does not compile for these sizes (they are another workload's, or the compiler has changed) is left.
    Without one, rolling loops on a Hopper GPU are written in Gluon where they have the form; then the template chooses,
    as without records.
    """
    from neptune_lab import records

    choices: list[tuple[str | None, dict[str, Any]]] = []
    found = records.nearest(operator)
    if found is not None and template in (None, found.template):
        choices.append((found.template, found.options))
    rolls = template or operator.template or choose_template(operator.program)[0]
    if rolls == "rolling_update" and (target or Target.current(otherwise=ANY)).warpgroup_products:
        choices.append((rolls, UNTUNED_ON_HOPPER))
    for name, choice in choices:
        try:
            check_names(choice, "the tuning record")
            return compile(operator, name, target=target, **{**choice, **options})
        except ValidationError:
            raise
        except NeptuneError:
            continue
    return compile(operator, template, target=target, **options)
