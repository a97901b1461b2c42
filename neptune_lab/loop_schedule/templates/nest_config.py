"""The tile sizes and launch hints of each nest: the caller's if given, otherwise chosen by its shape."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.plan import NestPlan
from neptune_lab.loop_schedule.templates.config import SplitKConfig, TileConfig
from neptune_lab.loop_schedule.templates.launch_hints import with_hints
from neptune_lab.loop_schedule.templates.matrix_units import suited
from neptune_lab.loop_schedule.templates.nest_defaults import default_config
from neptune_lab.loop_schedule.templates.nest_shape import (
    COLUMNS,
    NestConfig,
    columns_of,
    has_product,
)

# The fields of a config that have one entry per nest; `splits` is in SplitKConfig only.
SIZES = ("block_q", "block_kv", "block_out", "splits", "num_warps", "num_stages")


def nest_configs(program: Program, nests: tuple[NestPlan, ...], config: TileConfig) -> tuple[NestConfig, ...]:
    """The config of each nest.

    Args:
        program: the definition, before any step.
        nests: from `plan`.
        config: what the caller chose; sizes that it leaves open are chosen by shape (`default_config`).

    Returns:
        One NestConfig per nest.

    Raises:
        ScheduleError: a tuple in `config` does not have one entry per nest.
    """
    for name in SIZES:
        value = getattr(config, name, None)
        if isinstance(value, tuple) and len(value) != len(nests):
            firsts = ", ".join(nest.first for nest in nests)
            raise ScheduleError(
                f"{name}={value!r} has {len(value)} entries for {len(nests)} nests",
                help="give one number, or one entry per nest (None: chosen by shape); the nests start at the blocks "
                f"{firsts}",
            )
    several = len(nests) > 1
    return tuple(_nest_config(program, nest, n, several, config) for n, nest in enumerate(nests))


def config_after(
    program: Program, nest: NestPlan, before: NestPlan, chosen: NestConfig, config: TileConfig
) -> NestConfig:
    """The config of a nest that is planned only after another one was scheduled, of which it is the rest.

    Args:
        program: the definition, before any step.
        nest: the rest.
        before: the nest whose plan it was part of.
        chosen: the config of that nest.
        config: what the caller chose.

    Returns:
        `chosen`, if both have the same number of columns and products or not, or the caller chose sizes per nest; else
        one for its own shape.
    """
    own, other = ((columns_of(program, n), has_product(program, n)) for n in (nest, before))
    if own == other or any(isinstance(getattr(config, name, None), tuple) for name in SIZES):
        return chosen
    return _nest_config(program, nest, 0, True, config)


def _nest_config(program: Program, nest: NestPlan, n: int, several: bool, config: TileConfig) -> NestConfig:
    values = {name: getattr(config, name, None) for name in SIZES}
    given = {name: value[n] if isinstance(value, tuple) else value for name, value in values.items()}
    chosen = default_config(program, nest, several=several, multiprocessors=config.multiprocessors)
    chosen = suited(program, nest, chosen, config.matrix_unit, split=isinstance(config, SplitKConfig))
    width, splits = columns_of(program, nest), given["splits"] or 1
    if splits > 1:
        # Unless block_kv is given, tiles are short enough for this number of splits.
        chosen = replace(chosen, one_tile=False, block_kv=min(chosen.block_kv, max(COLUMNS, -(-width // splits))))
    if given["block_kv"] is not None:
        chosen = replace(chosen, one_tile=given["block_kv"] >= width and splits == 1)
    chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
    return with_hints(program, nest, chosen, config.multiprocessors)


__all__ = ["SIZES", "config_after", "nest_configs"]
