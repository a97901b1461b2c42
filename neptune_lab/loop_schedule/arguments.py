"""Checks of launch hints, of annotations, and of keyword names; `kinds` checks the arguments of primitives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.annotations import HINTS, SEQUENTIAL
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import INT32_MAX, is_integer
from neptune_lab.target import MOST_STAGES

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Triton takes powers of two. 32 warps are 1024 threads, CUDA's limit for a thread block.
WARPS = (1, 2, 4, 8, 16, 32)

# The keys of `annotate`: launch hints, "sequential" (the loop is not a dimension of a tile), and "note" (free text).
NOTES = (*HINTS, SEQUENTIAL, "note")


def is_count(value: Any) -> bool:
    """Whether a value is an integer from 1 to 2**31 - 1; rejects bool, which Python counts as an int.

    Args:
        value: any value.

    Returns:
        True if it is one.

    >>> [is_count(x) for x in (64, 0, True, 2.0, "64", 2**31)]
    [True, False, False, False, False, False]
    """
    return is_integer(value) and 0 < value <= INT32_MAX


def check_hint(key: str, value: Any, where: str) -> None:
    """Checks a launch hint.

    Args:
        key: "num_warps" or "num_stages"; other keys are not checked.
        value: the hint's value: warps per program, a power of two from 1 to 32; or pipeline stages, from 1 to 16.
        where: the call that sets the hint, for the message.

    Raises:
        ScheduleError: no kernel can be launched with this value.
    """
    if key == "num_warps" and not (is_count(value) and value in WARPS):
        raise ScheduleError(
            f"{where}: num_warps={shown(value)}, expected a power of two from 1 to 32",
            help="4 or 8 suit most tiles; a warp is 32 threads, and a block has 1024 at most",
        )
    if key == "num_stages" and not (is_count(value) and value <= MOST_STAGES):
        raise ScheduleError(
            f"{where}: num_stages={shown(value)}, expected a positive integer of at most {MOST_STAGES}",
            help="1 loads each tile when it is needed, 2 to 4 load ahead",
        )


def check_note(key: str, value: Any, where: str) -> None:
    """Checks an annotation of a loop.

    Args:
        key: one of `NOTES`.
        value: 1 for "sequential"; for a launch hint as in `check_hint`; for "note" any value.
        where: the call that annotates, for the message.

    Raises:
        ScheduleError: there is no such key, or the key cannot have this value.
    """
    if key not in NOTES:
        raise ScheduleError(f"{where}: there is no annotation {key!r}", help=nearest(key, list(NOTES), "annotations"))
    if key == SEQUENTIAL and value != 1:
        raise ScheduleError(f"{where}: sequential={value!r}, expected 1", help="omit the value")
    check_hint(key, value, where)


def closed_fields(cls: type[T]) -> type[T]:
    """Makes a dataclass of options raise ScheduleError, with its fields in the help, for a keyword that is not one of
    them, and print only the fields that differ from their defaults.

    Args:
        cls: a dataclass, all of whose fields have defaults.

    Returns:
        The same class; its `__init__` and `__repr__` are replaced.

    Raises:
        ScheduleError: an instance is made with an unknown keyword.

    >>> from dataclasses import dataclass
    >>> @closed_fields
    ... @dataclass(frozen=True)
    ... class Size:
    ...     rows: int = 1
    ...     cols: int = 1
    >>> Size(rows=2)
    Size(rows=2)
    >>> Size(row=2)
    Traceback (most recent call last):
    neptune_lab.errors.ScheduleError: Size has no field 'row'
      help: did you mean 'rows'? The fields: rows, cols
    >>> inspect.signature(Size)
    <Signature (rows: 'int' = 1, cols: 'int' = 1)>
    """
    made = cls.__init__
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]

    @wraps(made)
    def __init__(self: T, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in names:
                raise ScheduleError(f"{cls.__name__} has no field {name!r}", help=nearest(name, names, "fields"))
        made(self, *args, **given)

    def __repr__(self: T) -> str:
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]  # type: ignore[arg-type]
        # True equals 1: the text is the key of a cache, so it tells them apart.
        differing = [f"{name}={value!r}" for name, value, usual in values if repr(value) != repr(usual)]
        return f"{type(self).__name__}({', '.join(differing)})"

    cls.__init__, cls.__repr__ = __init__, __repr__
    # `help` would show the signature of `__new__`, if there is one.
    _, *own = inspect.signature(made).parameters.values()
    cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return cls


def closed_arguments(places: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function raise ScheduleError for a keyword that is not one of its parameters.

    Type checkers still see the function's own signature.

    Args:
        places: for names that are fields of a class instead: the name, and the argument that takes the class, such as
            "config=nl.TileConfig". The error's help shows it.

    Returns:
        A decorator.

    Raises:
        ScheduleError: the decorated function is called with an unknown keyword.
    """

    def closed(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name not in names:
                    where = places.get(name)
                    raise ScheduleError(
                        f"{function.__name__} has no argument {name!r}",
                        help=nearest(name, list(dict.fromkeys([*names, *places])), "arguments and fields")
                        if where is None
                        else f"give it as a field: {where}({name}=…)",
                    )
            return function(*args, **given)

        return call

    return closed
