"""Schedules as text and back: `sch.tile("qk", i=128, j=64)`, one call per line, read by Python's parser and never run.

Only expression statements are taken, each a call of a primitive on `sch` with literal arguments, positional or by
name as the methods of `nl.Schedule` take them, or of a template, `nl.templates.rolling_update(sch, block_q=128)`,
which stands for the steps that it makes.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.strict.console import class_of

if TYPE_CHECKING:
    from neptune_lab.loop_schedule import Primitive, Step

# More text than this is no schedule.
MAX_CHARACTERS = 100_000


class ScheduleTextError(ScheduleError):
    """A line that is not a schedule call; `line` and `column` count from 1."""

    def __init__(self, message: str, *, line: int, column: int = 1, help: str | None = None) -> None:
        super().__init__(message, help=help)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class ParsedStep:
    """A step, the line that it stands on (of a template, the template's), and the template that it is of."""

    step: Step
    line: int
    template: str = ""


# Given the steps so far, a template's name and its options: the steps that it adds.
Expand = Callable[[list[ParsedStep], str, dict[str, Any]], Iterable["Step"]]


def to_text(steps: Iterable[Step]) -> str:
    """A line a step, as one pastes it into a notebook."""
    return "".join(f"sch.{step}\n" for step in steps)


def parse(text: str, expand: Expand | None = None) -> tuple[ParsedStep, ...]:
    """The steps that a text writes down.

    Args:
        text: calls on `sch`; comments and blank lines are free.
        expand: what makes steps of a template's call; without it such a call is refused.

    Raises:
        ScheduleTextError: with line, column, and what to write instead.
    """
    if len(text) > MAX_CHARACTERS:
        raise ScheduleTextError(f"{len(text):,} characters are too long for a schedule", line=1)
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ScheduleTextError(
            f"not Python: {error.msg}", line=error.lineno or 1, column=error.offset or 1, help=_EXAMPLE
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScheduleTextError(f"this cannot be read as Python: {error}", line=1, help=_EXAMPLE) from error
    found: list[ParsedStep] = []
    for statement in module.body:
        _read(statement, found, expand)
    return tuple(found)


_EXAMPLE = 'write one call per line, such as sch.tile("qk", i=128, j=64)'


def _read(statement: ast.stmt, found: list[ParsedStep], expand: Expand | None) -> None:
    """One statement's steps, appended to `found`."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        raise _error(statement, "only schedule calls are read here, and nothing is executed", _EXAMPLE)
    call = statement.value
    match call.func:
        case ast.Attribute(ast.Name("sch"), name):
            found.append(ParsedStep(_step(call, name), call.lineno))
        case ast.Attribute(ast.Attribute(ast.Name(), "templates") | ast.Name("templates"), name):
            from neptune_lab import templates

            if name not in templates.TEMPLATES:
                raise _error(call, f"there is no template {name!r}", _nearest(name, templates.TEMPLATES))
            if expand is None:
                raise _error(call, "a template cannot be used here", "write its steps")
            if not (len(call.args) == 1 and isinstance(call.args[0], ast.Name) and call.args[0].id == "sch"):
                raise _error(call, f"{name} takes sch first, then options by name", f"nl.templates.{name}(sch)")
            sizes = _sizes(call)
            try:
                found += [ParsedStep(step, call.lineno, name) for step in expand(list(found), name, sizes)]
            except NeptuneError as error:
                raise _error(call, f"{name}: {error.reason}", error.help) from error
        case _:
            raise _error(call, f"{ast.unparse(call.func)[:60]} is not a schedule call", _EXAMPLE)


def _sizes(call: ast.Call) -> dict[str, Any]:
    """The arguments of a template: values by name, and `config=nl.TileConfig(...)` or `nl.SplitKConfig(...)`."""
    from neptune_lab.loop_schedule.templates import CONFIGS

    kinds = {kind.__name__: kind for kind in CONFIGS.values()}
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        match keyword:
            case ast.keyword("config", ast.Call(ast.Name(kind) | ast.Attribute(ast.Name(), kind), []) as made) if (
                kind in kinds
            ):
                try:
                    named["config"] = kinds[kind](**_keywords(made))
                except NeptuneError as error:
                    raise _error(made, error.reason, error.help) from error
            case ast.keyword("config", value):
                raise _error(value, f"config is none of {', '.join(kinds)}", "config=nl.TileConfig(num_warps=8)")
            case ast.keyword(None, value):
                raise _error(value, "write the arguments out, without **")
            case ast.keyword(str(name), value):
                named[name] = _literal(value)
    return named


def _step(call: ast.Call, name: str) -> Step:
    from neptune_lab.loop_schedule import PRIMITIVES, Step

    if name not in PRIMITIVES:
        raise _error(call, f"there is no primitive {name!r}", _nearest(name, PRIMITIVES))
    primitive = PRIMITIVES[name]
    known = {p.name: p.required for p in primitive.parameters}
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            raise _error(argument, "write the arguments out, without *")
    arguments = _bound(call, primitive, [_literal(a) for a in call.args], *_named(call))
    for key, value in arguments.items():
        if key not in known:
            where = next((k for k in call.keywords if k.arg == key), call)
            raise _error(where, f"{name} has no argument {key!r}", _nearest(key, known))
        _plain(call, key, value)
    for key, required in known.items():
        if required and key not in arguments:
            raise _error(call, f"{name} needs the argument {key!r}", f"its arguments: {', '.join(known)}")
    return Step.of(name, **{key: arguments[key] for key in known if key in arguments})


def _named(call: ast.Call) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments by name, and those of `**{'is': 64}`: loops whose names are Python's or the primitive's own."""
    unpacked: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Dict):
            unpacked |= _literal(keyword.value)
    twice = [name for name in unpacked if any(k.arg == name for k in call.keywords)]
    if twice:
        raise _error(call, f"{ast.unparse(call.func)[:60]} has {twice[0]!r} twice")
    rest = [k for k in call.keywords if k.arg is not None or not isinstance(k.value, ast.Dict)]
    return _keywords(ast.Call(call.func, call.args, rest)), unpacked


def _bound(
    call: ast.Call, primitive: Primitive, given: list[Any], named: dict[str, Any], unpacked: dict[str, Any]
) -> dict[str, Any]:
    """Positional arguments under their names, as Schedule's method of the same name takes them."""
    name, known = primitive.name, [p.name for p in primitive.parameters]
    if unpacked and all(p.kind.passed_as != "named" for p in primitive.parameters):
        raise _error(next(k.value for k in call.keywords if k.arg is None), "write the arguments out, without **")
    several = next((p.name for p in primitive.parameters if p.kind.passed_as == "several"), None)
    sizes = next((p.name for p in primitive.parameters if p.kind.passed_as == "named"), None)
    positions = known
    if several is not None:
        positions = known[: known.index(several)]
    elif sizes is not None:
        positions = known[: known.index(sizes)]
        by_loop = {k: named.pop(k) for k in list(named) if k not in known} | unpacked
        if by_loop and sizes in named:
            raise _error(call, f"give {sizes}={{…}} or sizes by loop name, not both")
        if by_loop:
            named = {**named, sizes: by_loop}
    arguments = dict(zip(positions, given, strict=False))
    rest = given[len(positions) :]
    if rest and several is not None:
        arguments[several] = rest
    elif rest:
        raise _error(call, f"{name} takes {len(positions)} arguments by position, got {len(given)}", ", ".join(known))
    for key in named:
        if key in arguments:
            raise _error(call, f"{name} has {key!r} twice")
    return {**arguments, **named}


def _keywords(call: ast.Call) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _error(keyword.value, "write the arguments out, without **")
        named[keyword.arg] = _literal(keyword.value)
    return named


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        shown = ast.unparse(node)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
        raise _error(
            node, f"{shown} is not a plain value", 'write a string, a number, None, or a tuple of them: "qk.j0", 64'
        ) from error


def _plain(call: ast.Call, key: str, value: Any) -> None:
    """The value is made of strings, numbers, None, lists, tuples, and mappings with string keys."""
    match value:
        case None | bool() | int() | float() | str():
            return
        case list() | tuple():
            for item in value:
                _plain(call, key, item)
        case dict() if all(isinstance(k, str) for k in value):
            for item in value.values():
                _plain(call, key, item)
        case _:
            raise _error(call, f"{key} is {class_of(value)}, which no step takes")


def _nearest(name: str, known: Iterable[str] | Mapping[str, Any]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"one of {', '.join(names)}"


def _error(node: ast.stmt | ast.expr | ast.keyword, message: str, help: str | None = None) -> ScheduleTextError:
    return ScheduleTextError(message, line=node.lineno, column=node.col_offset + 1, help=help)


__all__ = ["ParsedStep", "ScheduleTextError", "parse", "to_text"]
