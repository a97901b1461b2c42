"""The record as JSON and back; every field is checked against its type, both ways."""

from __future__ import annotations

import json
import types
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from neptune_lab.errors import TraceError
from neptune_lab.files import write_text
from neptune_lab.trace.record import SCHEMA, Line, Trace


def to_json(trace: Trace) -> str:
    """The record as JSON.

    Programs repeat a lot from phase to phase, so each distinct line stands once, in `lines`, and a program is a list
    of positions there.
    """
    pool: dict[Line, int] = {}
    packed = _pack(trace, Trace, "trace", pool)
    lines = [[x.node, x.text, x.origin, x.kind, list(x.refs)] for x in pool]
    return json.dumps({**packed, "lines": lines}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Trace:
    """The record that `to_json` wrote; TraceError says what is wrong with any other text."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise TraceError("not a record: it is nested too deeply") from error
    except ValueError as error:
        raise TraceError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or "schema" not in data:
        raise TraceError("not a record: expected an object with a field 'schema'")
    if data["schema"] != SCHEMA or isinstance(data["schema"], bool):
        raise TraceError(
            f"the record has schema {data['schema']!r}, this version reads schema {SCHEMA}",
            help="write the trace again with this version, or read it with the version that wrote it",
        )
    rows = _fit(data.pop("lines", None), list, "trace.lines")
    lines = []
    for n, row in enumerate(rows):
        where = f"trace.lines[{n}]"
        if len(_fit(row, list, where)) != 5:
            raise TraceError(f"{where} has {len(row)} values, expected node, text, origin, kind, refs")
        node, content, origin, kind = (_fit(x, str, where) for x in row[:4])
        lines.append(Line(node, content, origin, kind, tuple(_fit(r, str, where) for r in _fit(row[4], list, where))))
    return _unpack(data, Trace, "trace", lines)


def save(trace: Trace, path: str | Path) -> None:
    """Saves the record to `path`, as UTF-8; FileError where it cannot be written, and a file that was there stays."""
    write_text(path, to_json(trace))


def load_trace(path: str | Path) -> Trace:
    """The record that `save` wrote to `path`; TraceError where there is none."""
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not JSON: not UTF-8 text") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


@lru_cache
def _hints(cls: type) -> dict[str, Any]:
    """The type of every field."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _fit(value: Any, kind: type, where: str) -> Any:
    """`value`, which is of type `kind` (a whole number also counts as a float); else TraceError."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TraceError(f"{where} is {type(value).__name__}, expected {kind.__name__}")
    if kind is float and not isfinite(value):
        raise TraceError(f"{where} is {value}, expected a finite number")
    return value


def _plain(value: Any, where: str) -> Any:
    """A copy of plain JSON, tuples as lists; TraceError where it is not."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _fit(value, float, where)
        case list() | tuple():
            return [_plain(v, f"{where}[{n}]") for n, v in enumerate(value)]
        case dict():
            return {_fit(k, str, f"a key of {where}"): _plain(v, f"{where}.{k}") for k, v in value.items()}
    raise TraceError(f"{where} is {type(value).__name__}, expected plain JSON")


def _members(value: Any, args: tuple[Any, ...], where: str) -> list[tuple[Any, Any, str]]:
    """(value, type, place) of each member of a tuple of the type `tuple[args]`."""
    if args[-1] is Ellipsis:
        return [(v, args[0], f"{where}[{n}]") for n, v in enumerate(value)]
    if len(value) != len(args):
        raise TraceError(f"{where} has {len(value)} values, expected {len(args)}")
    return [(v, a, f"{where}[{n}]") for n, (v, a) in enumerate(zip(value, args, strict=True))]


def _leaf(value: Any, hint: Any, where: str) -> Any:
    """A value that is neither a record nor a tuple."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in args or not isinstance(value, str):
            raise TraceError(f"{where} is {value!r}, expected one of {', '.join(map(repr, args))}")
        return value
    if origin is dict:
        plain = _plain(_fit(value, dict, where), where)
        return plain if args[1] is Any else {k: _fit(v, args[1], f"{where}.{k}") for k, v in plain.items()}
    return _fit(value, hint, where)


def _pack(value: Any, hint: Any, where: str, pool: dict[Line, int]) -> Any:
    """A field's value as JSON; lines go to the pool."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _pack(value, args[0], where, pool)
    if hint is Line:
        _pack(_fit(value, Line, where).refs, tuple[str, ...], f"{where}.refs", pool)
        for name in ("node", "text", "origin", "kind"):
            _fit(getattr(value, name), str, f"{where}.{name}")
        return pool.setdefault(value, len(pool))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        _fit(value, hint, where)
        return {n: _pack(getattr(value, n), h, f"{where}.{n}", pool) for n, h in _hints(hint).items()}
    if origin is tuple:
        return [_pack(v, h, w, pool) for v, h, w in _members(_fit(value, tuple, where), args, where)]
    return _leaf(value, hint, where)


def _unpack(value: Any, hint: Any, where: str, lines: list[Line]) -> Any:
    """A field's value from JSON."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _unpack(value, args[0], where, lines)
    if hint is Line:
        if not 0 <= _fit(value, int, where) < len(lines):
            raise TraceError(f"{where} is line {value}, but the record has {len(lines)} lines")
        return lines[value]
    if is_dataclass(hint):
        assert isinstance(hint, type)
        hints = _hints(hint)
        _fit(value, dict, where)
        for missing in hints.keys() - value.keys():
            raise TraceError(f"{where} has no field {missing!r}")
        for extra in value.keys() - hints.keys():
            raise TraceError(f"{where} has a field {extra!r}, which schema {SCHEMA} does not know")
        return hint(**{n: _unpack(value[n], h, f"{where}.{n}", lines) for n, h in hints.items()})
    if origin is tuple:
        return tuple(_unpack(v, h, w, lines) for v, h, w in _members(_fit(value, list, where), args, where))
    return _leaf(value, hint, where)
