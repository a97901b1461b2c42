"""Kernels and schedules of tile sizes and code options by name, as tests draw them and as records hold them."""

from __future__ import annotations

from typing import Any

from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import Operator
from neptune_lab.pipeline import Choice, Kernel, compile_choice
from neptune_lab.pipeline import schedule as typed_schedule
from neptune_lab.target import Target


def compile(
    op: Operator,
    template: str | None = None,
    *,
    target: Target | str | None = None,
    validate: str = "quick",
    **options: Any,
) -> Kernel:
    """`nl.compile` with the fields of configs and of CodeOptions by name."""
    return compile_choice(op, Choice.of(template, options), target=target, validate=validate)


def schedule(op: Operator, template: str | None = None, **sizes: Any) -> Schedule:
    """`pipeline.schedule` with the fields of configs by name."""
    return typed_schedule(op, template, config=Choice.of(template, sizes).config)


def apply(template: str, sch: Schedule, **sizes: Any) -> Schedule:
    """The template applied to `sch`, with the fields of its config by name."""
    return TEMPLATES[template](sch, Choice.of(template, sizes).config)


def choice(template: str | None, **options: Any) -> Choice:
    """A choice with the fields of its config and of CodeOptions by name."""
    return Choice.of(template, options)


__all__ = ["apply", "choice", "compile", "schedule"]
