"""What a mod's `relu`, `clamp` and the like give to their operand where it is at a limit (`operators.ties`).

A `Scalar` has no room for that beside its expression: the mod is called once more, and each maximum and minimum that it
makes is noted.  This does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from neptune_lab.operators.operations import kind_of
from neptune_lab.operators.ties import HALVES_TIES

if TYPE_CHECKING:
    from neptune_lab.operators.scalar import Scalar

# The maxima and minima of the mod that is watched, in order, each with its first operand's part of the cotangent.
_noted: ContextVar[list[tuple[Any, float]] | None] = ContextVar("_noted", default=None)
# That part, of what is computed now.
_part: ContextVar[float] = ContextVar("_part", default=HALVES_TIES)


@contextmanager
def at_limits(part: float) -> Iterator[None]:
    """What is computed inside gives its first operand this part of the cotangent where a maximum or minimum is equal to
    both.

    Args:
        part: 0, 1/2 or 1.
    """
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def note(name: str, value: Any) -> None:
    """Notes what an operation of a mod gives, if it is a maximum or minimum of floats and the mod is watched."""
    noted = _noted.get()
    if noted is not None and name in ("max", "min") and kind_of(value) == "float":
        noted.append((value, _part.get()))


def extremes(mod: Callable[..., Any], *args: Scalar) -> list[tuple[Any, float]]:
    """The maxima and minima of floats that a mod computes, in order.

    Args:
        mod: the mod.
        args: what it is called with.

    Returns:
        Each with its first operand's part of the cotangent where both are equal.
    """
    noted: list[tuple[Any, float]] = []
    token = _noted.set(noted)
    try:
        mod(*args)
    finally:
        _noted.reset(token)
    return noted


__all__ = ["at_limits", "extremes", "note"]
