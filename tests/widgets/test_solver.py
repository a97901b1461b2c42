"""The solver's panel, Python's side: what it answers, when it answers, and what is left without script."""

from __future__ import annotations

import asyncio
import json
from html import unescape

import pytest
from neptune_widgets.answers import Answer, Question, ask, assumptions
from neptune_widgets.solver import Solver

import neptune_lab as nl
from neptune_lab.errors import RepairError
from neptune_lab.repair import RepairTerm, VectorRepair, solve, solve_vector


@pytest.mark.parametrize(
    ("question", "state", "words"),
    [
        (Question(), "solved", "h(t, r, r') = t*exp(r - r')"),
        (Question("exp(c - r)*v/s", producers="r, s"), "solved", "h(t, r, s, r', s') = t*s*exp(r - r')/s'"),
        (Question("c*r", "max", assumptions="r >= 0"), "solved", "h(t, r, r') = t*r'/r"),
        (Question("c*r", "max"), "refused", "refused at the step 'prove Eq. 4'"),
        (Question("c + eps*r", "max", assumptions="eps > 0", constants="eps"), "solved", "t + eps*r' - eps*r"),
        (Question("(c - r)**2"), "family", "not alone, but with companions: h_0(t_0, t_1, t_2, r, r')"),
        (Question("max(c, r)"), "refused", "refused at the step 'invert', and as a family at 'close'"),
    ],
)
def test_what_is_found_and_what_is_refused(question: Question, state: str, words: str):
    found = ask(question)
    assert found.state == state
    assert words in found.words


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question(""), "write a term g"),
        (Question("exp(c - "), "was never closed"),
        (Question("expp(c - r)"), "'expp', which is not a known function; known: abs"),
        (Question(producers=" , "), "results r of other reductions"),
        (Question(assumptions="r >= 0, big"), "the assumption 'big' is not readable: write r >= 0"),
        (Question(assumptions="q > 0"), "about q, which g does not have"),
        (Question(reducer="mean"), "reducer is 'mean'"),
        (Question("c.real - r"), "neither arithmetic"),
    ],
)
def test_what_is_half_typed_is_not_an_error(question: Question, words: str):
    found = ask(question)
    assert found.state == "unread"
    assert words in found.words
    assert "<unknown>" not in found.words
    assert found.attempts == ()


# Seconds; the end of a wait that succeeds sooner unless the tested code is wrong.
LONG = 300


def test_a_bug_of_the_solver_is_seen(monkeypatch):
    def broken(*_: object, **__: object):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("neptune_widgets.answers.solve", broken)
    assert ask(Question()) == Answer("failed", "the solver failed, which is a bug: ZeroDivisionError: oops")


def test_assumptions_in_signs_and_in_words():
    assert assumptions("a > 0, b>=0; c < 0, d <= 0.0, e != 0, f is finite, g: integer, h ≥ 0, a finite") == {
        "a": ["positive", "finite"],
        "b": ["nonnegative"],
        "c": ["negative"],
        "d": ["nonpositive"],
        "e": ["nonzero"],
        "f": ["finite"],
        "g": ["integer"],
        "h": ["nonnegative"],
    }
    assert assumptions(" ") == {}
    for wrong in ("r", "r > 1", "r huge", "> 0", "r >= 0 >= s"):
        with pytest.raises(RepairError, match="not readable"):
            assumptions(wrong)


def asked(panel: Solver, **fields: str) -> dict:
    """The page's end of the wire: fields as they are typed, and the answer."""
    panel.question = {**panel.question, **fields}
    return panel.answer


def test_each_edit_is_answered_and_the_term_is_at_hand():
    panel = nl.solver()
    assert isinstance(panel.term, RepairTerm)
    assert repr(panel) == f"<Solver: shown in a notebook; its term is {panel.term!r}>"
    answer = asked(panel, g="c - r")
    assert answer["question"] == panel.question
    assert answer["state"] == "family"
    assert isinstance(panel.term, VectorRepair)
    alone, family = answer["attempts"]
    assert alone["refusal"]["step"] == "prove Eq. 4"
    assert "not additive" in alone["refusal"]["reason"]
    assert alone["refusal"]["help"]
    titles = [step["title"].partition(":")[0] for step in alone["steps"]]
    assert titles == ["Read", "Separate", "Invert", "Derive"], "the steps before the one that refused"
    assert [s["title"] for s in family["steps"]] == [s.title for s in solve_vector("sum", "c - r", "r").steps]
    assert family["formula"].startswith("<math xmlns=")
    assert asked(panel, g="c -")["state"] == "unread"
    assert panel.term is None
    json.dumps(panel.answer)


async def answered(panel: Solver, **fields: str) -> None:
    """Waits until the panel shows the answer to these fields."""
    async with asyncio.timeout(LONG):
        while panel.running or any(panel.answer["question"][name] != value for name, value in fields.items()):
            await asyncio.sleep(0.01)


def test_of_edits_that_come_together_the_last_one_is_solved(monkeypatch):
    solved = []

    def recording(question: Question) -> Answer:
        solved.append(question.g)
        return ask(question)

    panel = nl.solver()
    monkeypatch.setattr("neptune_widgets.solver.ask", recording)

    async def typing() -> None:
        for g in ("exp(c)", "exp(c -)", "exp(c - r)/2"):
            asked(panel, g=g)
        assert solved == []
        await answered(panel, g="exp(c - r)/2")

    asyncio.run(typing())
    assert solved == ["exp(c - r)/2"]
    assert panel.answer["question"]["g"] == "exp(c - r)/2"


SLOW = "(c + r)**100"


def test_the_kernel_goes_on_while_a_term_is_solved_and_the_panel_can_be_stopped():
    panel = nl.solver()

    async def use() -> None:
        asked(panel, g=SLOW)
        async with asyncio.timeout(LONG):
            while not panel.running:  # this loop, which is the kernel's, is not kept
                await asyncio.sleep(0.01)
        panel.running = False  # what the page's button does
        await answered(panel, g=SLOW)

    asyncio.run(use())
    assert panel.answer["state"] == "refused"
    assert {attempt["refusal"]["step"] for attempt in panel.answer["attempts"]} == {"time"}
    assert panel.answer["attempts"][0]["refusal"]["reason"] == "the derivation was stopped"
    assert panel.term is None
    assert asked(panel, g="exp(c - r)")["state"] == "solved"


def test_a_new_question_stops_the_one_before():
    panel = nl.solver()

    async def use() -> None:
        asked(panel, g=SLOW)
        async with asyncio.timeout(LONG):
            while not panel.running:
                await asyncio.sleep(0.01)
        asked(panel, g="c/r")
        await answered(panel, g="c/r")

    asyncio.run(use())
    assert panel.answer["question"]["g"] == "c/r"
    assert panel.answer["state"] == "solved"


def test_what_a_page_sends_is_taken_as_text_and_cut():
    panel = nl.solver()
    panel.question = {"g": "c" * 5000, "nonsense": 1, "reducer": 3}
    assert panel.answer["state"] == "unread"
    assert len(panel.answer["question"]["g"]) == 300


def test_arguments_as_the_solver_itself_takes_them():
    panel = nl.solver("c/sqrt(r + eps)", producers=["r"], assumptions={"r": ["nonnegative"], "eps": "positive"})
    expected = solve("sum", "c/sqrt(r + eps)", "r", assumptions={"r": "nonnegative", "eps": "positive"})
    assert panel.term == expected
    assert panel.question["assumptions"] == "r nonnegative, eps positive"


def test_without_script_it_says_the_same():
    data, _ = nl.solver("(c - r)**2", assumptions="r >= 0")._repr_mimebundle_() or ({}, {})
    html = unescape(data["text/html"])
    for shown in (html, data["text/plain"]):
        assert "sum of (c - r)**2, repaired in r; r >= 0" in shown
        assert "✓ not alone, but with companions" in shown
        assert "✓ Invert: solve t = g0(r, C) for C" in shown.partition("✗ prove Eq. 4")[0]
        assert "✓ Close: g and its derivatives" in shown
    assert "<script" not in html
    assert "a<b" not in nl.solver("a<b")._repr_mimebundle_()[0]["text/html"]  # type: ignore[index]
