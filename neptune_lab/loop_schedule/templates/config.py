"""The config of a template: tile sizes and launch hints, as frozen data that is checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, TypeVar

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.arguments import check_hint, closed_fields, is_count
from neptune_lab.strict.console import class_of, shown
from neptune_lab.strict.values import check_choice, check_switch
from neptune_lab.target import DEFAULT, MATRIX_UNITS, Target

# One number for all nests, or one entry per nest in the order of `plan`; None: chosen by shape.
PerNest: TypeAlias = "int | tuple[int | None, ...] | None"


@closed_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """Tile sizes and launch hints of a template; None: chosen by shape.

    A size is one number for all nests, or a tuple with one entry per nest; of an operator in parts, such as a backward
    pass, those of its first part first.  A size may be any number: a program of 3 rows holds them in a tile whose other
    rows are masked (of products, one of 16 rows).  One above the extent is the extent, and products of tiles that no
    GPU has shared memory for are refused.

    Args:
        block_q: rows (queries) per program.
        block_kv: columns (keys) per tile.
        block_out: columns of the output per program, if only the last product has them (the H of a chain of two
            products): each program then computes the first product again (MCFuser's deep order).  None: one
            accumulator holds all of them (its flat order).
        num_warps: warps per program, a power of two from 1 to 32.
        num_stages: tiles in flight: the one in use, and those that are prefetched.  At most 16.
        pad_rows: pads a single row to 16 rows, so that its products run on matrix units.
        multiprocessors: the number on the GPU, for sizes that are chosen by shape.
        matrix_unit: the GPU's instructions for products of tiles (`Target.matrix_unit`), for sizes that are chosen by
            shape; `compile` takes them from its target.
        normalise: whether the definition is rewritten (docs/concepts/phases.md) if that leaves fewer kernels.

    Raises:
        ScheduleError: there is no such field, or it does not take the value.
    """

    block_q: PerNest = None
    block_kv: PerNest = None
    block_out: PerNest = None
    num_warps: PerNest = None
    num_stages: PerNest = None
    pad_rows: bool = False
    multiprocessors: int = DEFAULT.sm_count
    matrix_unit: Literal["mma", "wgmma", "tcgen05", "mfma", "wmma"] = "wgmma"
    normalise: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in ("pad_rows", "normalise"):
                check_switch(field.name, getattr(self, field.name), ScheduleError)
            elif field.name == "matrix_unit":
                check_choice("matrix_unit", self.matrix_unit, MATRIX_UNITS, ScheduleError)
            elif field.name == "multiprocessors":
                _check_size("multiprocessors", self.multiprocessors)
            else:
                self._check_sizes(field.name)

    def _check_sizes(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, list):
            value = tuple(value)
            object.__setattr__(self, name, value)
        for entry in value if isinstance(value, tuple) else (value,):
            if entry is not None:
                _check_size(name, entry)


@closed_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKConfig(TileConfig):
    """The config of `split_k_update`: the fields of `TileConfig`, and the number of splits.

    Args:
        splits: parts that the columns are split into, each of whole tiles, so at most as many as there are tiles.  The
            last may be shorter.  1: rolling update.  None: as many as fill whole waves of programs on the
            multiprocessors; of several nests, those that fill the GPU without splits use rolling update.
    """

    splits: PerNest = None


# Fields that users may pass to a template or to `compile` by mistake, and where they belong, for error messages.
PLACES = dict.fromkeys((field.name for field in fields(TileConfig)), "config=nl.TileConfig") | {
    "splits": "config=nl.SplitKConfig"
}

Config = TypeVar("Config", bound=TileConfig)

# An example of each size, for messages.
_EXAMPLES = {"splits": 8, "multiprocessors": DEFAULT.sm_count}


def _check_size(name: str, value: object) -> None:
    check_hint(name, value, "TileConfig")
    if not is_count(value):
        left_open = "" if name == "multiprocessors" else ", or leave it out to have it chosen by shape"
        raise ScheduleError(
            f"{name}={shown(value)}, expected a positive integer",
            help=f"give a whole number such as {_EXAMPLES.get(name, 64)}{left_open}",
        )


def with_sizes(
    config: TileConfig | None, block_q: PerNest, block_kv: PerNest, *, override: bool = False
) -> TileConfig | None:
    """`config` with the two sizes that can also be given by name.

    Args:
        config: a TileConfig or None.
        block_q: rows per program; None: as in `config`.
        block_kv: columns per tile; None: as in `config`.
        override: whether a size by name replaces the one in `config`; otherwise a size that is given twice is refused.

    Returns:
        The combined config; None if nothing is given.

    Raises:
        ScheduleError: `config` is no TileConfig, a size is given twice, or it is not positive.
    """
    if config is not None and not isinstance(config, TileConfig):
        raise ScheduleError(
            f"config={shown(config)}: expected a TileConfig, a SplitKConfig or None",
            help="for example config=nl.TileConfig(num_warps=8)",
        )
    given = {name: size for name, size in (("block_q", block_q), ("block_kv", block_kv)) if size is not None}
    for name, size in given.items():
        if config is not None and getattr(config, name) is not None and not override:
            raise ScheduleError(
                f"{name}={shown(size)} is given by name, and config has {name}={shown(getattr(config, name))}",
                help=f"give {name} once, by name or in config",
            )
    return replace(config or TileConfig(), **given) if given else config


def for_target(config: TileConfig | None, target: Target | None) -> TileConfig | None:
    """`config` with the matrix unit of a GPU, unless the caller chose one.

    Args:
        config: the caller's; None: nothing is chosen.
        target: the GPU; None, or one whose unit is not known: sizes are chosen as for the default GPU.

    Returns:
        The config; `config` itself if nothing changes.

    >>> for_target(None, Target("h200")), for_target(None, Target("a100")).matrix_unit
    (None, 'mma')
    """
    unit = None if target is None else target.matrix_unit
    if unit in (None, DEFAULT.matrix_unit) or (config is not None and config.matrix_unit != DEFAULT.matrix_unit):
        return config
    return replace(config or TileConfig(), matrix_unit=unit)


def config_of(template: str, kind: type[Config], config: TileConfig | None) -> Config:
    """`config` as the class that the template takes; a TileConfig is converted to SplitKConfig.

    Args:
        template: its name, for messages.
        kind: TileConfig or SplitKConfig.
        config: the caller's config; None: all defaults.

    Returns:
        A config of type `kind`.

    Raises:
        ScheduleError: `config` has fields that the template does not take.
    """
    if config is None:
        return kind()
    if type(config) is kind:
        return config
    if not issubclass(kind, type(config)):
        raise ScheduleError(
            f"template {template!r} takes a {kind.__name__}, got {class_of(config)}",
            help='give template="split_k_update", which takes a SplitKConfig, or leave splits out',
        )
    return kind(**{field.name: getattr(config, field.name) for field in fields(config)})


__all__ = ["PLACES", "PerNest", "SplitKConfig", "TileConfig", "config_of", "for_target", "with_sizes"]
