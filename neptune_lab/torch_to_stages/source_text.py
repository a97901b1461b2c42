"""The text of the user's functions behind the stages, as it is when the function is traced."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from neptune_lab.operators.python_source import PythonFunction, PythonLine
from neptune_lab.torch_to_stages.lines import SourceLine, is_users

_MOST_LINES = 400  # of one function: a longer one is shown from its first traced line on


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines `first` to `last` of a file: a function, or what is known of one."""

    path: str
    first: int
    last: int
    name: str


def python_functions(
    function: Callable[..., Any],
    lines: Mapping[str, SourceLine],
    within: Mapping[str, Iterable[SourceLine]],
    caller: SourceLine | None = None,
) -> tuple[PythonFunction, ...]:
    """The functions whose lines became stages: the traced one first, then those that it calls.

    Args:
        function: the traced function or module.
        lines: the line of each stage, by the stage's name.
        within: the lines of what each stage computes besides, and of their callers, by the stage's name.
        caller: the line that asks for the trace, which is no part of the function: functions of torch have no other.

    Returns:
        One entry per function.  A function inside another one of them is part of that one's text.  A function without a
        text, such as one that `exec` made of a string, has no entry.
    """
    used: dict[SourceLine | None, None] = dict.fromkeys(
        [*lines.values(), *(line for several in within.values() for line in several)]
    )
    used.pop(caller, None)
    parts = [
        part
        for part in (_own_part(function), *(_part_of(line) for line in used if line is not None))
        if part is not None
    ]
    made = _by_line({stage: [line] for stage, line in lines.items()})
    held = _by_line(within)
    found = []
    for part in _without_contained(parts):
        text = [line.rstrip("\r\n") for line in linecache.getlines(part.path)]
        spans = _spans("\n".join(text))
        traced = {n for path, n in {**made, **held} if path == part.path}
        shown = []
        for n in _at_most([n for n in range(part.first, part.last + 1) if n <= len(text)], traced):
            at = _speaking(n, text[n - 1], spans, traced)
            own = tuple(dict.fromkeys(stage for k in at for stage in made.get((part.path, k), ())))
            other = dict.fromkeys(stage for k in at for stage in held.get((part.path, k), ()) if stage not in own)
            shown.append(PythonLine(n, text[n - 1], own, tuple(other)))
        if shown:
            found.append(PythonFunction(f"{part.name} in {_place(part.path)}", tuple(shown)))
    return tuple(found)


def _by_line(lines: Mapping[str, Iterable[SourceLine]]) -> dict[tuple[str, int], list[str]]:
    """The stages of each line, by path and number."""
    found: dict[tuple[str, int], list[str]] = {}
    for stage, several in lines.items():
        for at in dict.fromkeys((line.path, line.line) for line in several):
            found.setdefault(at, []).append(stage)
    return found


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module | None:
    """The tree of a file, which is asked for once per traced line; None if it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=4)
def _spans(text: str) -> list[range]:
    """The lines of each statement that has several and contains no other statement."""
    tree = _parsed(text)
    if tree is None:
        return []
    simple = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not hasattr(n, "body"))
    return [range(n.lineno, n.end_lineno + 1) for n in simple if n.end_lineno and n.end_lineno > n.lineno]


def _speaking(number: int, text: str, spans: Iterable[range], traced: set[int]) -> list[int]:
    """The lines whose stages a line has: its own, else those of its statement, since Python names one line per call."""
    if number in traced or not text.strip() or text.strip().startswith("#"):
        return [number]
    return next(([n for n in span if n in traced] for span in spans if number in span), [number])


def _own_part(function: Callable[..., Any]) -> _Part | None:
    """The traced function itself; None if it has no text."""
    called = type(function).forward if isinstance(function, torch.nn.Module) else function
    try:
        called = inspect.unwrap(called)
        code = getattr(called, "__code__", None) or called.__call__.__code__  # type: ignore[operator]
    except (AttributeError, ValueError):
        return None
    return _part_of(SourceLine(code.co_filename, code.co_firstlineno, code.co_name))


def _part_of(line: SourceLine) -> _Part | None:
    """The innermost function around a line, or the statement of a lambda; the line alone if its file cannot be parsed.

    Returns:
        The part; None if the line has no text.
    """
    text = linecache.getlines(line.path)
    if not is_users(line.path) or line.line > len(text):
        return None
    found = _Part(line.path, line.line, line.line, line.function)
    node: ast.AST | None = _parsed("\n".join([line.rstrip("\r\n") for line in text]))
    if node is None:
        return found
    owner = ""
    while (inner := _child_around(node, line.line)) is not None:
        node = inner
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            owner += inner.name
            found = _Part(line.path, _first(inner), inner.end_lineno or line.line, owner)
            owner += "."
        elif isinstance(inner, ast.ClassDef):
            owner += f"{inner.name}."
        elif isinstance(inner, ast.stmt) and line.function == "<lambda>":
            found = _Part(line.path, inner.lineno, inner.end_lineno or line.line, "lambda")
    return found


def _child_around(node: ast.AST, number: int) -> ast.stmt | None:
    """The statement directly inside another one that contains a line."""
    inside = (child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node)
    return next((c for c in inside if _first(c) <= number <= (c.end_lineno or c.lineno)), None)


def _first(statement: ast.stmt) -> int:
    return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def _without_contained(parts: Iterable[_Part]) -> list[_Part]:
    """Each part once, in order of first use, without those inside another one."""
    each = list(dict.fromkeys(parts))
    return [
        p
        for p in each
        if not any(o is not p and o.path == p.path and o.first <= p.first and p.last <= o.last for o in each)
    ]


def _at_most(numbers: list[int], traced: set[int]) -> list[int]:
    if len(numbers) <= _MOST_LINES:
        return numbers
    first = next((k for k, n in enumerate(numbers) if n in traced), 0)
    return numbers[first : first + _MOST_LINES]


def _place(path: str) -> str:
    """Where a reader finds the text: a file's name and folder, without the rest of the path, or a cell."""
    if path.startswith("<ipython-input") or "ipykernel" in path:
        return "a notebook cell"
    file = Path(path)
    return f"{file.parent.name}/{file.name}" if file.is_absolute() and file.parent.name else file.name
