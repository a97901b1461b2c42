"""Configs with one entry per nest, for an operator in parts: each part gets the entries of its own nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.loop_schedule.templates.nest_config import SIZES
from neptune_lab.operators import Operator
from neptune_lab.pipeline.fallback import REFUSALS


def sizes_per_nest(config: TileConfig | None) -> dict[str, tuple[int | None, ...]]:
    """The fields of a config that have one entry per nest.

    >>> sizes_per_nest(TileConfig(block_q=(16, None), block_kv=32))
    {'block_q': (16, None)}
    """
    values = {name: getattr(config, name, None) for name in SIZES}
    return {name: value for name, value in values.items() if isinstance(value, tuple)}


def configs_of_parts(
    parts: Sequence[Operator], config: TileConfig | None, schedule: Callable[[Operator, TileConfig | None], Schedule]
) -> list[TileConfig | None]:
    """The config of each part.

    Args:
        parts: the operator's, in order.
        config: the caller's; a tuple in it has one entry per nest, those of the first part first.
        schedule: the best schedule of one part.

    Raises:
        ScheduleError: a tuple has another number of entries, or a part that has no nests of a template.
    """
    given = sizes_per_nest(config)
    if config is None or not given:
        return [config] * len(parts)
    nests = [_nests(part, next(iter(given)), replace(config, **dict.fromkeys(given)), schedule) for part in parts]
    total = sum(map(len, nests))
    for name, value in given.items():
        if len(value) != total:
            raise ScheduleError(
                f"{name}={value!r} has {len(value)} entries for {total} nests in {len(parts)} parts",
                help="give one number, or one entry per nest (None: chosen by shape); the nests start at the blocks "
                f"{', '.join(first for own in nests for first in own)}",
            )
    made: list[TileConfig | None] = []
    at = 0
    for own in nests:
        of_part: dict[str, Any] = {name: value[at : at + len(own)] for name, value in given.items()}
        made.append(replace(config, **of_part))
        at += len(own)
    return made


def _nests(
    part: Operator, name: str, config: TileConfig, schedule: Callable[[Operator, TileConfig | None], Schedule]
) -> tuple[str, ...]:
    """The first block of each nest of a part."""
    try:
        return tuple(nest.first for nest in plan(schedule(part, config).base))
    except REFUSALS as refusal:
        stages = [stage.name for stage in part.outputs]
        raise ScheduleError(
            f"{name} has one entry per nest, and no template takes the part that computes {', '.join(stages)}: "
            f"{refusal.reason}",
            help="give one number for all nests, or leave it out",
        ) from refusal


__all__ = ["configs_of_parts", "sizes_per_nest"]
