"""Sizes, launch hints, notes and options of templates, checked before anything is done; `kinds` has primitives'."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import is_integer

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


def check_size(name: str, value: Any) -> None:
    """Raise ScheduleError where `value` is no value of the template's option `name`, a hint or a positive integer."""
    check_hint(name, value, "template")
    if not is_count(value):
        raise ScheduleError(
            f"{name}={shown(value)}, expected a positive integer", help="leave it out, and it is chosen by shape"
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


def check_options(template: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ScheduleError where an option is none of the template's, or is not of its kind.

    Args:
        function: the template; its parameters after the first are its options. One that is False by default is a
            switch; one that is annotated `PerNest` may be a tuple with an entry a nest, and may be left open.
    """
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    where = f"template {template!r}"
    for name, value in options.items():
        if name not in parameters:
            raise ScheduleError(f"{where} has no option {name!r}", help=nearest(name, list(parameters), "options"))
        parameter = parameters[name]
        if isinstance(parameter.default, bool):
            if not isinstance(value, bool):
                raise ScheduleError(f"{where}: {name}={shown(value)}, expected True or False", help="it is a switch")
            continue
        per_nest = str(parameter.annotation).startswith("PerNest")
        for entry in value if per_nest and isinstance(value, tuple | list) else (value,):
            _check_entry(where, name, entry, parameter.default)


# What an option that is left open would be for many programs, for messages.
_EXAMPLES = {"block_q": 64, "block_kv": 64, "block_out": 64, "splits": 8}


def _check_entry(where: str, name: str, value: Any, default: Any) -> None:
    if value is None and default is None:
        return
    if name in HINTS:
        check_hint(name, value, where)
    elif not is_count(value):
        such = f" such as {_EXAMPLES.get(name, default)}"
        left_open = ", or leave it out, and it is chosen" if default is None else ""
        raise ScheduleError(
            f"{where}: {name}={shown(value)}, expected a positive integer", help=f"give a whole number{such}{left_open}"
        )
