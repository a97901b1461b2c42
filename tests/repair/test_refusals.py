"""What has no repair term is refused, with the step that failed, on what, and what would help."""

from __future__ import annotations

import pytest
import sympy as sp

from neptune_lab.repair import RepairError, solve, solve_vector
from neptune_lab.repair.change_of_variables import change_variables


@pytest.mark.parametrize(
    ("reducer", "g", "step", "match"),
    [
        ("sum", "c - r", "prove Eq. 4", r"not additive: h\(x \+ y\) - h\(x\) - h\(y\) = r' - r"),
        ("sum", "(c - r)**2", "prove Eq. 4", r"two solutions for C.*not additive"),
        ("max", "c*r", "prove Eq. 4", r"not monotone in t: the factor r'/r may be negative"),
        ("min", "c*r", "prove Eq. 4", "not monotone"),
        ("max", "1/(c + r)", "prove Eq. 4", "not monotone"),
        ("max", "(c - r)**2", "prove Eq. 4", "not monotone"),
        ("prod", "exp(c - r)", "prove Eq. 4", "not multiplicative"),
        ("prod", "r", "prove Eq. 4", "not multiplicative"),
        ("sum", "tanh(c - r)", "prove Eq. 4", "not additive"),
        ("sum", "c1*r + c2", "separate", "c1 and c2 meet r in different ways"),
        ("sum", "exp(c*r - d)", "separate", "does not separate"),
        ("sum", "max(c, r)", "invert", "max forgets"),
        ("sum", "sin(c - r)", "invert", "infinitely often"),
        ("sum", "exp(c - r)*(c - r)", "invert", "more than one place"),
        ("sum", "c/sqrt(r)", "prove Eq. 3", "not known to be real"),
        ("sum", "c*log(r)", "prove Eq. 3", "not known to be real"),
        ("sum", "sin(r)*c", "guard", "where was not found"),
        # t = c1*r * c2*r needs r as often as there are terms, which t does not tell.
        ("prod", "c*r", "prove Eq. 4", "not multiplicative"),
        ("max", "max(c - r, 0)", "invert", "max forgets"),
        ("max", "tanh(c - r)", "prove Eq. 4", "not monotone"),
    ],
)
def test_refused(reducer, g, step, match):
    with pytest.raises(RepairError, match=match) as refused:
        solve(reducer, g, "r")
    assert refused.value.step == step
    assert refused.value.expression
    assert refused.value.help


def test_the_help_names_the_assumption_that_makes_it_pass():
    with pytest.raises(RepairError) as refused:
        solve("max", "c*r", "r")
    assert "assumptions={'r': ['nonnegative']}" in (refused.value.help or "")
    assert solve("max", "c*r", "r", assumptions={"r": ["nonnegative"]})


def test_max_over_positive_terms_only_does_not_keep_minus_infinity():
    """h = t**(r'/r) is monotone for t > 0, but the loop starts from -oo."""
    with pytest.raises(RepairError, match="does not keep the identity -∞"):
        solve("max", "exp(c*r)", "r", assumptions={"r": "positive"})
    assert solve("min", "exp(c*r)", "r", assumptions={"r": "positive"})


def test_two_producers_that_cancel_cannot_be_guarded():
    with pytest.raises(RepairError, match="for many pairs of r1 and r2") as refused:
        solve("sum", "c/(r1 - r2)", ["r1", "r2"])
    assert refused.value.step == "guard"


@pytest.mark.parametrize(
    ("g", "match"),
    [
        ("__import__('os').system('true')", "neither arithmetic nor a known function"),
        ("c.real", "neither arithmetic"),
        ("(lambda: c)()", "neither arithmetic"),
        ("f(c) - r", "'f', which is not a known function"),
        ("exp(c, r)", "takes 1 argument"),
        ("exp(c", "not an expression"),
        ("c if r else c", "neither arithmetic"),
        ("c < r", "neither arithmetic"),
        ("c ^ r", "a power is"),
        ("'c'", "not a real number"),
        ("1j*c", "not a real number"),
        ("1e999*c", "not a finite number"),
        ("c/0", "divides by 0"),
        ("9**9**9**9", "too large"),
        ("c" + "+c" * 2000, "characters long"),
        ("-" * 100 + "c", "nests deeper"),
        ("max()", "takes one or more"),
    ],
)
def test_text_is_parsed_not_evaluated(g, match):
    with pytest.raises(RepairError, match=match) as refused:
        solve("sum", g, "r")
    assert refused.value.step == "read"


def test_arguments_are_checked():
    c, r = sp.symbols("c r")
    for match, call in {
        "reducer is 'mean'": lambda: solve("mean", "c", "r"),
        "no producer": lambda: solve("sum", "c", []),
        "named twice": lambda: solve("sum", "c/r", ["r", "r"]),
        "not an assumption": lambda: solve("sum", "c/r", "r", assumptions={"r": ["tiny"]}),
        "contradict": lambda: solve("sum", "c/r", "r", assumptions={"r": ["positive", "negative"]}),
        "does not have the producer big\n.*did you mean biggest": lambda: solve("sum", "exp(c - biggest)", "big"),
        "does not have the producer xmx\n.*did you mean xmax": lambda: solve_vector("sum", "c - xmax", "xmx"),
        "about q, which g does not have": lambda: solve("sum", "c/r", "r", assumptions={"q": ["positive"]}),
        "does not have the constant esp": lambda: solve("sum", "c/(r + eps)", "r", constants=["esp"]),
        "True or False": lambda: solve("sum", "c/r", "r", assumptions={"r": {"positive": 1}}),
        "both a producer and a constant": lambda: solve("sum", "c/r", "r", constants=["r"]),
        "symbols called c": lambda: solve("sum", sp.Dummy("c") / sp.Dummy("c"), "c"),
        "nothing is known of f": lambda: solve("sum", sp.Function("f")(c - r), [r]),
        "declared not to be real": lambda: solve("sum", sp.Symbol("c", imaginary=True) / r, [r]),
        "g is a list": lambda: solve("sum", [c], [r]),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(RepairError, match=match) as refused:
            call()
        assert refused.value.step == "read"


def test_a_producer_without_an_effect_is_named():
    term = solve("sum", "exp(c - r)", ["r", "q"])
    assert [line.text for line in term.steps[0].lines] == ["f(x, y) = x + y", "g does not depend on q"]
    assert len(solve("sum", "exp(c - r)", ["r"]).steps[0].lines) == 1


def test_words_and_booleans_say_the_same():
    words = solve("max", "c*r", "r", assumptions={"r": ["nonnegative"]})
    assert solve("max", "c*r", "r", assumptions={sp.Symbol("r"): {"nonnegative": True}}) is words
    assert solve("max", "c*r", "r", assumptions={"r": {"negative": False}})


@pytest.mark.parametrize(
    ("g", "done"),
    [
        ("exp(c*r - d)", ["Read"]),
        ("max(c, r)", ["Read", "Separate"]),
        ("c - r", ["Read", "Separate", "Invert", "Derive"]),
        ("(c - r)**2", ["Read", "Separate", "Invert", "Derive", "Derive on the other branch"]),
    ],
)
def test_a_refusal_has_the_steps_before_it(g, done):
    for _ in range(2):  # a refusal is not kept, so the second one is derived again
        with pytest.raises(RepairError) as refused:
            solve("sum", g, "r")
        assert [step.title.partition(":")[0] for step in refused.value.passed] == done
        assert all(step.ok for step in refused.value.passed)
    # Under a reducer that takes it, the term has these steps too, in the same words.
    if g == "c - r":
        found = solve("max", g, "r").steps[1:4]
        assert [step.text for step in refused.value.passed[1:]] == [step.text for step in found]
        assert "C = t + r" in refused.value.passed[2].text


def test_what_cannot_be_read_has_no_steps():
    with pytest.raises(RepairError) as refused:
        solve("sum", "exp(c - ", "r")
    assert refused.value.passed == ()


@pytest.mark.parametrize(
    ("g", "constant"),
    [("exp(s*c - r)*x + b", "b"), ("exp(x - max(r, v))", "v"), ("exp(c*r - d)", "d"), ("c1*exp(r) + c2", "c2")],
)
def test_the_help_names_a_constant_with_which_the_term_separates(g: str, constant: str):
    with pytest.raises(RepairError, match="does not separate") as refused:
        solve("max", g, "r")
    assert f"if {constant} has one value for the whole reduction, declare it: constants=['{constant}']" in str(
        refused.value.help
    )
    r, C = sp.symbols("r C", real=True)
    named = {name: sp.Symbol(name, real=True) for name in ("r", "s", "c", "x", "b", "v", "d", "c1", "c2")}
    term = sp.sympify(g.replace("max", "Max"), locals=named)  # pyright: ignore[reportCallIssue]
    assert change_variables(term, [r], constants=[named[constant]], variable=C).constants


def test_the_help_names_two_constants_or_none():
    for g, words in (
        (
            "a*r + b*r**2 + d*r**3",
            "if b and d have one value for the whole reduction, declare them: constants=['b', 'd']",
        ),
        ("a*r + b*r**2 + d*r**3 + e*r**4", "declare inputs that have one value for the whole reduction as constants"),
    ):
        with pytest.raises(RepairError, match="does not separate") as refused:
            solve("sum", g, "r")
        assert words in str(refused.value.help)
