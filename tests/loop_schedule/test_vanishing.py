"""Is there anything to repair where a producer sits at a singular point?  How the previous value is read says so."""

from __future__ import annotations

import pytest
import small_operators as small
from tvm import te

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Op, Previous, walk
from neptune_lab.loop_schedule import Schedule


def guards(definition: small.Definition) -> list[Op]:
    """Guards on previous values in the repaired sum, outermost first."""
    sch = small.schedule(definition)
    sch.split("r.j", (None, 2))
    sch.rolling_update("o", "r.j0")
    assert sch.check()
    value = tree.find_block(sch.program, "o")[1].body.value
    found = [e for e in walk(value) if isinstance(e, Op) and e.name == "guard"]
    return [e for e in found[::-1] if any(isinstance(x, Previous) for x in walk(e.args[0]))]


def masked(c):
    return te.if_then_else(c > 0.0, c, te.const(float("-inf"), "float32"))


def test_a_maximum_at_minus_infinity_has_met_nothing():
    """exp(-inf - r') * 0 is 0 by itself: no guard on the previous value, and nothing that could overflow."""
    definition = small.pair(lambda c, r: te.exp(masked(c) - r), of=masked)
    assert guards(definition) == []


def test_a_largest_magnitude_of_zero_has_met_zeros():
    """0 * 0 / r' ** 2 would do; the current value stands in for both singular values, and h does nothing."""
    found = guards(small.l2_norm())
    assert {e.args[1].value for e in found} == {0.0, float("-inf")}
    assert not any(e.args[2] == Op("guard", ()) for e in found)
    for guard in found:
        assert any(getattr(e, "buffer", "") == "r" for e in walk(guard.args[2])), "the current value stands in"


@pytest.mark.parametrize(
    "term",
    [
        pytest.param(lambda x, r, i, j: te.exp(masked(x[i, 4 - j]) - r[i]) * x[i, j], id="other elements"),
        pytest.param(lambda x, r, i, j: te.exp(x[i, j] - r[i]), id="not masked"),
    ],
)
def test_what_may_have_been_carried_keeps_its_stand_in(term):
    """The sum reads other values than the maximum does: they are carried as made with the stand-in."""
    x = small.matrix()
    r = small.fold("max", "r", 3, 5, lambda i, j: masked(x[i, j]))
    o = small.fold("sum", "o", 3, 5, lambda i, j: term(x, r, i, j))
    found = guards(([x], [o]))
    assert [(e.args[1].value, e.args[2].value) for e in found] == [(float("-inf"), 0.0)]


def test_a_choice_of_the_definition_is_no_guard():
    """where(s == 0, 1, s) in a definition is what it says, also after a step of TVM's schedule."""
    x = small.matrix()
    r = small.fold("sum", "r", 3, 5, lambda i, j: x[i, j])
    o = small.compute((3,), lambda i: te.if_then_else(r[i] == 0.0, te.const(1.0, "float32"), r[i]), name="o")
    sch = Schedule(small.operator(([x], [o])))
    sch.split("r.j", (None, 2))
    names = {e.name for e in walk(tree.find_block(sch.program, "o")[1].body.value) if isinstance(e, Op)}
    assert "select" in names
    assert "guard" not in names
