"""The template and tiles of a kernel for all sizes, chosen at the hint, and the role of each size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.htile.sizes import Sample
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Program, Var
from neptune_lab.loop_schedule.plan import NestPlan, plan
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig, choose_template
from neptune_lab.loop_schedule.templates.elementwise import is_of_maps, schedule_maps
from neptune_lab.loop_schedule.templates.nest_config import nest_configs
from neptune_lab.loop_schedule.templates.nest_shape import NestConfig, columns_of
from neptune_lab.loop_schedule.templates.one_stage import tile_axes
from neptune_lab.loop_schedule.templates.splits import splits_of
from neptune_lab.operators import Operator
from neptune_lab.pipeline.fallback import parts_of, schedule_parts
from neptune_lab.pipeline.schedules import candidates

# Columns of a tile of rows that one tile could hold at the hint.
_ROLLED = 1024
# How a definition without reductions is scheduled, which no template takes; and the most elements along each axis of
# its tiles, by how many axes of theirs have a size with a name or are longer.
MAPS = "maps"
_SIDES = {0: 1024, 1: 1024, 2: 64}


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """How an operator is scheduled at every sample.

    Args:
        template, config: with all sizes written out, as for `compile`; `MAPS`: the operator has no reduction.
        nests: the tiles of each nest.
        parts: of an operator with parts: the choice of each; `nests` are those of all.
    """

    template: str
    config: TileConfig
    nests: tuple[NestConfig, ...]
    parts: tuple[SizeChoice, ...] = ()

    @property
    def rolls(self) -> bool:
        """Whether no reduction is split."""
        return all(part.template in ("rolling_update", MAPS) for part in self.parts or (self,))

    def schedules(self, op: Operator) -> Iterator[Schedule]:
        """The schedules of the operator at one sample, the best first.

        Raises:
            ScheduleError, RepairError: as `candidates`; ScheduleError also if the operator has other parts here.
        """
        if self.template == MAPS:
            yield schedule_maps(Schedule(op), self.nests[0].block_q)
            return
        if not self.parts:
            yield from candidates(op, self.template, self.config)
            return
        parts = parts_of(op)
        if len(parts) != len(self.parts):
            raise ScheduleError(
                f"{op.name} has {len(parts)} parts at these sizes and {len(self.parts)} at others",
                help="compile it for one size",
            )
        both = zip(self.parts, parts, strict=True)
        yield schedule_parts(op, (next(chosen.schedules(part)) for chosen, part in both))


def roles_of(
    make: Callable[[Sample], Operator], hint: Sample, template: str | None, config: TileConfig | None
) -> dict[str, str]:
    """The role of each size in `compile_for_sizes`, from the extents of rows and columns at the hint and beside it."""

    def extents(sample: Sample) -> tuple[list[int], list[int]]:
        if is_of_maps(make(sample).program):
            return _map_extents(make(sample).program), []
        base = next(candidates(make(sample), template, config)).base
        nests = plan(base)
        return [_row_extent(base, nest) for nest in nests], [columns_of(base, nest) for nest in nests]

    own = extents(hint)
    roles: dict[str, str] = {}
    for name, value in hint.items():
        rows, columns = (a != b for a, b in zip(own, extents({**hint, name: 2 * value}), strict=True))
        roles[name] = "both" if rows and columns else "rows" if rows else "columns" if columns else ""
    return roles


def _map_extents(program: Program) -> list[int]:
    """Of a definition without reductions, the extents that tiles cut."""
    return [extent for block in tree.blocks(program) for extent in _tile_extents(block)]


def _tile_extents(block: Block) -> list[int]:
    """The extents of the axes of a tile of a block that folds over none."""
    extents = {it.name: it.extent for it in block.iters}
    own = replace(block, iters=tuple(replace(it, binding=Var(it.name)) for it in block.iters))
    return [extents[name] for name in tile_axes(own, extents)]


def _row_extent(base: Program, nest: NestPlan) -> int:
    """Rows of a nest that tiles cut; 1 if it has none."""
    if nest.row_axis is None or nest.row_size:
        return 1
    return tree.find_block(base, nest.first)[1].iter(nest.row_axis).extent


def choice_of(
    make: Callable[[Sample], Operator],
    hint: Sample,
    roles: Mapping[str, str],
    template: str | None,
    config: TileConfig | None,
) -> SizeChoice:
    """The template and the config that `compile` chooses for an operator, with all sizes written out."""
    op = make(hint)
    if template is None and config is None and is_of_maps(op.program):
        side = _SIDES[max(len(_tile_extents(block)) for block in tree.blocks(op.program))]
        return SizeChoice(MAPS, TileConfig(), (NestConfig(block_q=side, block_kv=side),))
    if op.parts:
        own = [partial(_part_at, make, n) for n in range(len(op.parts))]
        parts = tuple(choice_of(part, hint, roles, template, config) for part in own)
        return SizeChoice(parts[0].template, parts[0].config, sum((part.nests for part in parts), ()), parts)
    base = next(candidates(op, template, config)).base
    nests = plan(base)
    template = template or op.template or choose_template(base)[0]
    config = config or TileConfig()
    configs = nest_configs(base, nests, config)
    held = [c.one_tile or c.block_kv >= columns_of(base, n) for n, c in zip(nests, configs, strict=True)]
    if any(held):
        larger = {name: 2 * size if roles[name] in ("columns", "both") else size for name, size in hint.items()}
        other = next(candidates(make(larger), template, config)).base
        varies = [columns_of(base, a) != columns_of(other, b) for a, b in zip(nests, plan(other), strict=True)]
        held = [one and varying for one, varying in zip(held, varies, strict=True)]
        configs = _rolling(base, nests, config, configs, held)
    made: list[NestConfig] = []
    for nest, chosen in zip(nests, configs, strict=True):
        splits = splits_of(base, nest, chosen, config.multiprocessors)[0] if template == "split_k_update" else 1
        made.append(replace(chosen, splits=splits))
    fields = ("block_q", "block_kv", "block_out", "num_warps", "num_stages")
    sizes: dict[str, Any] = {name: tuple(getattr(nest, name) for nest in made) for name in fields}
    if template == "split_k_update":
        return SizeChoice(template, SplitKConfig(**sizes, splits=tuple(nest.splits for nest in made)), tuple(made))
    return SizeChoice(template, TileConfig(**sizes), tuple(made))


def _part_at(make: Callable[[Sample], Operator], n: int, sample: Sample) -> Operator:
    """A part of the operator at given sizes, as an operator."""
    return parts_of(make(sample))[n]


def _rolling(
    base: Program, nests: tuple[NestPlan, ...], config: TileConfig, configs: tuple[NestConfig, ...], held: list[bool]
) -> tuple[NestConfig, ...]:
    """The configs with shorter tiles in the nests (`held`) of which one tile would hold all columns at the hint: of
    other sizes it would not.

    Raises:
        ScheduleError: there are too few columns for several tiles, or the caller chose one.
    """
    if not any(held):
        return configs
    shorter = tuple(_ROLLED if one else chosen.block_kv for one, chosen in zip(held, configs, strict=True))
    for nest, one in zip(nests, held, strict=True):
        if one and (config.block_kv is not None or columns_of(base, nest) <= _ROLLED):
            raise ScheduleError(
                f"one tile holds all {columns_of(base, nest)} elements of {nest.reduce_axis}, whatever their number",
                help="give a larger hint or a smaller block_kv, or compile it for each size",
            )
    return nest_configs(base, nests, replace(config, block_kv=shorter))


__all__ = ["SizeChoice", "choice_of", "roles_of"]
