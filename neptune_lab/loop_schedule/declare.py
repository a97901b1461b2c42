"""Declares primitives: a primitive is a decorated function, and the type of each of its parameters has a kind.

    @primitive(ours=True, makes="one", made="The loop, by its new name.")
    def rename_loop(program: Program, *, loop: LoopRef, name: NewName) -> Outcome:

The function takes a program and keyword arguments, and returns an `Outcome`. The declaration is the only description of
a primitive: its method of `Schedule`, the checks of its arguments, the editor and the documentation read it.
"""

from __future__ import annotations

import inspect
import re
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
    """A parameter of a primitive: its name, its kind, and its default (`REQUIRED` if it has none)."""

    name: str
    kind: Kind
    default: Any = REQUIRED

    @property
    def required(self) -> bool:
        """Whether a call must pass it."""
        return self.default is REQUIRED


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive: `apply(program, **arguments) -> Outcome`.

    Args:
        name: the name of the step and of `Schedule`'s method.
        apply: the decorated function.
        ours: whether it is Neptune's; TVM has no such primitive.
        summary: the first line of the function's docstring.
        parameters: the parameters after the program, in order.
        after: the name of the primitive that it follows in lists; None: it is sorted by name, TVM's primitives before
            Neptune's.
        makes: what the method returns: "nothing", the "one" name that the step created, or "several" names.
        made: what these names are, for the Returns of the method's docstring.
        same_values: whether the step keeps every loop, and every value at every iteration.
        silent: whether the step is only for readers, and has no effect on the program or its kernels.
        partial: whether it makes partial results of a reduction along its argument `loop`.
        normalises: whether it rewrites stages of the definition, before any loop is changed.
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
    normalises: bool = False

    def about(self) -> dict[str, str]:
        """What the function's docstring says of its arguments, by name."""
        said: dict[str, str] = {}
        name = ""
        for line in (inspect.getdoc(self.apply) or "").partition("\nArgs:\n")[2].splitlines():
            if not line.startswith("    "):
                break
            if entry := re.fullmatch(r"    (\w+): (.*)", line):
                name, said[entry[1]] = entry.groups()
            else:
                said[name] += f" {line.strip()}"
        return said

    def parameter(self, name: str) -> Parameter | None:
        """The parameter called `name`.

        Args:
            name: the name of a parameter.

        Returns:
            The parameter; None if there is none of that name.
        """
        return next((p for p in self.parameters if p.name == name), None)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Checks the arguments of a step. None is accepted for a parameter whose default is None.

        Args:
            arguments: the arguments by name.

        Raises:
            ScheduleError: an argument is unknown, missing, or not of its kind.
        """
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
        """The blocks that the arguments name, alone or as part of a loop's name.

        Args:
            arguments: the arguments by name, checked.

        Returns:
            The names of the blocks, in the order of the parameters; a block may occur twice.
        """
        named = [p.kind.block_of(arguments[p.name]) for p in self.parameters if p.name in arguments]
        return [name for name in named if name is not None]

    @property
    def repairs(self) -> bool:
        """Whether it derives repair terms, i.e. has a parameter for a repair term that the user gives."""
        return any(p.kind is FORMULA for p in self.parameters)

    def is_silent(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a step with these arguments cannot change any number.

        Args:
            arguments: the arguments by name, checked.

        Returns:
            True for a remark and for a launch hint.
        """
        return self.silent or any(arguments.get(p.name) in p.kind.silent for p in self.parameters)

    # -- loops that are cut --------------------------------------------------------------------------------

    def _cutting(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, Cutting]]:
        """Each argument that cuts loops: its name, its value, the loop or block to cut, and its kind's `cutting`."""
        for p in self.parameters:
            if p.kind.cutting is not None and p.name in arguments:
                for place in self.parameters:
                    if place.kind.control == p.kind.cutting.at and place.name in arguments:
                        yield p.name, arguments[p.name], arguments[place.name], p.kind.cutting
                        break

    def cut_loops(self, arguments: Mapping[str, Any]) -> list[CutLoop]:
        """The loops that a step with these arguments cuts.

        Args:
            arguments: the arguments by name, checked.

        Returns:
            Each loop with its new sizes, in iterations.
        """
        return [cut for _, value, at, how in self._cutting(arguments) for cut in how.loops(value, at)]

    def without_sizes(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments other than sizes.

        Args:
            arguments: the arguments by name, checked.

        Returns:
            The arguments by name, without those that say how loops are cut.
        """
        cutting = {name for name, *_ in self._cutting(arguments)}
        return {name: value for name, value in arguments.items() if name not in cutting}

    def with_sizes(self, arguments: Mapping[str, Any], new: NewSize) -> dict[str, Any]:
        """The arguments with each size replaced.

        Args:
            arguments: the arguments by name, checked.
            new: the new size, given the loop as "block.loop" and the present size, both in iterations.

        Returns:
            All arguments by name.
        """
        changed = {name: how.with_sizes(value, at, new) for name, value, at, how in self._cutting(arguments)}
        return {**arguments, **changed}

    def resized(self, arguments: Mapping[str, Any], loop: ResizedLoop) -> dict[str, Any]:
        """The arguments of the same step for loops with other extents.

        Args:
            arguments: the arguments by name, checked.
            loop: the old and the new extent of a loop, given as "block.loop".

        Returns:
            All arguments by name.
        """
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
    normalises: bool = False,
) -> Callable[[_Apply], _Apply]:
    """Declares a function as a primitive.

    Args:
        ours, after, makes, made, same_values, silent, partial, normalises: as in `Primitive`.

    Returns:
        A decorator. It returns the function itself, with the declaration as its attribute `primitive`.

    Raises:
        TypeError: a parameter's annotation has no kind (raised by the decorator).
    """

    def declare(apply: _Apply) -> _Apply:
        summary = (inspect.getdoc(apply) or "").split("\n")[0]
        parameters = tuple(_parameters(apply))
        declaration = Primitive(
            *(apply.__name__, apply, ours, summary, parameters, after, makes, made, same_values, silent, partial),
            normalises,
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
    """The primitives that a module declares.

    Args:
        module: an imported module; primitives that it imports do not count.

    Returns:
        The primitives, in the order of the module's text.
    """
    functions = [f for f in vars(module).values() if getattr(f, "__module__", None) == module.__name__]
    return [f.primitive for f in functions if isinstance(getattr(f, "primitive", None), Primitive)]


__all__ = ["REQUIRED", "Parameter", "Primitive", "declared", "primitive"]
