"""The driver: from an operator or schedule to a kernel, one arrow per line (paper, Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neptune_lab.choice import Choice, CodeOptions
from neptune_lab.choice import options as code_options
from neptune_lab.collector import uncollected
from neptune_lab.errors import EmitError, NeptuneError, ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.arguments import closed_arguments
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import CONFIGS, TEMPLATES, TileConfig, choose_template
from neptune_lab.loop_schedule.templates import config as configs
from neptune_lab.loop_schedule.templates.config import PerNest, SplitKConfig, config_of, for_target, with_sizes
from neptune_lab.loop_schedule.templates.row_groups import row_groups
from neptune_lab.pipeline.crowded import with_copy_engine
from neptune_lab.pipeline.fallback import REFUSALS, parts_of, schedule_apart, schedule_each_stage, schedule_parts
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import lower, passed, translated_and_verified
from neptune_lab.pipeline.normalise import asks_for_last_tile, kernels, normalised, shared, stored_bytes
from neptune_lab.pipeline.part_configs import configs_of_parts, sizes_per_nest
from neptune_lab.pipeline.shared_rows import shared_rows
from neptune_lab.pipeline.tuned import chooses_by_default, chosen_kernel
from neptune_lab.pipeline.validate import validate as run_validation
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_switch
from neptune_lab.target import ANY, Target, as_target

if TYPE_CHECKING:
    from neptune_lab.htile.nodes import Program as TileProgram
    from neptune_lab.operators import Operator


# Fields that users look for among the arguments of `compile`, and where to give them.
PLACES = {**code_options.PLACES, **configs.PLACES}


@closed_arguments(PLACES)
def schedule(
    operator: Operator,
    template: str | None = None,
    *,
    config: TileConfig | None = None,
    block_q: PerNest = None,
    block_kv: PerNest = None,
) -> Schedule:
    """A schedule of `operator` by a template, with tile sizes from the caller or chosen by shape.

    Without a template, the operator's own is used, or one is chosen by shape, and a remark in the record says why.  If
    that one is refused, the definition is scheduled in parts, with a remark for each (`fallback`).  A template or sizes
    from the caller are used as they are, or refused.

    Args:
        operator: from `neptune_lab.operators`.
        template: "rolling_update" or "split_k_update".
        config: tile sizes and launch hints; `SplitKConfig` adds the number of splits.
        block_q, block_kv: rows and columns per tile, the two most used fields of `config`, by name.

    Returns:
        The schedule, with a remark for each decision.

    Raises:
        ScheduleError: no such template or size, or one that cannot be applied.
    """
    _check_operator(operator)
    check_numbers(operator, "a schedule")
    config = with_sizes(config, block_q, block_kv)
    try:
        return next(candidates(operator, template, config))
    except REFUSALS as refusal:
        if template is not None or config is not None:
            raise
        return schedule_apart(operator, refusal, translated_and_verified)


def _check_operator(operator: object) -> None:
    """Raise ScheduleError unless `operator` is an Operator."""
    from neptune_lab.operators import Operator

    if not isinstance(operator, Operator):
        raise ScheduleError(
            f"expected an Operator or a Schedule, got {shown(operator)}",
            help="make an operator first, for example operators.attention.causal(seq=128)",
        )


def check_numbers(operator: Operator, what: str) -> None:
    """Raise ScheduleError if the operator has sizes with a name."""
    if operator.family is not None:
        hints = ", ".join(f"{name}={value}" for name, value in operator.family.hint.items())
        raise ScheduleError(
            f"{operator.name} has sizes with a name, and {what} is for numbers",
            help=f"use the operator at numbers: op.at({hints}); nl.compile(op) makes the kernel for every size",
        )


def candidates(operator: Operator, template: str | None, config: TileConfig | None) -> Iterator[Schedule]:
    """Schedules of `operator` by one template, the best first: of the definition as it is written if that is one
    kernel; else the one with fewer kernels, or less memory between them, of that and the normalised definition.  The
    normalised definition also comes first if its guards do not ask for the last tile, and those of the other do: a loop
    that must see its last tile skips none.  A stage that computes the same as an earlier one is left out in each.

    Raises:
        ScheduleError, RepairError: the template refuses the definition as it is written, and no other is left.
    """
    if operator.parts:
        if template is None and all(len(sizes) == 1 for sizes in sizes_per_nest(config).values()):
            with suppress(*REFUSALS):  # (it is no such definition)
                yield row_groups(Schedule(operator), config_of("split_k_update", SplitKConfig, config))
        parts = parts_of(operator)
        configs = configs_of_parts(parts, config, lambda part, own: next(candidates(part, template, own)))
        yield schedule_parts(operator, (_part(part, template, own) for part, own in zip(parts, configs, strict=True)))
        return
    refusal: NeptuneError | None = None
    written: Schedule | None = None
    normalises = config is None or config.normalise
    try:
        written = by_template(shared(operator) if normalises else Schedule(operator), template, config)
    except REFUSALS as error:
        refusal = error
    alone = written is not None and not (normalises and (kernels(written) > 1 or asks_for_last_tile(written)))
    if written is not None and alone:
        yield written  # (What comes after it is made only if this is refused.)
    made, refused = _normalised(operator, template, config) if normalises else (None, ())
    if written is None or alone:
        following = [made]
    elif made is not None and _better(made, written):
        following = [made, written]
    else:
        for reason in refused if kernels(written) > 1 else ():
            written.remark(f"Stays as written: {reason}.")
        following = [written, made]
    yield from (schedule for schedule in following if schedule is not None)
    if refusal is not None:
        raise refusal


def _part(operator: Operator, template: str | None, config: TileConfig | None) -> Schedule:
    """The best schedule of one part of an operator; in smaller parts if it is refused and neither a template nor sizes
    of its nests were asked for."""
    try:
        return next(candidates(operator, template, config))
    except REFUSALS as refusal:
        if template is not None or sizes_per_nest(config):
            raise
        return schedule_apart(operator, refusal, translated_and_verified, config)


def _better(made: Schedule, written: Schedule) -> bool:
    """Whether a normalised schedule is better than the one of the definition as it is written (`candidates`)."""
    if kernels(made) == kernels(written) == 1:
        return not asks_for_last_tile(made)
    return (kernels(made), stored_bytes(made)) < (kernels(written), stored_bytes(written))


def _normalised(
    operator: Operator, template: str | None, config: TileConfig | None
) -> tuple[Schedule | None, tuple[str, ...]]:
    """The schedule of the normalised definition with the fewest kernels, and why other normalisations do not apply."""
    best: Schedule | None = None
    starts, refused = normalised(operator)
    for started in starts:
        try:
            made = by_template(started, template, config)
        except REFUSALS:
            continue
        if best is None or kernels(made) < kernels(best):
            best = made
        if kernels(made) == 1:
            break
    return best, refused


def by_template(started: Schedule, template: str | None, config: TileConfig | None) -> Schedule:
    """A schedule by one template, from the normalisations in `started` on, or its refusal."""
    operator = started.operator
    name, why = operator.template if template is None else template, ""
    if name is None:
        name, why = choose_template(started.base)
    if not isinstance(name, str) or name not in TEMPLATES:
        raise ScheduleError(
            f"there is no template {shown(name)}", help=nearest(str(name), list(TEMPLATES), "templates")
        )
    chosen = config_of(name, CONFIGS[name], config)
    if why:
        started.remark(f"{name}: {why}.")
    return TEMPLATES[name](started, chosen)


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
            values.  It is Triton that loads by pointers; with `tuned` it is Gluon if the kernel of one size would be.
            It is always checked at small sizes of every kind.
        template: "rolling_update" or "split_k_update"; default: the operator's own, else chosen by shape.
        config: tile sizes and launch hints, such as TileConfig(num_warps=8); for "split_k_update", a SplitKConfig
            also has the number of splits.  What is left out is chosen by shape.
        code: options of code generation, such as CodeOptions(loads="descriptors").
        tuned: whether template, config and code are those of the tuning record (`nl.tune`) for this operator and GPU.
            If there is no record of these sizes, a calibrated model ranks the record of the nearest sizes, Gluon on a
            Hopper GPU, what the shape suggests and other tiles, and the first of these is compiled.  A record of these
            sizes that does not compile is skipped with a `RecordsWarning`.  A template, config or code given here
            replaces the record's; block_q, block_kv and disable_passes replace one field.  None: True on a GPU if
            neither template, sizes, code nor target are given; otherwise False, and all follows from the shape.
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
    if target is not None:
        target = as_target(target)
    check_code(code)
    if isinstance(op, Schedule):
        check_numbers(op.operator, "a schedule")
    sized, chosen = with_sizes(config, block_q, block_kv), with_disabled(code or CodeOptions(), disable_passes)
    if not isinstance(op, Schedule) and getattr(op, "resized", None) is not None:
        from neptune_lab.pipeline.other_sizes import with_other_sizes

        asked: dict[str, Any] = {"config": config, "code": code, "tuned": tuned, "validate": validate}
        asked |= {"block_q": block_q, "block_kv": block_kv, "disable_passes": disable_passes}
        own = partial(compile, template=template, target=target, **asked)
        return with_other_sizes(op, own, template, for_target(sized, target), chosen, target)
    if tuned is None:
        tuned = template is None and sized is None and code is None and target is None and chooses_by_default()
    if not isinstance(op, Schedule) and getattr(op, "family", None) is not None:
        from neptune_lab.pipeline.for_sizes import compile_family

        free = tuned and code is None and not disable_passes  # to be written in Gluon, as the kernel of one size is
        return compile_family(op, template, for_target(sized, target), None if free else chosen, target)
    if isinstance(op, Schedule):
        if template is not None or sized is not None:
            raise ScheduleError(
                "a schedule is compiled without changes: template, config, block_q and block_kv go with an operator",
                help="compile(schedule.operator, …), or leave them out",
            )
        return validated(lower(op.copy(), chosen, target), validate)
    _check_operator(op)
    kernel = None
    if tuned:

        def make(choice: Choice) -> Kernel:
            """The kernel of a choice, of which the caller's own arguments replace parts; not compared yet."""
            sizes = sized if config is not None else with_sizes(choice.config, block_q, block_kv, override=True)
            own = chosen if code is not None else choice.code
            if code is None and chosen.disable_passes:
                own = replace(own, disable_passes=chosen.disable_passes)
            return compile_choice(op, Choice(choice.template, sizes, own), target=target, validate="none")

        kernel = chosen_kernel(op, make, template=template, target=target)
    if kernel is None:
        kernel = _by_shape(op, template, sized, chosen, code, target)
    return validated(kernel, validate)


def _by_shape(
    op: Operator,
    template: str | None,
    config: TileConfig | None,
    chosen: CodeOptions,
    code: CodeOptions | None,
    target: Target | None,
) -> Kernel:
    """The kernel of an operator whose choices, other than those given, follow from its shape.

    Args:
        chosen: the options of code generation.
        code: those that the caller gave; None: loads and kernels that share rows follow from the shape too, if the GPU
            is known.
    """
    kernel = None
    free = code is None and (target is not None or chooses_by_default())
    if free and template is None and config is None and not chosen.disable_passes:
        kernel = shared_rows(
            op,
            lambda choice: compile_operator(op, choice.template, choice.config, choice.code, target),
            target or Target.current(otherwise=ANY),
        )
    if kernel is None:
        kernel = compile_operator(op, template, config, chosen, target)
    return with_copy_engine(kernel) if free else kernel


def validated(kernel: Kernel, validate: str = "quick") -> Kernel:
    """The kernel after its comparison with the definition; `validate` as for `compile`.

    Raises:
        ValidationError: it differs from the definition.
    """
    return replace(kernel, validated=run_validation(kernel, kernel.code, kernel.target, validate))


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
    _check_operator(operator)
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
    if template is not None or config is not None or (isinstance(refusal, EmitError) and code.code != "triton"):
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
