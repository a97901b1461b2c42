"""A choice of template and options as files have it: closed types, checked wherever one is read.

That an option exists, and that its value is in its range, `pipeline.compile` checks as it does for a caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from neptune_lab.strict.typed import Between, Name, unpack
from neptune_lab.strict.values import Refusal

_Integer: TypeAlias = Annotated[int, Between(-(2**31), 2**31 - 1)]
_Entry: TypeAlias = "_Integer | bool | Name | None"
Value: TypeAlias = "_Integer | bool | Name | tuple[_Entry, ...] | None"


@dataclass(frozen=True, slots=True)
class Choice:
    """A template's name (None: chosen by shape) and its options by name; a tuple has one entry per nest."""

    template: Name | None
    options: dict[Name, Value]


def with_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them: a tuple becomes a list."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def with_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as programs have them: a list becomes a tuple."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def choice_of(data: Any, where: str, error: Refusal) -> Mapping[str, Any]:
    """`data`, which has the form of a `Choice`, as plain JSON.

    Raises:
        error: it has another form; the message names the field.
    """
    if isinstance(data, Mapping) and isinstance(data.get("options"), Mapping):
        data = {**data, "options": with_lists(data["options"])}
    unpack(data, Choice, where, error)
    return data
