"""The record's types in TypeScript are those of Python's dataclasses."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from front_end import WIDGETS

from neptune_lab.strict.typed import hints_of
from neptune_lab.trace import SCHEMA, record
from neptune_lab.trace.record import Line, Trace

PATH = WIDGETS / "src" / "record_types.ts"
HEAD = """\
// The classes of neptune_lab/trace/record.py as they are in JSON.
// `pytest --update-golden` on tests/widgets/test_record_types.py writes this file.

/** A line of a program, as its position in the record's `lines`. */
export type LineAt = number;
"""
PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", Any: "unknown", type(None): "null"}


def in_typescript(hint: Any) -> str:
    """The type of a field's JSON."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Line:
        return "LineAt"
    if is_dataclass(hint):
        return hint.__name__
    if origin is Literal:
        return " | ".join(map(json.dumps, args))
    if origin in (Union, types.UnionType):
        return " | ".join(map(in_typescript, args))
    if origin is dict:
        return f"Record<string, {in_typescript(args[1])}>"
    if origin is tuple and args[-1] is Ellipsis:
        item = in_typescript(args[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    if origin is tuple:
        return f"[{', '.join(map(in_typescript, args))}]"
    return PLAIN[hint]


def interface(kind: type) -> Iterator[str]:
    """A dataclass as lines of TypeScript."""
    fields = {name: in_typescript(hint) for name, hint in hints_of(kind).items()}
    if kind is Trace:  # what `to_json` writes beside the fields
        pooled = ", ".join(in_typescript(hint) for hint in hints_of(Line).values())
        fields |= {"schema": str(SCHEMA), "lines": f"[{pooled}][]"}
    yield f"\n/** {(inspect.getdoc(kind) or '').splitlines()[0]} */"
    yield f"export interface {kind.__name__} {{"
    yield from (f"  {name}: {text};" for name, text in fields.items())
    yield "}"


def test_the_types_are_those_of_the_dataclasses(request: pytest.FixtureRequest):
    kinds = [kind for kind in vars(record).values() if isinstance(kind, type) and is_dataclass(kind)]
    text = HEAD + "\n".join(line for kind in kinds for line in interface(kind)) + "\n"
    if request.config.getoption("--update-golden"):
        PATH.write_text(text, encoding="utf-8")
    assert PATH.read_text(encoding="utf-8") == text, "pytest --update-golden on this test writes it"
