"""A choice of template and options as files hold it: closed types, checked when one is read.

Whether an option exists and takes its value is checked by `pipeline.Choice`, as for a caller's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from neptune_lab.strict.typed import Between, Name, pack, unpack
from neptune_lab.strict.values import INT32_MAX, Refusal

_Integer: TypeAlias = Annotated[int, Between(-INT32_MAX - 1, INT32_MAX)]
_Entry: TypeAlias = "_Integer | bool | Name | None"
Value: TypeAlias = "_Integer | bool | Name | tuple[_Entry, ...] | None"


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """A template's name (None: chosen by shape) and its options by name; a tuple has one entry per nest."""

    template: Name | None
    options: dict[Name, Value]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: {"template": name, "options": {name: value}}; a tuple becomes a list."""
        return pack(self)

    def __str__(self) -> str:
        """The template and its options on one line.

        >>> str(StoredChoice("rolling_update", {"block_q": 128, "block_kv": (64, None)}))
        'rolling_update block_kv=64,- block_q=128'
        """
        options = (f"{name}={_text(value)}" for name, value in sorted(self.options.items()))
        return " ".join([self.template or "(default)", *options])


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return "-" if value is None else str(value)


def with_tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as programs have them: a list becomes a tuple."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def choice_of(data: Any, where: str, error: Refusal) -> Mapping[str, Any]:
    """`data`, which has the form of a `StoredChoice`, as plain JSON.

    Raises:
        error: it has another form; the message names the field.
    """
    plain = pack(data)
    unpack(plain, StoredChoice, where, error)
    return plain
