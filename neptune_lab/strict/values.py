"""Checks of options against closed types: an integer in a range, a choice, a switch, a name."""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Collection
from math import isfinite
from typing import Any, TypeAlias, TypeGuard

from neptune_lab.errors import NeptuneError
from neptune_lab.strict.console import shown

Refusal: TypeAlias = type[NeptuneError]

# Kernels compute with float32, which rounds what is larger to infinity.
LARGEST_NUMBER = (2 - 2**-23) * 2.0**127
# Loop variables, sizes and most offsets are 32-bit integers.
INT32_MAX = 2**31 - 1


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether `value` is an int; rejects bool, which Python counts as an int.

    >>> [is_integer(x) for x in (64, 0, True, 2.0, "64")]
    [True, True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool)


def check_integer(
    name: str, value: Any, least: int, most: int, error: Refusal, *, optional: bool = False, help: str | None = None
) -> None:
    """Raise `error` unless `value` is an int from `least` to `most` (or None, if `optional`).

    >>> from neptune_lab.errors import EmitError
    >>> check_integer("stages", 2, 1, 6, EmitError)
    >>> check_integer("stages", "2", 1, 6, EmitError)
    Traceback (most recent call last):
    neptune_lab.errors.EmitError: stages='2': expected an integer from 1 to 6
    """
    if (optional and value is None) or (is_integer(value) and least <= value <= most):
        return
    left_out = ", or None" if optional else ""
    raise error(f"{name}={shown(value)}: expected an integer from {least} to {most}{left_out}", help=help)


def check_number(
    name: str, value: Any, error: Refusal, *, optional: bool = False, positive: bool = False, from_zero: bool = False
) -> None:
    """Raise `error` unless `value` is an int or float that is finite in float32.

    Args:
        optional: None is taken too.
        positive: it must be above 0.
        from_zero: it must be 0 or above.
    """
    if optional and value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and abs(value) <= LARGEST_NUMBER and isfinite(value)
    if finite and (value > 0 or (value == 0 and not positive) or not (positive or from_zero)):
        return
    kind = "a positive finite number" if positive else "a finite number, 0 or above" if from_zero else "a finite number"
    large = " of float32" if number and abs(value) > LARGEST_NUMBER else ""
    raise error(
        f"{name}={shown(value)}: expected {kind}{large}{', or None' if optional else ''}",
        help="such as 0.5; float(value) makes a number of a text or of a tensor with one element",
    )


def check_choice(name: str, value: Any, known: Collection[Any], error: Refusal, *, help: str | None = None) -> None:
    """Raise `error` unless `value` is one of `known`, with the same type.

    >>> from neptune_lab.errors import EmitError
    >>> check_choice("loads", "pointer", ("pointers", "descriptors"), EmitError)
    Traceback (most recent call last):
    neptune_lab.errors.EmitError: loads='pointer': expected one of 'pointers', 'descriptors'
      help: did you mean 'pointers'?
    """
    if not any(type(value) is type(k) and value == k for k in known):
        words = [word for word in known if isinstance(word, str)]
        near = difflib.get_close_matches(value[:100], words, 1) if isinstance(value, str) else []
        help = f"did you mean {near[0]!r}?" if near and help is None else help
        raise error(f"{name}={shown(value)}: expected one of {', '.join(map(repr, known))}", help=help)


def check_switch(name: str, value: Any, error: Refusal) -> None:
    """Raise `error` unless `value` is True or False."""
    if not isinstance(value, bool):
        raise error(f"{name}={shown(value)}: expected True or False", help="it is a switch")


def check_kind(
    name: str, value: Any, kind: type | tuple[type, ...], expected: str, error: Refusal, *, help: str | None = None
) -> None:
    """Raise `error` unless `value` is an instance of `kind`, which the message calls `expected`.

    >>> from neptune_lab.errors import DefinitionError
    >>> check_kind("name", 3, str, "a text", DefinitionError)
    Traceback (most recent call last):
    neptune_lab.errors.DefinitionError: name=3: expected a text
    """
    if not isinstance(value, kind):
        raise error(f"{name}={shown(value)}: expected {expected}", help=help)


def check_texts(name: str, value: Any, expected: str, error: Refusal, *, help: str | None = None) -> tuple[str, ...]:
    """The items of a list of texts; `error` for one text, for other items, and for what is no list.

    >>> from neptune_lab.errors import DefinitionError
    >>> check_texts("keep", {"s_max"}, "names of stages", DefinitionError)
    ('s_max',)
    >>> check_texts("keep", "s_max", "names of stages", DefinitionError)
    Traceback (most recent call last):
    neptune_lab.errors.DefinitionError: keep='s_max': expected names of stages
    """
    items = items_of(value)
    if items is None or not all(isinstance(item, str) for item in items):
        raise error(f"{name}={shown(value)}: expected {expected}", help=help)
    return items


def items_of(value: Any) -> tuple[Any, ...] | None:
    """The items of an iterable; None of a text, and of what is no iterable, such as a tensor without dimensions.

    >>> items_of(["a"]), items_of("a"), items_of(3)
    (('a',), None, None)
    """
    if isinstance(value, str | bytes):
        return None
    try:
        return tuple(value)
    except TypeError:
        return None


def is_name(value: Any) -> bool:
    """Whether `value` is a Python identifier that may occur in emitted source.

    >>> [is_name(x) for x in ("s_max", "1)", "for", "", None, "σ")]
    [True, False, False, False, False, True]
    """
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)
