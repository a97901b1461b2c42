"""Makes text from outside harmless for a terminal and short enough for a message."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterable
from typing import Any

from neptune_lab.errors import printable

MOST_SHOWN = 120


def source_line(path: str, line: int) -> str:
    """A line of Python as an error quotes it: without indentation, cut after `MOST_SHOWN` characters; "" if its file
    cannot be read."""
    text = linecache.getline(path, line).strip()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… (cut)"


def shown(value: Any) -> str:
    """A value as an error shows it: its repr, printable, cut after `MOST_SHOWN` characters; of a tensor, its shape.

    >>> shown("a" * 200)[-12:]
    'aaaaa… (cut)'
    """
    if isinstance(value, str | bytes):
        text = repr(value[: MOST_SHOWN + 1])
    elif isinstance(shape := getattr(value, "shape", None), tuple) and shape and hasattr(value, "dtype"):
        text = f"{class_of(value)} of shape {tuple(shape)} and dtype {value.dtype}"
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**MOST_SHOWN:
        text = f"an integer of {value.bit_length()} bits"  # Python refuses to print the longest
    else:
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 - the value's own `__repr__` fails, and the error about it is still told
            text = class_of(value)
    text = printable(text).replace("\n", " ")
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… (cut)"


def class_of(value: Any) -> str:
    """The class of a value, with its article, as an error names it.

    >>> class_of(1), class_of("a"), class_of(None)
    ('an int', 'a str', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    spoken_with_a_vowel = name[:1] in "aeioAEIO" or name == "ndarray"
    return f"{'an' if spoken_with_a_vowel else 'a'} {name}"


def no_attribute(owner: str, name: str, names: Iterable[str]) -> AttributeError:
    """The error of a name that is not there, with the nearest one, which IPython does not add as Python's prompt does.

    >>> print(no_attribute("module 'attention'", "casual", ["causal", "full"]))
    module 'attention' has no attribute 'casual'; did you mean 'causal'?
    """
    known = [] if name.startswith("_") else [other for other in names if not other.startswith("_")]
    near = difflib.get_close_matches(name, known, 1)
    return AttributeError(f"{owner} has no attribute {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
