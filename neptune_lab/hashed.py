"""Nodes that compute their hash once: caches are keyed by whole programs, and a hash walks the whole tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import copysign
from typing import Any, TypeVar

T = TypeVar("T")


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


def signature(name: str, tensors: Iterable[Any], inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """A program in a line, for its `repr`: its name, and the names, dtypes and shapes of its inputs and outputs.

    >>> from neptune_lab.loop_ir.nodes import Buffer
    >>> signature("scale", [Buffer("x", (2, 3), "float16"), Buffer("y", (2,), "float32")], ["x"], ["y"])
    'scale(x: float16[2, 3]) -> y: float32[2]'
    """
    typed = {t.name: f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]" for t in tensors}
    given, made = (", ".join(typed.get(n, n) for n in names) for names in (inputs, outputs))
    return f"{name}({given}) -> {made}"


def full_text(data: Any) -> str:
    """The call that makes an equal dataclass: source code, or the text of a digest or a key. `repr` may be a summary.

    >>> from neptune_lab.loop_ir.nodes import Program
    >>> full_text(Program("f", ("x",), (), (), ()))
    "Program(name='f', params=('x',), outputs=(), buffers=(), body=(), masked=())"
    """
    return (
        f"{type(data).__name__}({', '.join(f'{field.name}={getattr(data, field.name)!r}' for field in fields(data))})"
    )


__all__ = ["Hashed", "full_text", "hash_once", "same_constant", "signature"]
