"""Declaring a primitive: a decorated function whose parameters have kinds. All that is known of it is read from there.

    @primitive(ours=True, makes="one", made="The loop, by its new name.")
    def rename_loop(program: Program, *, loop: LoopRef, name: NewName) -> Outcome:

The function takes a program and keyword arguments, and gives an `Outcome`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.cut_loops import CutLoop, Cutting, NewSize, ResizedLoop
from neptune_lab.loop_schedule.kinds import FORMULA, Kind
from neptune_lab.loop_schedule.outcome import Outcome

_Apply = TypeVar("_Apply", bound=Callable[..., Outcome])

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a primitive: its name, its kind, and its default (`REQUIRED` where there is none)."""

    name: str
    kind: Kind
    default: Any = REQUIRED

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive: `apply(program, **arguments) -> Outcome`.

    Args:
        name: of the step and of `Schedule`'s method.
        apply: the function itself.
        ours: TVM has none like it.
        summary: the first line of its docstring.
        parameters: what it takes after the program, in order.
        after: the primitive that lists show it after; default: those of TVM and those of Neptune, each by name.
        makes: how many of the names that were made the method returns: "nothing", "one" or "several".
        made: what they name, for the method's docstring.
        same_values: after it every value and every loop is what it was.
        silent: no program and no kernel depends on it: it is for readers.
        partial: it makes partial results of a reduction along its argument `loop`.
    """

    name: str
    apply: Callable[..., Outcome]
    ours: bool
    summary: str
    parameters: tuple[Parameter, ...]
    after: str | None = None
    makes: Literal["nothing", "one", "several"] = "nothing"
    made: str = ""
    same_values: bool = False
    silent: bool = False
    partial: bool = False

    def parameter(self, name: str) -> Parameter | None:
        """The parameter called `name`, if there is one."""
        return next((p for p in self.parameters if p.name == name), None)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ScheduleError where an argument is unknown, missing, or not of its kind."""
        known = [p.name for p in self.parameters]
        for argument in arguments:
            if argument not in known:
                raise ScheduleError(
                    f"{self.name} has no argument {argument!r}", help=nearest(argument, known, "arguments")
                )
        missing = [p.name for p in self.parameters if p.required and p.name not in arguments]
        if missing:
            raise ScheduleError(
                f"{self.name} needs the argument {missing[0]!r}", help=f"its arguments: {', '.join(known)}"
            )
        for p in self.parameters:
            if p.name in arguments and not (p.default is None and arguments[p.name] is None):
                p.kind.check(self.name, p.name, arguments[p.name])

    def blocks(self, arguments: Mapping[str, Any]) -> list[str]:
        """The blocks that the arguments name."""
        named = [p.kind.block_of(arguments[p.name]) for p in self.parameters if p.name in arguments]
        return [name for name in named if name is not None]

    @property
    def repairs(self) -> bool:
        """Whether it derives repair terms: such a primitive also takes one."""
        return any(p.kind is FORMULA for p in self.parameters)

    def is_silent(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a step with these arguments changes no number: a remark, or a hint for the launch."""
        return self.silent or any(arguments.get(p.name) in p.kind.silent for p in self.parameters)

    # -- loops that are cut --------------------------------------------------------------------------------

    def _cutting(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, Cutting]]:
        """Each argument that cuts loops: its name, its value, where, and how."""
        for p in self.parameters:
            if p.kind.cutting is not None and p.name in arguments:
                for place in self.parameters:
                    if place.kind.control == p.kind.cutting.at and place.name in arguments:
                        yield p.name, arguments[p.name], arguments[place.name], p.kind.cutting
                        break

    def cut_loops(self, arguments: Mapping[str, Any]) -> list[CutLoop]:
        """The loops that a step with these arguments cuts."""
        return [cut for _, value, at, how in self._cutting(arguments) for cut in how.loops(value, at)]

    def without_sizes(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments but for those that say how loops are cut."""
        cutting = {name for name, *_ in self._cutting(arguments)}
        return {name: value for name, value in arguments.items() if name not in cutting}

    def with_sizes(self, arguments: Mapping[str, Any], new: NewSize) -> dict[str, Any]:
        """The arguments with each size replaced."""
        changed = {name: how.with_sizes(value, at, new) for name, value, at, how in self._cutting(arguments)}
        return {**arguments, **changed}

    def resized(self, arguments: Mapping[str, Any], loop: ResizedLoop) -> dict[str, Any]:
        """The arguments for loops with other extents."""
        changed = {name: how.resized(value, at, loop) for name, value, at, how in self._cutting(arguments)}
        return {**arguments, **changed}


def primitive(
    *,
    ours: bool = False,
    after: str | None = None,
    makes: Literal["nothing", "one", "several"] = "nothing",
    made: str = "",
    same_values: bool = False,
    silent: bool = False,
    partial: bool = False,
) -> Callable[[_Apply], _Apply]:
    """Declares a function as a primitive; see `Primitive` for the arguments. The function stays as it is.

    Raises:
        TypeError: a parameter has no kind.
    """

    def declare(apply: _Apply) -> _Apply:
        summary = (inspect.getdoc(apply) or "").split("\n")[0]
        parameters = tuple(_parameters(apply))
        declaration = Primitive(
            *(apply.__name__, apply, ours, summary, parameters, after, makes, made, same_values, silent, partial)
        )
        apply.primitive = declaration  # type: ignore[attr-defined]
        return apply

    return declare


def _parameters(apply: Callable[..., Outcome]) -> list[Parameter]:
    hints = get_type_hints(apply, include_extras=True)
    return [
        Parameter(name, _kind(apply, name, hints.get(name)), p.default)
        for name, p in list(inspect.signature(apply).parameters.items())[1:]
    ]


def _kind(apply: Callable[..., Outcome], name: str, hint: Any) -> Kind:
    """The kind in an annotation such as `LoopRef` or `Formula | None`."""
    for part in (hint, *get_args(hint)):
        for extra in getattr(part, "__metadata__", ()):
            if isinstance(extra, Kind):
                return extra
    raise TypeError(
        f"primitive {apply.__name__}: parameter {name!r} has no kind; annotate it with a type of "
        "neptune_lab.loop_schedule.kinds"
    )


def declared(module: Any) -> list[Primitive]:
    """The primitives that a module declares, in its order."""
    functions = [f for f in vars(module).values() if getattr(f, "__module__", None) == module.__name__]
    return [f.primitive for f in functions if isinstance(getattr(f, "primitive", None), Primitive)]


__all__ = ["REQUIRED", "Parameter", "Primitive", "declared", "primitive"]
