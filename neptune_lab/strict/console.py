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


def no_attribute(owner: str, name: str, names: Iterable[str], *, listed: bool = False) -> AttributeError:
    """The error of a name that is not there, with the nearest one, which IPython does not add as Python's prompt does;
    if none is near, with all of them if they are to be `listed`.

    >>> print(no_attribute("module 'attention'", "casual", ["causal", "full"]))
    module 'attention' has no attribute 'casual'; did you mean 'causal'?
    >>> print(no_attribute("a Schedule", "compute_inline", ["compute_at", "inline"]))
    a Schedule has no attribute 'compute_inline'; did you mean 'inline'?
    """
    known = [] if name.startswith("_") else [other for other in names if not other.startswith("_")]
    words = set(name.split("_"))
    inside = [other for other in known if words < set(other.split("_")) or words > set(other.split("_"))]
    tries = ((known, 0.8), (inside, 0.0), (known, 0.6))
    near = next((close for among, least in tries if (close := difflib.get_close_matches(name, among, 1, least))), [])
    told = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}" if listed and known else ""
    return AttributeError(f"{owner} has no attribute {name!r}{told}")
