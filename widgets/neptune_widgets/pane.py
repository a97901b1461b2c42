"""The Python half of a pane: data for the page, and answers to its messages.

Most panes need none, since the page has the whole record. A module of `neptune_widgets.panes` declares one; its name is
that of the pane.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeVar

from neptune_lab.errors import NeptuneError
from neptune_widgets.session import Session

Message = dict[str, Any]
Later = Callable[[], Message]
Answer = Callable[[Session, Message], Message | Later]
Data = Callable[[Session], Any]
Part = Literal["data", "kept", "answer"]
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Half:
    """What one function does for a pane.

    Args:
        pane: the pane's name.
        part: "data" of the payload, "kept" data that only a page without Python has, or "answer" to a message.
        kind: of the messages that it answers; "" for data.
        function: `data(session)`, plain JSON, or `answer(session, message)`, the message that the page gets.
    """

    pane: str
    part: Part
    kind: str
    function: Callable[..., Any]


def pane_data(function: _Function) -> _Function:
    """Declares `data(session)`: the page has it as `payload.panes` under the pane's name, anew after each edit."""
    return _declared(function, "data", "")


def kept_data(function: _Function) -> _Function:
    """Declares `data(session)` that takes a while: it is made for pages that are saved, which cannot ask for it.

    A page with Python behind it asks by a message when the pane is opened. If the pane has other data too, a saved page
    has what is kept in its stead.
    """
    return _declared(function, "kept", "")


def answers(kind: str) -> Callable[[_Function], _Function]:
    """Declares `answer(session, message)`, the answer to messages of this kind.

    An answer that takes seconds is a function that makes it: it runs in a thread, so that other messages are answered
    meanwhile. It must not read the session, which edits change.
    """
    return lambda function: _declared(function, "answer", kind)


def _declared(function: _Function, part: Part, kind: str) -> _Function:
    pane = function.__module__.rpartition(".")[2]
    function.pane_half = Half(pane, part, kind, function)  # type: ignore[attr-defined]
    return function


def halves_in(modules: Iterable[ModuleType]) -> tuple[Half, ...]:
    """What the modules declare.

    Raises:
        TypeError: two functions answer messages of one kind, or make the data of one pane.
    """
    found: dict[tuple[str, str], Half] = {}
    for half in (half for module in modules for half in _of(module)):
        key = (half.part, half.kind or half.pane)
        if key in found:
            both = f"panes {found[key].pane} and {half.pane}"
            raise TypeError(f"{both} both declare {half.part} {half.kind or half.pane!r}")
        found[key] = half
    return tuple(found.values())


def _of(module: ModuleType) -> Iterator[Half]:
    for function in vars(module).values():
        if isinstance(half := getattr(function, "pane_half", None), Half) and function.__module__ == module.__name__:
            yield half


def halves() -> tuple[Half, ...]:
    """What the modules of `neptune_widgets.panes` declare."""
    from neptune_widgets import panes

    names = sorted(module.name for module in pkgutil.iter_modules(panes.__path__))
    return halves_in(import_module(f"{panes.__name__}.{name}") for name in names)


def data_of(session: Session, found: Iterable[Half], *, kept: bool = False) -> dict[str, Any]:
    """The data of panes, by pane; with `kept` also what is kept. A NeptuneError becomes {"error": its text}."""
    made: dict[str, Any] = {}
    for half in sorted(found, key=lambda half: half.part):
        if half.part == "data" or (kept and half.part == "kept"):
            try:
                made[half.pane] = half.function(session)
            except NeptuneError as error:
                made[half.pane] = {"error": str(error)}
    return made


def list_of(message: Message, name: str) -> list[Any]:
    """A list in a message; TypeError if it is something else."""
    value = message[name]
    if not isinstance(value, list):
        raise TypeError(f"{name} is {type(value).__name__}, a list was expected")
    return value


__all__ = ["Half", "Later", "Message", "answers", "data_of", "halves", "halves_in", "kept_data", "list_of", "pane_data"]
