"""Converts plain data to frozen dataclasses and back: every field is checked against its annotation.

An annotation is a dataclass; str, int, float, bool or None; a Literal; a union; a tuple (of one type, or of one type
each); a dict or Mapping with string keys; `Any`, which means plain JSON; or one of these as `Annotated[type,
limit]`, where the limit is one of the classes below.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from neptune_lab.strict.console import printable, shown
from neptune_lab.strict.json_text import MOST_INTEGER, MOST_LEVELS
from neptune_lab.strict.values import INT32_MAX, Refusal, is_name

# A custom reader of one type: from (value, where) to the result.
Reader: TypeAlias = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `least` to `most`."""

    least: float
    most: float

    def wrong(self, value: Any) -> str | None:
        """What was expected; None if `value` is within the limit."""
        return None if self.least <= value <= self.most else f"expected a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Text:
    """One line of at most `most` characters."""

    most: int = 4096

    def wrong(self, value: Any) -> str | None:
        """What was expected; None if `value` is within the limit."""
        return (
            None
            if len(value) <= self.most and value.isprintable()
            else f"expected a line of at most {self.most} characters"
        )


@dataclass(frozen=True, slots=True)
class Words:
    """A text of at most `most` characters, of any number of lines."""

    most: int = 100_000

    def wrong(self, value: Any) -> str | None:
        """What was expected; None if `value` is within the limit."""
        return None if len(value) <= self.most else f"expected at most {self.most:,} characters"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: frozenset[str]

    def wrong(self, value: Any) -> str | None:
        """What was expected; None if `value` is within the limit."""
        return None if value in self.words else f"expected one of {', '.join(map(repr, sorted(self.words)))}"


@dataclass(frozen=True, slots=True)
class Identifier:
    """A Python identifier."""

    def wrong(self, value: Any) -> str | None:
        """What was expected; None if `value` is within the limit."""
        return None if len(value) <= 200 and is_name(value) else "expected a Python identifier"


# The types of most fields.
Name: TypeAlias = Annotated[str, Identifier()]
Line: TypeAlias = Annotated[str, Text()]
Count: TypeAlias = Annotated[int, Between(0, MOST_INTEGER)]
Extent: TypeAlias = Annotated[int, Between(1, INT32_MAX)]
Number: TypeAlias = Annotated[float, Between(0, 1e30)]
# Microseconds or seconds of something that was measured.
Time: TypeAlias = Annotated[float, Between(1e-9, 1e15)]


# The metadata of a field with a default that plain data leaves out where the field has its default.
OMIT_DEFAULT: Mapping[str, bool] = types.MappingProxyType({"omit_default": True})


def fit(value: Any, kind: type, where: str, error: Refusal) -> Any:
    """`value`, which is of type `kind` (an int also counts as a float); else `error`."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST_INTEGER:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise error(f"{where} is {type(value).__name__}, expected {kind.__name__}")
    if kind is float and not isfinite(value):
        raise error(f"{where} is {value}, expected a finite number")
    if kind is int and abs(value) > MOST_INTEGER:
        raise error(f"{where} is {shown(value)}, expected an integer of 64 bits")
    return value


def plain(value: Any, where: str, error: Refusal, levels: int = MOST_LEVELS) -> Any:
    """A copy of plain JSON, tuples as lists; `error` if it is not, or nests deeper than `levels`."""
    if levels < 0:
        raise error(f"{_short(where)} is nested too deeply")
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            return fit(value, type(value), where, error)
        case list() | tuple():
            return [plain(v, f"{where}[{n}]", error, levels - 1) for n, v in enumerate(value)]
        case dict():
            return {
                fit(k, str, f"a key of {where}", error): plain(v, f"{where}.{_short(k)}", error, levels - 1)
                for k, v in value.items()
            }
    raise error(f"{where} is {type(value).__name__}, expected plain JSON")


def pack(value: Any) -> Any:
    """A dataclass as plain JSON data, which `unpack` reads back: objects become dicts, tuples become lists.

    >>> pack(Between(0, 1)), pack({"sizes": (1, None)})
    ({'least': 0, 'most': 1}, {'sizes': [1, None]})
    """
    if is_dataclass(value):
        held = ((field, getattr(value, field.name)) for field in fields(value))
        return {
            field.name: pack(member)
            for field, member in held
            if not ("omit_default" in field.metadata and member == field.default)
        }
    if isinstance(value, list | tuple):
        return [pack(member) for member in value]
    return {key: pack(member) for key, member in value.items()} if isinstance(value, Mapping) else value


def unpack(
    value: Any, hint: Any, where: str, error: Refusal, readers: Mapping[Any, Reader] = types.MappingProxyType({})
) -> Any:
    """`value`, plain data, as the annotation `hint` has it.

    Args:
        where: the value's place, for messages, such as "record.us".
        error: raised if a field is missing, not known, or not of its type.
        readers: readers of types that are not read by their annotation.

    >>> from neptune_lab.errors import TraceError
    >>> unpack([1, 2.5], tuple[int, float], "pair", TraceError)
    (1, 2.5)
    >>> unpack({"n": "many"}, dict[str, int], "sizes", TraceError)
    Traceback (most recent call last):
    neptune_lab.errors.TraceError: sizes.n is str, expected int
    """
    if hint in readers:
        return readers[hint](value, where)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = unpack(value, args[0], where, error, readers)
        expected = next((w for limit in args[1:] if (w := limit.wrong(value))), None)
        if expected is not None:
            raise error(f"{where} is {shown(value)}, {expected}")
        return value
    if hint is Any or hint is object:
        return plain(value, where, error)
    if hint is None or hint is type(None):
        return _none(value, where, error)
    if origin in (Union, types.UnionType):
        return _union(value, args, where, error, readers)
    if origin is Literal:
        if not any(type(value) is type(a) and value == a for a in args):
            raise error(f"{where} is {shown(value)}, expected one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        each = members(fit(value, list, where, error), args, where, error)
        return tuple(unpack(v, h, w, error, readers) for v, h, w in each)
    if origin in (dict, Mapping):
        mapping = fit(value, dict, where, error)
        return {
            unpack(k, args[0], f"a key of {where}", error): unpack(v, args[1], f"{where}.{_short(k)}", error, readers)
            for k, v in mapping.items()
        }
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _record(value, hint, where, error, readers)
    return fit(value, hint, where, error)


def _none(value: Any, where: str, error: Refusal) -> None:
    if value is not None:
        raise error(f"{where} is {type(value).__name__}, expected null")


def _union(value: Any, hints: tuple[Any, ...], where: str, error: Refusal, readers: Mapping[Any, Reader]) -> Any:
    """The one member that takes values of this type; null is taken by None alone."""
    if value is None and type(None) in hints:
        return None
    others = [h for h in hints if h is not type(None)]
    if len(others) == 1:
        return unpack(value, others[0], where, error, readers)
    for hint in others:
        if type(value) is _json_type(hint) or (type(value) is int and _json_type(hint) is float):
            return unpack(value, hint, where, error, readers)
    expected = ", ".join(dict.fromkeys(_json_type(h).__name__ for h in others))
    raise error(f"{where} is {type(value).__name__}, expected {expected}")


def _json_type(hint: Any) -> type:
    """What values of the annotation are in plain JSON."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _json_type(args[0])
    if origin is Literal:
        return type(args[0])
    if origin is tuple:
        return list
    if origin in (dict, Mapping) or is_dataclass(hint):
        return dict
    return hint


def members(value: Any, args: tuple[Any, ...], where: str, error: Refusal) -> list[tuple[Any, Any, str]]:
    """(value, type, place) of each member of a tuple of the type `tuple[args]`."""
    if args[-1] is Ellipsis:
        return [(v, args[0], f"{where}[{n}]") for n, v in enumerate(value)]
    if len(value) != len(args):
        raise error(f"{where} has {len(value)} values, expected {len(args)}")
    return [(v, a, f"{where}[{n}]") for n, (v, a) in enumerate(zip(value, args, strict=True))]


def _record(value: Any, hint: type, where: str, error: Refusal, readers: Mapping[Any, Reader]) -> Any:
    hints = hints_of(hint)
    fit(value, dict, where, error)
    optional = {field.name for field in fields(hint) if "omit_default" in field.metadata}
    for missing in hints:
        if missing not in value and missing not in optional:
            raise error(f"{where} has no field {missing!r}")
    for extra in value:
        if extra not in hints:
            raise error(f"{where} has a field {shown(extra)}, which is not known: {', '.join(hints)}")
    return hint(**{n: unpack(v, hints[n], f"{where}.{n}", error, readers) for n, v in value.items()})


@lru_cache
def hints_of(cls: type) -> dict[str, Any]:
    """The type of every field of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls)}


def _short(key: Any) -> str:
    text = printable(str(key)) if isinstance(key, str) else shown(key)
    return text if len(text) <= 200 else f"{text[:200]}…"
