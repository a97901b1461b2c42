"""Templates: whole schedules. A template takes a new Schedule and applies steps to it; `TEMPLATES` names them."""

from collections.abc import Mapping
from typing import Protocol

from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.choose import choose_template
from neptune_lab.loop_schedule.templates.config import PerNest, SplitKConfig, TileConfig
from neptune_lab.loop_schedule.templates.rolling_update import rolling_update
from neptune_lab.loop_schedule.templates.split_k_update import split_k_update


class Template(Protocol):
    """A template: applies steps to a schedule, with a config, or with its two commonest sizes by name."""

    def __call__(
        self, sch: Schedule, /, config: TileConfig | None = None, *, block_q: PerNest = None, block_kv: PerNest = None
    ) -> Schedule: ...


TEMPLATES: Mapping[str, Template] = {"rolling_update": rolling_update, "split_k_update": split_k_update}
# The class of each template's config.
CONFIGS: Mapping[str, type[TileConfig]] = {"rolling_update": TileConfig, "split_k_update": SplitKConfig}

__all__ = ["CONFIGS", "TEMPLATES", "SplitKConfig", "TileConfig", "choose_template", "rolling_update", "split_k_update"]
