"""What a long compile is doing now, for whoever listens: the explorer shows it while a notebook waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

# Takes a kind of work, such as "step", and the object whose text names it. The text is made by the listener, if at all:
# a compile has thousands of steps.
Listener: TypeAlias = Callable[[str, object], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, `listener` is called whenever a step, a pass or a check begins.

    >>> with listening(lambda kind, what: print(kind, what)):
    ...     tell("pass", "keep_exact")
    pass keep_exact
    >>> tell("pass", "keep_exact")
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(kind: str, what: object = "") -> None:
    """Says what begins now."""
    listener = _listener.get()
    if listener is not None:
        listener(kind, what)


__all__ = ["Listener", "listening", "tell"]
