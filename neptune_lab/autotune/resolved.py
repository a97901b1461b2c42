"""A choice with every size written out that is otherwise chosen by shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neptune_lab.choice import Choice
from neptune_lab.loop_schedule.plan import plan
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig, choose_template
from neptune_lab.loop_schedule.templates.config import for_target
from neptune_lab.loop_schedule.templates.nest_config import nest_configs
from neptune_lab.loop_schedule.templates.nest_shape import columns_of
from neptune_lab.loop_schedule.templates.splits import splits_of
from neptune_lab.target import Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

_SIZES = ("block_q", "block_kv", "block_out", "num_warps", "num_stages")


class Resolver:
    """Writes out the choices of one operator on one GPU."""

    def __init__(self, operator: Operator, target: Target) -> None:
        """Plans the nests of the definition, before any rewrite.

        Args:
            operator: whose choices are written out.
            target: the GPU, for the tiles that fit it.
        """
        self.program = operator.program
        self.nests = plan(self.program)
        self.template = operator.template or choose_template(self.program)[0]
        self.target = target

    def __call__(self, choice: Choice) -> Choice:
        """`choice` with its template, tiles, warps, stages and splits; the numbers of nests are those of the plan.

        Raises:
            ScheduleError: a size of the choice does not have one entry per nest.
        """
        template = choice.template or self.template
        given = for_target(choice.config, self.target) or TileConfig()
        made = nest_configs(self.program, self.nests, given)
        values: dict[str, Any] = {name: tuple(getattr(nest, name) for nest in made) for name in _SIZES}
        columns = tuple(columns_of(self.program, nest) for nest in self.nests)
        values["block_kv"] = tuple(
            width if nest.one_tile else nest.block_kv for nest, width in zip(made, columns, strict=True)
        )
        if template != "split_k_update":
            return Choice(template, TileConfig(**values, pad_rows=given.pad_rows), choice.code)
        splits = tuple(
            splits_of(self.program, nest, config, given.multiprocessors)[0]
            for nest, config in zip(self.nests, made, strict=True)
        )
        return Choice(template, SplitKConfig(**values, splits=splits, pad_rows=given.pad_rows), choice.code)


__all__ = ["Resolver"]
