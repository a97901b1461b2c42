"""Answers of the solver's panel to a term g: its repair with the derivation, or the step that refused it.

Every question goes to `repair.solve`, and if that refuses a sum, to `repair.solve_vector`; nothing is derived here.
This module uses neither Jupyter nor NumPy: the gallery's live page runs it in the browser (`live.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from neptune_lab.errors import RepairError
from neptune_lab.repair import RepairTerm, VectorRepair, mathml, solve, solve_vector, time_limit
from neptune_lab.repair.read import WORDS
from neptune_lab.repair.reducers import REDUCERS
from neptune_lab.repair.render import Step, equation, text

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


def answer_json(question: Question, answer: Answer) -> dict[str, Any]:
    """An answer with its question, as the page draws it."""
    attempts = [_attempt_json(attempt) for attempt in answer.attempts]
    return {"question": asdict(question), "state": answer.state, "words": answer.words, "attempts": attempts}


def question_of(fields: Mapping[str, Any]) -> Question:
    """The question that a page sends: its fields by name, each at most 300 characters."""
    return Question(**{name: str(value)[:_LONGEST] for name, value in fields.items() if name in Question.__slots__})


def state(question: Question, answer: Answer) -> dict[str, Any]:
    """What a panel shows at first: the fields, the answer, and the reducers to choose from."""
    return {"question": asdict(question), "answer": answer_json(question, answer), "reducers": list(REDUCERS)}


def answered(fields: str, seconds: float, stopped: Callable[[], bool]) -> str:
    """The answer to a page that has Python inside, as JSON.

    Args:
        fields: the question's, as JSON.
        seconds: the time limit of each derivation.
        stopped: whether the page wants no answer any more.
    """
    question = question_of(json.loads(fields))
    with time_limit(seconds, _Stopped(stopped)):
        return json.dumps(answer_json(question, ask(question)))


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A function as an event."""

    is_set: Callable[[], bool]
