"""Reads JSON text as plain data, within limits; errors are of the caller's class."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from neptune_lab.strict.console import class_of, printable, shown
from neptune_lab.strict.files import MIB, read_text
from neptune_lab.strict.values import Refusal, is_integer

# A record of a compilation has a few megabytes; none of the formats needs more than this.
MOST_BYTES = 256 * MIB
# Nesting levels of lists and objects; the expressions of derivations and definitions nest deepest.
MOST_LEVELS = 256
_SURROGATE = re.compile("[\ud800-\udfff]")
# Python converts longer ones in quadratic time.
MOST_DIGITS = 400
# An integer takes at most 64 bits.
MOST_INTEGER = (1 << 63) - 1


def read_json(path: str | os.PathLike[str], error: Refusal, *, most: int = MOST_BYTES, help: str | None = None) -> Any:
    """The plain data of a JSON file; `error`, with the file's name, if there is none."""
    text = read_text(path, most, error, help=help)
    with at_place(printable(os.fspath(path)), error, help=help):
        return parse(text, error, most=most)


def check_schema(
    data: Any, schema: int, where: str, what: str, error: Refusal, *, help: str | None = None
) -> dict[str, Any]:
    """`data`, if it is an object whose field "schema" is `schema`; else `error`.

    Args:
        where: the file, for messages.
        what: what it should hold, for messages.

    >>> from neptune_lab.errors import MeasureError
    >>> check_schema({"schema": 2}, 1, "a.json", "tuning records", MeasureError)
    Traceback (most recent call last):
    neptune_lab.errors.MeasureError: a.json: tuning records of schema 2, this version reads schema 1
    """
    if not isinstance(data, dict):
        raise error(f"{where}: no {what}: expected an object with a field 'schema'", help=help)
    version = data.get("schema")
    if not is_integer(version) or version != schema:
        raise error(f"{where}: {what} of schema {shown(version)}, this version reads schema {schema}", help=help)
    return data


def field_of(data: dict[str, Any], name: str, where: str, error: Refusal, *, help: str | None = None) -> Any:
    """The field of an object that `check_schema` returned; `error` if there is none."""
    if name not in data:
        raise error(f"{where} has no field {name!r}", help=help)
    return data[name]


@contextmanager
def at_place(where: str, error: Refusal, *, help: str | None = None) -> Iterator[None]:
    """Puts `where` and a colon before what an `error` in the block says, and adds `help` if it has none.

    >>> from neptune_lab.errors import MeasureError
    >>> with at_place("a.json", MeasureError):
    ...     raise MeasureError("no records")
    Traceback (most recent call last):
    neptune_lab.errors.MeasureError: a.json: no records
    """
    try:
        yield
    except error as refusal:
        raise error(f"{where}: {refusal.reason}", help=refusal.help or help) from refusal


def parse(text: str | bytes, error: Refusal, *, where: str = "", most: int = MOST_BYTES) -> Any:
    """The plain data of a JSON text.

    Besides what is not JSON, these are refused: integers of more than `MOST_DIGITS` digits, two fields of one name,
    and more than `MOST_LEVELS` levels.  `typed.unpack`, which takes the data next, refuses NaN, infinities and numbers
    beyond 64 bits by their place.

    >>> from neptune_lab.errors import TraceError
    >>> parse('{"a": [1, 2.5, null]}', TraceError)
    {'a': [1, 2.5, None]}
    >>> parse('{"a": 1, "a": 2}', TraceError)
    Traceback (most recent call last):
    neptune_lab.errors.TraceError: not JSON: the field 'a' is there twice

    Raises:
        error: the text is refused; the message begins with `where`.
    """
    start = f"{where}: " if where else ""
    if not isinstance(text, str | bytes):
        raise error(f"{start}not JSON: expected a text, got {class_of(text)}")
    if len(text) > most:
        raise error(f"{start}more than {most:,} characters, the most that is read")
    try:
        data = json.loads(text, parse_int=_integer, object_pairs_hook=_object)
    except RecursionError as cause:
        raise error(f"{start}nested too deeply: more than {MOST_LEVELS} levels") from cause
    except (ValueError, MemoryError) as cause:
        raise error(f"{start}not JSON: {printable(str(cause))}") from cause
    _check(data, error, start, _has_surrogates(text))
    return data


def _has_surrogates(text: str | bytes) -> bool:
    """Whether a string of the text may have half of a surrogate pair, which no file and no terminal takes."""
    if isinstance(text, bytes):
        return b"\\u" in text
    return "\\u" in text or not text.isascii()


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"the number {shown(digits)} has {len(digits):,} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {shown(next(n for n in names if names.count(n) > 1))} is there twice")
    return fields


def _check(data: Any, error: Refusal, start: str, surrogates: bool) -> None:
    """Raise `error` if lists and objects nest too deeply, or a string is not Unicode; without recursion."""
    levels, todo = 0, [data]
    while todo:
        children: list[Any] = []
        for value in todo:
            if isinstance(value, dict):
                children += value.values()
                children += value if surrogates else ()
            elif isinstance(value, list):
                children += value
            elif surrogates and isinstance(value, str) and _SURROGATE.search(value):
                raise error(f"{start}not JSON: {shown(value)} has half of a surrogate pair")
        levels += bool(children)
        if levels > MOST_LEVELS:
            raise error(f"{start}nested too deeply: more than {MOST_LEVELS} levels")
        todo = children
