"""Whole schedules. A template takes a fresh Schedule and applies steps to it; `TEMPLATES` lists them by name."""

from collections.abc import Callable, Mapping

from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates.choose import choose_template
from neptune_lab.loop_schedule.templates.rolling_update import rolling_update
from neptune_lab.loop_schedule.templates.split_k_update import split_k_update

TEMPLATES: Mapping[str, Callable[..., Schedule]] = {"rolling_update": rolling_update, "split_k_update": split_k_update}

__all__ = ["TEMPLATES", "choose_template", "rolling_update", "split_k_update"]
