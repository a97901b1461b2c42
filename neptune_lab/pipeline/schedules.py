"""From an operator to its schedules, the best first: by a template, as it is written or normalised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from neptune_lab.choice import options as code_options
from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.arguments import closed_arguments
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import CONFIGS, TEMPLATES, TileConfig, choose_template
from neptune_lab.loop_schedule.templates import config as configs
from neptune_lab.loop_schedule.templates.config import PerNest, SplitKConfig, config_of, with_sizes
from neptune_lab.loop_schedule.templates.row_groups import row_groups
from neptune_lab.operators import Operator
from neptune_lab.pipeline.fallback import REFUSALS, parts_of, schedule_apart, schedule_parts
from neptune_lab.pipeline.lower import translated_and_verified
from neptune_lab.pipeline.normalise import asks_for_last_tile, kernels, normalised, shared, stored_bytes
from neptune_lab.pipeline.part_configs import configs_of_parts, sizes_per_nest
from neptune_lab.strict.console import shown

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
    check_operator(operator)
    check_numbers(operator, "a schedule")
    config = with_sizes(config, block_q, block_kv)
    try:
        return next(candidates(operator, template, config))
    except REFUSALS as refusal:
        if template is not None or config is not None:
            raise
        return schedule_apart(operator, refusal, translated_and_verified)


def check_operator(operator: object) -> None:
    """Raise ScheduleError unless `operator` is an Operator."""
    if not isinstance(operator, Operator):
        traced = "an operator of a function or module of PyTorch: nl.from_torch(function, *inputs)"
        made = "make an operator first, for example operators.attention.causal(seq=128)"
        raise ScheduleError(
            f"expected an Operator or a Schedule, got {shown(operator)}", help=traced if callable(operator) else made
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
        yield schedule_parts(
            operator, (_part_schedule(part, template, own) for part, own in zip(parts, configs, strict=True))
        )
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


def _part_schedule(operator: Operator, template: str | None, config: TileConfig | None) -> Schedule:
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


__all__ = ["PLACES", "candidates", "check_numbers", "check_operator", "schedule"]
