"""Steps: a primitive with plain arguments, as data that can be saved, edited, written as a call and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_schedule.declare import Primitive
from neptune_lab.loop_schedule.primitives import PRIMITIVES
from neptune_lab.strict.files import MIB
from neptune_lab.strict.json_text import parse
from neptune_lab.strict.typed import Name, unpack

# Bytes of a file of steps.
MOST_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive with plain arguments: data, so that it can be written down, edited and replayed."""

    primitive: str
    arguments: tuple[tuple[str, Any], ...]

    def as_record(self) -> dict[str, Any]:
        """JSON form: {"primitive": …, "arguments": {…}}."""
        return {"primitive": self.primitive, "arguments": self.plain_arguments()}

    def plain_arguments(self) -> dict[str, Any]:
        """The arguments by name, with lists and dicts where the step holds tuples."""
        return {k: _thawed(v) for k, v in self.arguments}

    @staticmethod
    def of(primitive: str, **arguments: Any) -> Step:
        """A step from keyword arguments; lists become tuples."""
        return Step(primitive, tuple((k, _frozen(v)) for k, v in arguments.items()))

    def __str__(self) -> str:
        """The call that makes this step, as one writes it: `tile('qk', i=64, j=64)`."""
        known = PRIMITIVES.get(self.primitive)
        parts: list[str] = []
        for key, value in self.arguments:
            parameter = known.parameter(key) if known else None
            match parameter.kind.passed_as if parameter else "name":
                case "position":
                    parts.append(_python(value))
                case "several" if isinstance(value, tuple):
                    parts += [_python(x) for x in value]
                case "named" if _is_mapping(value):
                    parts += [f"{x[0]}={_python(x[1])}" for x in value]
                case _:
                    parts.append(f"{key}={_python(value)}")
        return f"{self.primitive}({', '.join(parts)})"


def call(primitive: Primitive, arguments: Mapping[str, Any]) -> Step:
    """The step of a call of `Schedule`'s method, with every argument by its name.

    Arguments that have their default are left out, unless their kind is explicit.
    """
    given: dict[str, Any] = {}
    for p in primitive.parameters:
        value = p.kind.of_step(arguments[p.name])
        if p.required or p.kind.explicit or value != p.default:
            given[p.name] = value
    return Step.of(primitive.name, **given)


@dataclass(frozen=True, slots=True)
class _Written:
    """A step in a file."""

    primitive: Name
    arguments: dict[Name, Any]


def steps_of(text: str) -> list[Step]:
    """The steps in the JSON of `Schedule.to_json`.

    Raises:
        ScheduleError: the text is something else, or too long.
    """
    try:
        found = unpack(parse(text, ScheduleError, most=MOST_BYTES), tuple[_Written, ...], "steps", ScheduleError)
    except ScheduleError as error:
        raise ScheduleError(f"this is not a list of steps: {error.reason}", help="use Schedule.to_json") from error
    return [Step.of(written.primitive, **written.arguments) for written in found]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def _is_mapping(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(x, tuple) and len(x) == 2 for x in value)


def _thawed(value: Any) -> Any:
    if _is_mapping(value):
        return {k: _thawed(v) for k, v in value}
    return [_thawed(v) for v in value] if isinstance(value, tuple) else value


def _python(value: Any) -> str:
    return repr(_thawed(value)) if isinstance(value, tuple) else repr(value)


__all__ = ["Step", "call", "steps_of"]
