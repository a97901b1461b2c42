"""Exercises that check themselves: a verdict in words, with hints that unfold one after the other.

    @exercise("Which factor?", hints=("What did the maximum do?",))
    def factor(answer: float) -> str:
        if answer != 1:
            raise NotYet(f"{answer} is the factor of another iteration")
        return "the maximum stays, so nothing changes"

`factor(0.5)` is then a `Verdict` with a sign, a reason and the hints, readable without script and without colour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import numpy as np

from neptune_lab.errors import NeptuneError

State = Literal["right", "wrong", "open"]

_SIGNS: dict[State, tuple[str, str]] = {
    "right": ("✓", "Right"),
    "wrong": ("✗", "Not yet"),
    "open": ("○", "Not answered yet"),
}


class NotYet(Exception):
    """Why an answer is not right: what was found, what was expected, without giving the answer away."""


class StillOpen(Exception):
    """What to do, if the answer is not filled in yet."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an exercise says to an answer. True where it is right.

    Args:
        state: right, wrong, or open where nothing was answered.
        title: the exercise's.
        text: why; words between backquotes are code.
        hints: what would help, from slight to strong; none where the answer is right.
    """

    state: State
    title: str
    text: str
    hints: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.state == "right"

    def __repr__(self) -> str:
        sign, word = _SIGNS[self.state]
        return f"{sign} {word}: {self.text}"

    def _repr_html_(self) -> str:
        sign, word = _SIGNS[self.state]
        return (
            f'<div class="neptune-verdict {self.state}" role="status"><style>{_STYLE}</style>'
            f"<p><b>{sign} {word}.</b> <span>{_marked(self.title)}</span></p>"
            f"<div>{_paragraphs(self.text)}</div>{_folded(self.hints)}</div>"
        )


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question with its judge; call it with an answer.

    Args:
        title: the question in a few words.
        judge: takes the answer; gives what there is to say to a right one, and raises `NotYet` otherwise.
        hints: from slight to strong.
    """

    title: str
    judge: Callable[..., str]
    hints: tuple[str, ...]

    def __call__(self, *answer: Any) -> Verdict:
        """The verdict on an answer; None or ... stands for no answer."""
        if any(a is None or a is ... for a in answer):
            return Verdict("open", self.title, "replace `None` by your answer and run this cell again", self.hints)
        try:
            return Verdict("right", self.title, self.judge(*answer))
        except StillOpen as what:
            return Verdict("open", self.title, str(what), self.hints)
        except NotYet as why:
            return Verdict("wrong", self.title, str(why), self.hints)
        except NeptuneError as error:
            return Verdict("wrong", self.title, f"the compiler refused:\n{error}", self.hints)

    def __repr__(self) -> str:
        return f"exercise: {self.title} ({len(self.hints)} hints)"


def exercise(title: str, *, hints: Sequence[str]) -> Callable[[Callable[..., str]], Exercise]:
    """Makes an exercise of a judge (`Exercise`)."""

    def made(judge: Callable[..., str]) -> Exercise:
        return Exercise(title, judge, tuple(hints))

    return made


def four_numbers(row: Any, dtype: str = "float64") -> np.ndarray:
    """An answer that is a row of Figure 1: an array of four finite numbers; NotYet where it is none."""
    try:
        numbers = np.asarray(row, dtype=dtype)
    except (TypeError, ValueError):
        raise NotYet(f"expected four numbers, such as `[1, 3, 2, 4]`, found {row!r}") from None
    if numbers.shape != (4,) or not np.isfinite(numbers).all():
        raise NotYet(f"expected four finite numbers, such as `[1, 3, 2, 4]`, found {row!r}")
    return numbers


def numbers_of(answer: Any, count: int) -> np.ndarray:
    """An answer that is `count` numbers; NotYet if it is none."""
    try:
        numbers = np.asarray(answer, dtype="float64")
    except (TypeError, ValueError):
        raise NotYet(f"expected {count} numbers, found {answer!r}") from None
    if numbers.shape != (count,):
        raise NotYet(f"expected {count} numbers, found {answer!r}")
    return numbers


def _folded(hints: tuple[str, ...], number: int = 1) -> str:
    """The first hint, and within its fold the others: each is seen only by asking for it."""
    if number > len(hints):
        return ""
    name = "Hint" if len(hints) == 1 else f"Hint {number} of {len(hints)}"
    text = _paragraphs(hints[number - 1])
    return f"<details><summary>{name}</summary>{text}{_folded(hints, number + 1)}</details>"


def _marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _paragraphs(text: str) -> str:
    """Lines that are indented, or follow a first line of an error, keep their breaks."""
    first, _, rest = text.partition("\n")
    return f"<p>{_marked(first)}</p>" + (f"<pre>{escape(rest, quote=False)}</pre>" if rest else "")


_STYLE = (
    ".neptune-verdict{font:13px/1.5 system-ui,sans-serif;color:inherit;border-left:3px solid #888;margin:4px 0;"
    "padding:2px 0 2px 12px;max-width:900px}.neptune-verdict.right{border-color:#0a9a60}"
    ".neptune-verdict.wrong{border-color:#e06c00}.neptune-verdict p{margin:2px 0}.neptune-verdict span{opacity:.75}"
    ".neptune-verdict summary{cursor:pointer}.neptune-verdict details{margin:2px 0 2px 12px}"
    ".neptune-verdict code{font:12px ui-monospace,monospace;background:none;color:inherit}"
    ".neptune-verdict pre{font:12px/1.5 ui-monospace,monospace;overflow-x:auto;color:inherit;margin:4px 0;"
    "background:rgba(128,128,128,.09);padding:6px 10px;border-radius:6px;white-space:pre-wrap}"
)
