"""Converts the record to JSON and back; every field is checked against its type in both directions."""

from __future__ import annotations

import json
import types
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from neptune_lab.errors import TraceError
from neptune_lab.files import write_text
from neptune_lab.strict.files import MIB, read_text, shown_path
from neptune_lab.strict.json_text import at_place, parse
from neptune_lab.strict.typed import fit, hints_of, members, plain, unpack
from neptune_lab.trace.record import Line, Trace
from neptune_lab.trace.schema import upgrade

# The largest record of the tests has 3 MiB.
MOST_BYTES = 256 * MIB


def to_json(trace: Trace) -> str:
    """The record as JSON.

    Most lines of a program are in several phases, so each distinct line is stored once, in `lines`, and a program is a
    list of positions there.

    Args:
        trace: the record.

    Returns:
        The text.
    """
    pool: dict[Line, int] = {}
    packed = _pack(trace, Trace, "trace", pool)
    lines = [[x.node, x.text, x.origin, x.kind, list(x.refs)] for x in pool]
    return json.dumps({**packed, "lines": lines}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Trace:
    """The record that `to_json` wrote.

    Args:
        text: JSON of this or an older schema.

    Returns:
        The record.

    Raises:
        TraceError: the text is not such a record; the message names the field, the value and what was expected.
    """
    return _from_data(parse(text, TraceError, most=MOST_BYTES))


def _from_data(data: Any) -> Trace:
    """The record of JSON data, upgraded if it is older.

    Raises:
        TraceError: it is no record, or its lines do not fit.
    """
    if not isinstance(data, dict):
        raise TraceError(
            "not a record: expected an object with a field 'schema'",
            help="open a file that neptune_lab.trace.save wrote",
        )
    upgrade(data)
    rows = fit(data.pop("lines", None), list, "trace.lines", TraceError)
    lines = [_line(row, f"trace.lines[{n}]") for n, row in enumerate(rows)]

    def line_at(value: Any, where: str) -> Line:
        if not 0 <= fit(value, int, where, TraceError) < len(lines):
            raise TraceError(
                f"{where} is line {value}, but the record has {len(lines)} lines",
                help="the file was changed; save the record again",
            )
        return lines[value]

    if isinstance(data.get("kernel"), dict):  # records from before validation have no such field
        data["kernel"].setdefault("validated", "")
    trace = unpack(data, Trace, "trace", TraceError, {Line: line_at})
    for n, step in enumerate(trace.steps):
        if step.primitive == "remark" and step.error is None:
            fit(step.arguments.get("text"), str, f"trace.steps[{n}].arguments.text", TraceError)
    return trace


def _line(row: Any, where: str) -> Line:
    if len(fit(row, list, where, TraceError)) != 5:
        raise TraceError(
            f"{where} has {len(row)} values, expected node, text, origin, kind, refs",
            help="the file was changed; save the record again",
        )
    node, text, origin, kind = (fit(x, str, where, TraceError) for x in row[:4])
    return Line(
        node, text, origin, kind, tuple(fit(r, str, where, TraceError) for r in fit(row[4], list, where, TraceError))
    )


def save(trace: Trace, path: str | Path) -> None:
    """Saves the record as a JSON file in UTF-8.

    Args:
        trace: the record.
        path: the file to write.

    Raises:
        FileError: the file cannot be written; a file that was there is unchanged.
    """
    write_text(path, to_json(trace))


def load_trace(path: str | Path) -> Trace:
    """The record in a file that `save` wrote; needs only Python's standard library.

    Args:
        path: the file.

    Returns:
        The record, upgraded to this version's schema.

    Raises:
        TraceError: the file cannot be read or is not such a record; the message names the file and the field.
    """
    text = read_text(path, MOST_BYTES, TraceError)
    with at_place(shown_path(path), TraceError):
        return from_json(text)


def _leaf(value: Any, hint: Any, where: str) -> Any:
    """A value that is neither a record nor a tuple."""
    origin, args, _ = _form(hint)
    if origin is Literal:
        if value not in args or not isinstance(value, str):
            raise TraceError(
                f"{where} is {value!r}, expected one of {', '.join(map(repr, args))}",
                help="the file was changed; save the record again",
            )
        return value
    if origin is dict:
        fields = plain(fit(value, dict, where, TraceError), where, TraceError)
        return fields if args[1] is Any else {k: fit(v, args[1], f"{where}.{k}", TraceError) for k, v in fields.items()}
    return fit(value, hint, where, TraceError)


@cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The origin and the arguments of a type, and whether it is a dataclass."""
    return get_origin(hint), get_args(hint), is_dataclass(hint)


def _pack(value: Any, hint: Any, where: str, pool: dict[Line, int]) -> Any:
    """A field's value as JSON; lines go to the pool."""
    origin, args, of_fields = _form(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _pack(value, args[0], where, pool)
    if hint is Line:
        with suppress(TypeError):  # of a value that is no line, which is refused below
            if (known := pool.get(value)) is not None:  # a line that is equal to it was checked
                return known
        _pack(fit(value, Line, where, TraceError).refs, tuple[str, ...], f"{where}.refs", pool)
        for name in ("node", "text", "origin", "kind"):
            fit(getattr(value, name), str, f"{where}.{name}", TraceError)
        return pool.setdefault(value, len(pool))
    if of_fields:
        fit(value, hint, where, TraceError)
        return {n: _pack(getattr(value, n), h, f"{where}.{n}", pool) for n, h in hints_of(hint).items()}
    if origin is tuple:
        return [
            _pack(v, h, w, pool) for v, h, w in members(fit(value, tuple, where, TraceError), args, where, TraceError)
        ]
    return _leaf(value, hint, where)
