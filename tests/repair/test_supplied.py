"""A repair term that somebody gives: proved as a derived one, or refused with numbers that anybody can check."""

from __future__ import annotations

import math

import pytest

from neptune_lab.repair import RepairError, WrongRepair, prove_supplied, solve, text


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("reducer", "g", "producers", "h"),
    [
        ("sum", "exp(c - r)", ["r"], "t*exp(r_before)/exp(r_now)"),
        ("sum", "c/r", ["r"], "r_before*t/r_now"),
        ("sum", "exp(c - m)*v/s", ["m", "s"], "t*exp(m_before - m_now)*s_before/s_now"),
        ("max", "c - r", ["r"], "t - (r_now - r_before)"),
        ("prod", "c**2", ["r"], "t"),
    ],
)
def test_a_right_one_is_proved_and_is_the_derived_one(reducer, g, producers, h):
    given, derived = prove_supplied(reducer, g, producers, h), solve(reducer, g, producers, constants=())
    assert text(given.h) == text(derived.h)
    assert [p.equation for p in given.proofs] == ["Eq. 3", "Eq. 4"]
    assert given.unproved is None
    assert [s.title.split(":")[0] for s in given.steps if "Given" in s.title or "Derive" in s.title] == ["Given"]
    assert [g.as_record() for g in given.guards] == [g.as_record() for g in derived.guards]


def refused(reducer: str, g: str, h: str) -> WrongRepair:
    with pytest.raises(WrongRepair) as found:
        prove_supplied(reducer, g, ["r"], h)
    return found.value


@pytest.mark.parametrize(
    ("h", "computed", "step", "help"),
    [
        ("t*exp(r_now - r_before)", lambda t, r, q: t * math.exp(q - r), "prove Eq. 3", "before and now are exchanged"),
        ("exp(r_before - r_now)", lambda t, r, q: math.exp(r - q), "prove Eq. 3", "t is missing"),
        ("t", lambda t, r, q: t, "prove Eq. 3", "naive fusion"),
        ("t + 1", lambda t, r, q: t + 1, "prove Eq. 3", "the derived h is t*exp(r_before - r_now)"),
    ],
)
def test_a_wrong_one_is_refused_with_numbers_that_hold(h, computed, step, help):
    error = refused("sum", "exp(c - r)", h)
    assert (error.step, error.expression) == (step, h)
    assert help in (error.help or "")
    example = error.counterexample
    assert example is not None
    ((_, r),), ((_, now),) = example.previous, example.current
    cs = [dict(term)["c"] for term in example.inputs]
    assert example.t == pytest.approx(sum(math.exp(c - r) for c in cs))
    assert example.expected == pytest.approx(sum(math.exp(c - now) for c in cs))
    assert example.found == pytest.approx(computed(example.t, r, now))
    assert abs(example.found - example.expected) > 0.01
    assert f"h gives {example.found:.6g}, but should give {example.expected:.6g}" in error.reason


def test_where_one_term_is_carried_rightly_two_show_it():
    """h = t + r - r' moves one term c - r, and a sum of two by half of what it should."""
    error = refused("sum", "c - r", "t + r_before - r_now")
    assert error.step == "prove Eq. 4", "Eq. 3 holds"
    example = error.counterexample
    assert example is not None
    assert len(example.inputs) == 2
    ((_, r),), ((_, now),) = example.previous, example.current
    assert example.found == pytest.approx(example.t + r - now)
    assert example.expected == pytest.approx(example.t + 2 * (r - now))


@pytest.mark.parametrize("falling", [(), ("r",)])
def test_a_counterexample_moves_a_minimum_down(falling):
    """Numbers that a loop can meet are followed more easily than those that it cannot."""
    with pytest.raises(WrongRepair) as found:
        prove_supplied("sum", "exp(r - c)", ["r"], "t*exp(r_before - r_now)", falling=falling)
    example = found.value.counterexample
    assert example is not None
    ((_, before),), ((_, now),) = example.previous, example.current
    assert (now < before) == bool(falling)


def test_a_truth_value_may_not_change():
    assert prove_supplied("any", "c", ["r"], "t").unproved is None
    assert refused("any", "c", "1 - t").step == "prove Eq. 3"


@pytest.mark.parametrize(
    ("h", "message"),
    [
        ("t*exp(r - r')", "not an expression"),
        ("t*exp(rr_before - r_now)", "'rr_before', which is none of its names"),
        ("t*exp", "'exp', which is none"),
        ("t*foo(r_now)", "h calls 'foo'"),
        ("t/0", "h divides by 0"),
        ("", "not an expression"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_names_that_there_are(h, message):
    with pytest.raises(RepairError, match=message) as found:
        prove_supplied("sum", "exp(c - r)", ["r"], h)
    assert found.value.step == "read"
    assert "t, r_before and r_now" in (found.value.help or "")


def test_one_that_is_not_proved_goes_through_on_request_and_says_why():
    term = prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_now - r_before)", unproved=True)
    assert term.unproved is not None
    assert (term.unproved.step, term.unproved.wrong) == ("prove Eq. 3", True)
    assert [s.title for s in term.steps if not s.ok] == ["Prove Eq. 3: not proved"]
    assert term.evaluate(1.0, {"r": 0.0}, {"r": 1.0}) == pytest.approx(math.e)
    assert [g.as_record()["point"] for g in term.reachable_guards("r", "max")] == ["-∞"]
    right = prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_before - r_now)", unproved=True)
    assert right.unproved is None
