"""Exercises: verdicts in words and signs, hints that unfold, refusals of the compiler passed on."""

from __future__ import annotations

from neptune_widgets.course import NotYet, exercise

from neptune_lab.errors import ScheduleError


@exercise("The sum of `a` and b", hints=("count", "count on your fingers: 2 < 3"))
def total(answer: int) -> str:
    if answer == 9:
        raise ScheduleError("no such block", node="qk", help="there is qk")
    if answer != 5:
        raise NotYet(f"`{answer}` is not the sum")
    return "2 and 3 are 5"


def test_the_three_verdicts():
    assert repr(total(5)) == "✓ Right: 2 and 3 are 5"
    assert repr(total(4)) == "✗ Not yet: `4` is not the sum"
    assert repr(total(None)).startswith("○ Not answered yet")
    assert [bool(total(x)) for x in (5, 4, None)] == [True, False, False]


def test_hints_unfold_one_after_the_other():
    html = total(4)._repr_html_()
    assert html.index("Hint 1 of 2") < html.index("<p>count</p><details><summary>Hint 2 of 2") < html.index("2 &lt; 3")
    assert html.count("<details>") == html.count("</details>") == 2
    assert "Hint" not in total(5)._repr_html_()


def test_html_says_in_words_what_it_says_in_colour_and_escapes_what_was_given():
    assert "<p><b>✗ Not yet.</b> <span>The sum of <code>a</code> and b</span></p>" in total(4)._repr_html_()
    assert "<b>✓ Right.</b>" in total(5)._repr_html_()
    assert "&lt;script&gt;" in total("<script>")._repr_html_()


def test_a_refusal_of_the_compiler_is_the_reason():
    verdict = total(9)
    assert verdict.state == "wrong"
    assert "no such block" in verdict.text
    assert "help: there is qk" in verdict.text
