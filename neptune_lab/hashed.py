"""Hashes, digests and texts of data.  Nodes compute their hash once: caches are keyed by whole programs, and a hash
walks the whole tree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from math import copysign
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

# Of these types, the repr has all.
_PLAIN = frozenset({str, int, float, bool, bytes, complex, type(None)})
# The first byte of what is written in parts: no text has it, since it is not UTF-8.
_IN_PARTS = b"\xff"


class Hashed:
    """Slots for the hash of a node, and for a mark that nodes share which were found equal.  They are no fields: they
    are not compared, printed, copied by `replace` or pickled (another process hashes strings differently)."""

    __slots__ = ("_hash", "_kind")
    _hash: int
    _kind: object


def hash_once(cls: type[T]) -> type[T]:
    """A frozen dataclass that inherits `Hashed`, with its generated hash cached.

    >>> from neptune_lab.loop_ir.nodes import Op, Var
    >>> hash(Op("neg", (Var("i"),))) == hash(Op("neg", (Var("i"),)))
    True
    """
    computed = cls.__hash__

    def __hash__(self: T) -> int:
        try:
            return self._hash  # type: ignore[attr-defined]
        except AttributeError:
            value = computed(self)
            object.__setattr__(self, "_hash", value)
            return value

    cls.__hash__ = __hash__  # type: ignore[assignment]
    return cls


def same_constant(one: Any, other: object) -> bool:
    """The equality of constant nodes, with `value` and `dtype`: 0.0 and -0.0 are two constants, since 1/x differs,
    and a cached result of one must not be used for the other.

    >>> from neptune_lab.loop_ir.nodes import Const
    >>> Const(0.0, "float32") == Const(-0.0, "float32"), Const(1.0, "float32") == Const(1, "float32")
    (False, True)
    """
    if other.__class__ is not one.__class__:
        return NotImplemented
    theirs: Any = other
    if one.value is not theirs.value and (
        one.value != theirs.value or (one.value == 0 and copysign(1, one.value) != copysign(1, theirs.value))
    ):
        return False
    return one.dtype == theirs.dtype


def full_text(data: Any) -> str:
    """The expression that makes equal data: source code, or the text of a key.  `repr` may be a summary: that of
    dataclasses is not used at any depth, and that of a set has another order in each process.

    Raises:
        TypeError: an array or tensor, or an object of this package that is no dataclass, whose `repr` need not have all
            that it holds.

    >>> from neptune_lab.loop_ir.nodes import Program
    >>> full_text((Program("f", ("x",), (), (), ()), {"a": 1.0}))
    "(Program(name='f', params=('x',), outputs=(), buffers=(), body=(), masked=()), {'a': 1.0})"
    """
    of = type(data)
    if of in _PLAIN:
        return repr(data)
    if is_dataclass(data) and not isinstance(data, type):
        return f"{of.__name__}({', '.join(f'{f.name}={full_text(getattr(data, f.name))}' for f in fields(data))})"
    if isinstance(data, tuple):
        names = getattr(of, "_fields", None)
        if names is not None:
            return f"{of.__name__}({', '.join(f'{n}={full_text(v)}' for n, v in zip(names, data, strict=True))})"
        return f"({', '.join(map(full_text, data))}{',' if len(data) == 1 else ''})"
    if isinstance(data, list):
        return f"[{', '.join(map(full_text, data))}]"
    if isinstance(data, Mapping):
        return f"{{{', '.join(f'{full_text(key)}: {full_text(value)}' for key, value in data.items())}}}"
    if isinstance(data, Set):
        return f"{of.__name__}([{', '.join(sorted(map(full_text, data)))}])"
    if of.__module__.partition(".")[0] == __name__.partition(".")[0] and not isinstance(data, Enum):
        raise TypeError(f"{of.__name__} is no dataclass: the text of a key needs what it holds, field by field")
    if hasattr(data, "__array__") and not isinstance(data, np.generic):
        raise TypeError(f"the repr of {of.__name__} leaves elements and digits out: the text of a key needs its bytes")
    return repr(data)


def digest_of(*parts: Any) -> str:
    """The SHA-256 of texts, bytes, and data as `full_text` writes it: all keys and names of files that are digests are
    made here.

    One text or bytes alone have the digest of their own bytes, which files on disk are named by.  Other parts are
    written with their lengths, and data with a mark, so that neither a text nor other parts share a digest with them.

    >>> digest_of("text") == digest_of(b"text"), digest_of("1") == digest_of(1), digest_of("1", "2") == digest_of("12")
    (True, False, False)
    """
    if len(parts) == 1 and isinstance(parts[0], str | bytes):
        return hashlib.sha256(_bytes(parts[0])).hexdigest()
    found = hashlib.sha256(_IN_PARTS)
    for part in parts:
        written = _bytes(part)
        found.update(f"{'text' if isinstance(part, str | bytes) else 'data'} {len(written)}:".encode())
        found.update(written)
    return found.hexdigest()


def _bytes(part: Any) -> bytes:
    return part if isinstance(part, bytes) else (part if isinstance(part, str) else full_text(part)).encode()


__all__ = ["Hashed", "digest_of", "full_text", "hash_once", "same_constant"]
