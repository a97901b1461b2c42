"""The solver's panel: write a term g, and watch the algebra derive its repair, or refuse and say at which step.

Every edit goes to `repair.solve`, and where that refuses a sum, to `repair.solve_vector`; nothing is derived here.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import anywidget
import traitlets

from neptune_lab.errors import RepairError
from neptune_lab.repair import RepairTerm, VectorRepair, mathml, solve, solve_vector, time_limit
from neptune_lab.repair.limit import SECONDS
from neptune_lab.repair.read import WORDS
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import Step, equation, text
from neptune_widgets.page import STATIC

_BUNDLE = STATIC / "solver.js"
_NOT_BUILT = """export default { render({ el }) {
  el.textContent = "The panel's page is not built: run `npm install && npm run build` in widgets/.";
} };"""
_SETTLE = 0.01  # seconds in which edits that come one after the other count as one
_LONGEST = 300  # characters of a field
_RELATIONS = {
    ">": "positive",
    ">=": "nonnegative",
    "≥": "nonnegative",
    "<": "negative",
    "<=": "nonpositive",
    "≤": "nonpositive",
    "!=": "nonzero",
    "≠": "nonzero",
}
_COMPARED = re.compile(r"(\w+)\s*(>=|<=|!=|[><≥≤≠])\s*0(?:\.0*)?")
_TOLD = re.compile(r"(\w+)(?:\s+is|\s*:)?\s+(\w+)")


@dataclass(frozen=True, slots=True)
class Question:
    """What stands in the fields of the panel, as text.

    Args:
        g: the term, such as "exp(c - r)".
        reducer: f, a name such as "sum".
        producers: the results of other reductions, with commas between.
        assumptions: such as "r >= 0, eps > 0" or "r nonnegative".
        constants: inputs with one value for the whole reduction, with commas between.
    """

    g: str = "exp(c - r)"
    reducer: str = "sum"
    producers: str = "r"
    assumptions: str = ""
    constants: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one of the two solvers made of a question: `term` or `refusal`, whichever there is.

    Args:
        title: which solver it was, in words.
        term: the answer.
        refusal: why there is none.
    """

    title: str
    term: RepairTerm | VectorRepair | None = None
    refusal: RepairError | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """The derivation; of a refusal, the steps before the one that failed."""
        if self.term is not None:
            return self.term.steps
        return () if self.refusal is None else self.refusal.passed

    @property
    def formula(self) -> str:
        """h(t, r, r') = … as text; "" where there is none."""
        return "" if self.term is None else text(equation(self.term.signature, self.term.h))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the panel shows below its fields.

    Args:
        state: "solved", "family" (a sum with companions), "refused", "unread" (not readable yet) or "failed" (our bug).
        words: the state in a sentence.
        attempts: of the solvers that were asked, in order.
    """

    state: str
    words: str
    attempts: tuple[Attempt, ...] = ()

    @property
    def term(self) -> RepairTerm | VectorRepair | None:
        """The repair that was found, if one was."""
        return next((attempt.term for attempt in self.attempts if attempt.term is not None), None)


def ask(question: Question) -> Answer:
    """What the solvers say to a question; never raises.

    >>> ask(Question("c/r", assumptions="r > 0")).words
    "h(t, r, r') = t*r/r'"
    >>> ask(Question("c - r")).state, ask(Question("max(c, r)")).state, ask(Question("exp(c -")).state
    ('family', 'refused', 'unread')
    """
    try:
        return _ask(question)
    except RepairError as error:
        return Answer("unread", "; ".join(filter(None, (error.reason, error.help))))
    except Exception as error:  # noqa: BLE001 - a bug of ours is seen in the panel, not only in a log
        return Answer("failed", f"the solver failed, which is a bug: {type(error).__name__}: {error}")


def _ask(question: Question) -> Answer:
    """Raises RepairError with step "read" where the question itself is not one."""
    if not question.g.strip():
        raise _unread("write a term g of r and inputs, such as exp(c - r)", question.g)
    producers, constants = _names(question.producers), _names(question.constants)
    if not producers:
        raise _unread("say which names are results r of other reductions, such as r", question.producers)
    told = assumptions(question.assumptions)
    alone = _attempt(
        "One repair term (Eqs. 3 to 5)",
        lambda: solve(question.reducer, question.g, producers, assumptions=told, constants=constants or None),
    )
    if alone.refusal is None:
        return Answer("solved", alone.formula, (alone,))
    if alone.refusal.step == "read":
        raise alone.refusal
    where = f"refused at the step {alone.refusal.step!r}"
    if question.reducer != "sum":
        return Answer("refused", where, (alone,))
    family = _attempt(
        "A family of sums that are repaired together (beyond the paper)",
        lambda: solve_vector(question.reducer, question.g, producers, assumptions=told, constants=constants),
    )
    if family.refusal is None:
        return Answer("family", f"not alone, but with companions: {family.formula}", (alone, family))
    return Answer("refused", f"{where}, and as a family at {family.refusal.step!r}", (alone, family))


def _attempt(title: str, call: Callable[[], RepairTerm | VectorRepair]) -> Attempt:
    try:
        return Attempt(title, term=call())
    except RepairError as error:
        return Attempt(title, refusal=error)


def assumptions(source: str) -> dict[str, list[str]]:
    """What a list such as "r >= 0, eps positive" says of each name, in the solver's words.

    Raises:
        RepairError: step "read", naming the part that is not readable.

    >>> assumptions("r >= 0, eps is positive; r finite")
    {'r': ['nonnegative', 'finite'], 'eps': ['positive']}
    """
    found: dict[str, list[str]] = {}
    for part in filter(None, (p.strip() for p in re.split(r"[,;]", source))):
        if compared := _COMPARED.fullmatch(part):
            name, word = compared[1], _RELATIONS[compared[2]]
        elif (told := _TOLD.fullmatch(part)) and told[2] in WORDS:
            name, word = told[1], told[2]
        else:
            raise _unread(
                f"the assumption {part!r} is not readable: write r >= 0, or r and a word: {', '.join(WORDS)}", part
            )
        found.setdefault(name, []).append(word)
    return found


def _names(source: str) -> list[str]:
    return [name for name in re.split(r"[\s,;]+", source.strip()) if name]


def _unread(reason: str, expression: str) -> RepairError:
    return RepairError(reason, step="read", expression=expression)


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    formula, refusal = "", None
    if attempt.term is not None:
        inner = mathml(equation(attempt.term.signature, attempt.term.h))
        formula = f'<math xmlns="http://www.w3.org/1998/Math/MathML"><mrow>{inner}</mrow></math>'
    if attempt.refusal is not None:
        refusal = {"step": attempt.refusal.step, "expression": attempt.refusal.expression}
        refusal |= {"reason": attempt.refusal.reason, "help": attempt.refusal.help or ""}
    steps = [step.as_record() for step in attempt.steps]
    return {"title": attempt.title, "formula": formula, "steps": steps, "refusal": refusal}


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
        super().__init__(
            question=asdict(question),
            answer=_answer_json(question, self._answer),
            reducers=list(REDUCERS),
            **traits,
        )
        self._due = False

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
            question = self._question()
            self._show(question, ask(question))
            return
        self._due = True
        loop.call_later(_SETTLE, self._begin, loop)

    def _question(self) -> Question:
        fields = {name: str(value)[:_LONGEST] for name, value in self.question.items() if name in Question.__slots__}
        return Question(**fields)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Solves in another thread, so that the kernel runs cells and hears the page meanwhile."""
        self._due = False
        self.stop()
        job = self._job = _Job(self._question(), threading.Event())
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
        self.answer = _answer_json(question, answer)

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
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        if bundle is None:
            return
        data, metadata = bundle
        html = data.pop("text/html")
        display(
            {**data, "text/plain": f"Solver: {_asked_words(Question(**self.question))}"}, metadata=metadata, raw=True
        )
        display({"text/html": html, "text/plain": ""}, raw=True)


def _answer_json(question: Question, answer: Answer) -> dict[str, Any]:
    attempts = [_attempt_json(attempt) for attempt in answer.attempts]
    return {"question": asdict(question), "state": answer.state, "words": answer.words, "attempts": attempts}


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
    if isinstance(assumptions, Mapping):
        pairs = [(name, [words] if isinstance(words, str) else words) for name, words in assumptions.items()]
        told = ", ".join(f"{name} {word}" for name, words in pairs for word in words)
    else:
        told = assumptions
    return Solver(Question(g, reducer, _joined(producers), told, _joined(constants)))


def _joined(names: str | Iterable[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)


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
