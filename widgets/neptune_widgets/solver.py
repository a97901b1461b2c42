"""The solver's panel: write a term g, and watch the algebra derive its repair, or refuse and say at which step.

`answers.py` says what the panel shows; this is the widget, which asks it at every edit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import Any

import anywidget
import traitlets

from neptune_lab.repair import RepairTerm, VectorRepair, time_limit
from neptune_lab.repair.expression_text import refuse
from neptune_lab.repair.limit import SECONDS
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import items_of
from neptune_widgets.answers import Answer, Attempt, Question, answer_json, ask, question_of, state
from neptune_widgets.beside import display_beside
from neptune_widgets.page import STATIC

_BUNDLE = STATIC / "solver.js"
_NOT_BUILT = """export default { render({ el }) {
  el.textContent = "The panel's page is not built: run `npm install && npm run build` in widgets/.";
} };"""
_SETTLE = 0.01  # seconds in which edits that come one after the other count as one


@dataclass(frozen=True, eq=False)
class _Job:
    """A question that is being answered in another thread; `stop` ends it."""

    question: Question
    stop: threading.Event


class Solver(anywidget.AnyWidget):
    """The panel. `term` is what was found last, to go on with in another cell. Made by `nl.solver(…)`."""

    _esm = _BUNDLE if _BUNDLE.is_file() else _NOT_BUILT
    question = traitlets.Dict(help="the fields, as text").tag(sync=True)
    answer = traitlets.Dict(help="what the solvers say, as JSON").tag(sync=True)
    running = traitlets.Bool(False, help="whether a question is being answered; set to False to stop").tag(sync=True)
    reducers = traitlets.List(traitlets.Unicode(), help="the names to choose from").tag(sync=True)

    def __init__(self, question: Question, **traits: Any) -> None:
        self._answer = ask(question)
        self._job: _Job | None = None
        super().__init__(**state(question, self._answer), **traits)
        self._due = False

    def __repr__(self) -> str:
        """What a terminal shows, where there is no widget."""
        return f"<Solver: shown in a notebook; its term is {self.term!r}>"

    @property
    def term(self) -> RepairTerm | VectorRepair | None:
        """The repair of the term that stands in the panel; None where there is none."""
        return self._answer.term

    def stop(self) -> None:
        """Ends the question that is being answered, if one is: it is refused at the step "time"."""
        if self._job is not None:
            self._job.stop.set()

    @traitlets.observe("running")
    def _stopped(self, _change: object) -> None:
        if not self.running:
            self.stop()

    @traitlets.observe("question")
    def _asked(self, _change: object) -> None:
        """Waits for what comes at the same time: while a term is typed, only the last one is solved."""
        if not hasattr(self, "_due") or self._due:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            question = question_of(self.question)
            self._show(question, ask(question))
            return
        self._due = True
        loop.call_later(_SETTLE, self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Solves in another thread, so that the kernel runs cells and hears the page meanwhile."""
        self._due = False
        self.stop()
        job = self._job = _Job(question_of(self.question), threading.Event())
        self.running = True
        threading.Thread(target=self._work, args=(loop, job), name="neptune_lab solver", daemon=True).start()

    def _work(self, loop: asyncio.AbstractEventLoop, job: _Job) -> None:
        with time_limit(SECONDS, job.stop):
            answer = ask(job.question)
        with suppress(RuntimeError):  # the loop is closed: nobody is left to see the answer
            loop.call_soon_threadsafe(self._end, job, answer)

    def _end(self, job: _Job, answer: Answer) -> None:
        if job is not self._job:  # a later question is being answered
            return
        self._job = None
        self._show(job.question, answer)
        self.running = False

    def _show(self, question: Question, answer: Answer) -> None:
        self._answer = answer
        self.answer = answer_json(question, answer)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget, and beside it HTML without script and plain text, for readers that know no widgets."""
        found = super()._repr_mimebundle_(**kwargs)
        if found is None:
            return None
        data, metadata = found
        question = Question(**self.question)
        shown = _static_text(question, self._answer)
        return {**data, "text/html": _static_html(question, self._answer), "text/plain": shown}, metadata

    def _ipython_display_(self) -> None:
        """Two outputs, as of the explorer: the widget, and the static view, which a running page hides."""
        bundle = self._repr_mimebundle_()
        if bundle is not None:
            data, metadata = bundle
            text = f"Solver: {_asked_words(Question(**self.question))}"
            display_beside(data, metadata, html=data["text/html"], text=text)


def solver(
    g: str = "exp(c - r)",
    reducer: str = "sum",
    producers: str | Iterable[str] = "r",
    *,
    assumptions: str | Mapping[str, str | Iterable[str]] = "",
    constants: str | Iterable[str] = "",
) -> Solver:
    """A panel in which you write a term, and see its repair derived or refused as you type.

    Args:
        g: the first term, as text; it can be edited in the panel.
        reducer: f, one of "sum", "max", "min", "prod", "any", "all".
        producers: names of the results r of other reductions; every other name is an input.
        assumptions: text such as "r >= 0, eps > 0", or name -> words (`repair.solve`).
        constants: names of inputs with one value for the whole reduction.

    Returns:
        The widget; its `term` is the repair that was found.
    """
    for name, value in (("g", g), ("reducer", reducer)):
        if not isinstance(value, str):
            refuse(f"{name}={shown(value)}: expected a text", shown(g), 'such as nl.solver("exp(c - r)", "sum")')
    if isinstance(assumptions, Mapping):
        pairs = [(name, [words] if isinstance(words, str) else words) for name, words in assumptions.items()]
        told = ", ".join(f"{name} {word}" for name, words in pairs for word in _words("assumptions", words))
    else:
        told = ", ".join(_words("assumptions", assumptions))
    fields = (", ".join(_words(name, value)) for name, value in (("producers", producers), ("constants", constants)))
    producer_names, constant_names = fields
    return Solver(Question(g, reducer, producer_names, told, constant_names))


def _words(name: str, value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else items_of(value)
    if words is None or not all(isinstance(word, str) for word in words):
        refuse(
            f"{name}={shown(value)}: expected a text, or a list of texts", shown(value), 'such as "r", or ["a", "b"]'
        )
    return words


# -- without script ------------------------------------------------------------------------------------------


def _asked_words(question: Question) -> str:
    extra = "".join(f"; {words}" for words in (question.assumptions,) if words)
    fixed = f"; constant: {question.constants}" if question.constants else ""
    return f"{question.reducer} of {question.g}, repaired in {question.producers}{extra}{fixed}"


_SIGNS = {"solved": "✓", "family": "✓", "refused": "✗", "unread": "…", "failed": "✗"}


def _attempt_text(attempt: Attempt) -> list[str]:
    lines = [
        f"{'✓' if step.ok else '✗'} {line}" if n == 0 else f"  {line}"
        for step in attempt.steps
        for n, line in enumerate(step.text.splitlines())
    ]
    if (found := attempt.refusal) is not None:
        lines += [f"✗ {found.step}: {found.reason}", f"    on {found.expression}"]
        lines += [f"    help: {found.help}"] if found.help else []
    return lines


def _static_text(question: Question, answer: Answer) -> str:
    lines = [f"Solver: {_asked_words(question)}", f"{_SIGNS[answer.state]} {answer.words}"]
    for attempt in answer.attempts:
        lines += ["", attempt.title, *(f"  {line}" for line in _attempt_text(attempt))]
    return "\n".join(lines)


def _static_html(question: Question, answer: Answer) -> str:
    """The panel as it stands, for pages without script; a running page hides it (`neptune-static`)."""
    parts = [
        '<div class="neptune-static"><p><b>Solver</b> (run this cell to write your own term): ',
        f"<code>{escape(_asked_words(question))}</code></p>",
        f"<p><b>{_SIGNS[answer.state]} {escape(answer.words)}</b></p>",
    ]
    for attempt in answer.attempts:
        body = escape("\n".join(_attempt_text(attempt)))
        parts.append(f"<details><summary>{escape(attempt.title)}</summary><pre>{body}</pre></details>")
    return "".join([*parts, "</div>"])
