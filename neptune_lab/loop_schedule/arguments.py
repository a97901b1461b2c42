"""Launch hints, notes, and closed lists of arguments, checked before anything is done; `kinds` has primitives'."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import is_integer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Triton launches powers of two; 32 warps are 1024 threads, CUDA's limit on a block.
WARPS = (1, 2, 4, 8, 16, 32)
# Tiles that Triton may load ahead; each takes shared memory, of which no GPU has enough for more.
MOST_STAGES = 16

# Hints for the launch: they change no number.
HINTS = ("num_warps", "num_stages")
# What `annotate` may say of a loop: hints for the launch, that the loop is no dimension of a tile, and words.
NOTES = (*HINTS, "sequential", "note")

# The largest integer that a loop variable of the programs holds.
INT32_MAX = 2**31 - 1


def is_count(value: Any) -> bool:
    """A positive int of at most 32 bits; rejects bool, which Python counts as an int.

    >>> [is_count(x) for x in (64, 0, True, 2.0, "64", 2**31)]
    [True, False, False, False, False, False]
    """
    return is_integer(value) and 0 < value <= INT32_MAX


def check_hint(key: str, value: Any, where: str) -> None:
    """Raise ScheduleError where a launch hint, "num_warps" or "num_stages", is none that a kernel can be launched with.

    Args:
        where: what the hint is given to, for the message.
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
    """Raise ScheduleError where a note on a loop is none of `NOTES`, or has a value that it cannot have.

    Args:
        where: what is annotated, for the message.
    """
    if key not in NOTES:
        raise ScheduleError(f"{where}: there is no annotation {key!r}", help=nearest(key, list(NOTES), "annotations"))
    if key == "sequential" and value != 1:
        raise ScheduleError(f"{where}: sequential={value!r}, expected 1", help="omit the value")
    check_hint(key, value, where)


def closed_fields(cls: type[T]) -> type[T]:
    """A dataclass that refuses a keyword which is none of its fields with a ScheduleError, which names those it has.

    >>> from dataclasses import dataclass
    >>> @closed_fields
    ... @dataclass(frozen=True)
    ... class Size:
    ...     rows: int = 1
    >>> Size(row=2)
    Traceback (most recent call last):
    neptune_lab.errors.ScheduleError: Size has no field 'row'
      help: did you mean 'rows'? The fields: rows
    """
    made = cls.__init__
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]

    @wraps(made)
    def __init__(self: T, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in names:
                raise ScheduleError(f"{cls.__name__} has no field {name!r}", help=nearest(name, names, "fields"))
        made(self, *args, **given)

    cls.__init__ = __init__
    return cls


def closed_arguments(places: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that refuses a keyword which is none of its arguments with a ScheduleError.

    Type checkers see the function's own signature, and report the same call.

    Args:
        places: where an argument belongs that people look for here: its name, and the class that has it as a field
            with the argument that takes the class, such as "config=nl.TileConfig".
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
