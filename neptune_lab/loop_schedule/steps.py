"""Steps: primitives with their arguments as plain data, which can be saved, edited, printed as calls and replayed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.declare import Primitive
from neptune_lab.loop_schedule.primitives import PRIMITIVES
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import MIB
from neptune_lab.strict.json_text import parse
from neptune_lab.strict.typed import Name, unpack
from neptune_lab.strict.values import is_name

# The longest JSON text of steps that is read, in bytes.
MOST_BYTES = 4 * MIB
_NOT_JSON = "pass the text of Schedule.to_json(); that of to_python() is Python code, to run where sch is a Schedule"


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive with its arguments as plain data, which can be saved, edited and replayed.

    Args:
        primitive: the primitive's name.
        arguments: (name, value) of each argument. Values are hashable: `Step.of` replaces lists by tuples, and dicts by
            a tuple of (key, value) that counts as a dict.

    Raises:
        ScheduleError: it is not of that form.
    """

    primitive: str
    arguments: tuple[tuple[str, Any], ...]

    def __post_init__(self) -> None:
        pairs = self.arguments if isinstance(self.arguments, tuple) else (None,)
        named = all(isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) for x in pairs)
        if not (isinstance(self.primitive, str) and named):
            raise ScheduleError(
                f"Step({shown(self.primitive)}, {shown(self.arguments)}): expected a name and a tuple of (name, value)",
                help="write Step.of('split', loop='s_max.j', factors=(None, 2))",
            )

    def as_record(self) -> dict[str, Any]:
        """The step as data for JSON.

        Returns:
            A dictionary with the keys "primitive" and "arguments".
        """
        return {"primitive": self.primitive, "arguments": self.plain_arguments()}

    def plain_arguments(self) -> dict[str, Any]:
        """The arguments as the primitive takes them.

        Returns:
            The arguments by name, with lists and dicts in place of the step's tuples.
        """
        return {k: _thawed(v) for k, v in self.arguments}

    @staticmethod
    def of(primitive: str, /, **arguments: Any) -> Step:
        """A step from keyword arguments.

        Args:
            primitive: the primitive's name.
            arguments: its arguments; they are checked when the step is applied.

        Returns:
            The step.
        """
        return Step(primitive, tuple((k, _frozen(v)) for k, v in arguments.items()))

    def __str__(self) -> str:
        """The step as a call of `Schedule`'s method: `tile('qk', i=64, j=64)`."""
        known = PRIMITIVES.get(self.primitive)
        parts: list[str] = []
        for key, value in self.arguments:
            parameter = known.parameter(key) if known else None
            match parameter.kind.passed_as if parameter else "name":
                case "position":
                    parts.append(_python(value))
                case "several" if isinstance(value, tuple):
                    parts += [_python(x) for x in value]
                case "named" if known is not None and isinstance(value, _Frozen):
                    parts += _named(dict(value), {p.name for p in known.parameters})
                case _:
                    parts.append(f"{key}={_python(value)}")
        return f"{self.primitive}({', '.join(parts)})"


def _named(values: Mapping[str, Any], own: Collection[str]) -> list[str]:
    """Values by the names of loops as arguments of a call: `i=64`, or `**{'is': 64}` where a loop has a name that
    Python or the primitive has for something else."""
    first = next((n for n, k in enumerate(values) if not is_name(k) or k in own), len(values))
    parts = [f"{k}={_python(v)}" for k, v in values.items()]
    rest = {k: _thawed(v) for k, v in [*values.items()][first:]}  # all that follow it: the order of loops counts
    return [*parts[:first], *([f"**{rest!r}"] if rest else [])]


def call(primitive: Primitive, arguments: Mapping[str, Any]) -> Step:
    """The step of a call of `Schedule`'s method.

    Args:
        primitive: the primitive.
        arguments: every argument of the call by name, defaults included.

    Returns:
        The step. Optional arguments that equal their defaults are left out, unless their kind is explicit.
    """
    given: dict[str, Any] = {}
    for p in primitive.parameters:
        value = p.kind.of_step(arguments[p.name])
        if p.required or p.kind.explicit or type(value) is not type(p.default) or value != p.default:
            given[p.name] = value
    return Step.of(primitive.name, **given)


def as_step(step: object, arguments: Mapping[str, Any]) -> Step:
    """The step that `Schedule.apply` takes: a Step alone, or the name of a primitive with arguments; ScheduleError
    otherwise."""
    if isinstance(step, str):
        return Step.of(step, **arguments)
    if not isinstance(step, Step):
        raise ScheduleError(
            f"{shown(step)} is not a Step",
            help="a step is an item of sch.steps, or written sch.apply('split', loop='s_max.j', factors=(None, 2))",
        )
    if arguments:
        raise ScheduleError(f"{step} is a whole step; got {', '.join(arguments)} as well", help="pass the step alone")
    return step


@dataclass(frozen=True, slots=True)
class _Written:
    """A step as JSON has it."""

    primitive: Name
    arguments: dict[Name, Any]


def steps_of(text: str) -> list[Step]:
    """Reads the JSON of `Schedule.to_json`.

    Args:
        text: a JSON list of {"primitive": …, "arguments": {…}}, of at most `MOST_BYTES`.

    Returns:
        The steps, in order. Whether the primitives and their arguments exist is checked when a step is applied.

    Raises:
        ScheduleError: the text is something else, or too long.
    """
    try:
        written = unpack(parse(text, ScheduleError, most=MOST_BYTES), tuple[_Written, ...], "steps", ScheduleError)
    except ScheduleError as error:
        raise ScheduleError(f"this is not a list of steps: {error.reason}", help=_NOT_JSON) from error
    return [Step.of(step.primitive, **step.arguments) for step in written]


class _Frozen(tuple[tuple[str, Any], ...]):
    """The items of a dict, which a list of pairs would equal otherwise."""

    __slots__ = ()


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return _Frozen((k, _frozen(v)) for k, v in value.items())
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, _Frozen):
        return {k: _thawed(v) for k, v in value}
    return [_thawed(v) for v in value] if isinstance(value, tuple) else value


def _python(value: Any) -> str:
    return repr(_thawed(value)) if isinstance(value, tuple) else repr(value)


__all__ = ["Step", "as_step", "call", "steps_of"]
