"""Repairs that are right over the reals: those that are right in float32 too are taken, and the others are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import small_operators as small
from tvm import te, tirx

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.pipeline import SplitKConfig, schedule
from neptune_lab.repair import RepairTerm


def fused(definition: small.Definition, update: str):
    sch = small.schedule(definition)
    sch.split("r.j", (None, 2))
    getattr(sch, update)("o", "r.j0")
    return sch


def of_other_values() -> small.Definition:
    """exp(x - max of y): while y is small, what x makes overflows, and it counts for nothing in the end."""
    x, y = small.matrix(), small.matrix("y")
    r = small.fold("max", "r", 3, 5, lambda i, j: te.tanh(y[i, j]) * 300.0)
    return [x, y], [small.fold("sum", "o", 3, 5, lambda i, j: te.exp(x[i, j] - r[i]) * y[i, j])]


def where_met(condition: Callable[[Any, Any], Any], m: int = 5, *, finite: bool = True) -> small.Definition:
    """The same where a condition is met, so that numbers must meet it to show it."""
    x, y, z = (small.matrix(name, m=m) for name in "xyz")

    def c(i: Any, j: Any) -> Any:
        return te.tanh(z[i, j]) * 300.0 if finite else z[i, j]

    def term(i: Any, j: Any) -> Any:
        return te.if_then_else(condition(y[i, j], j), te.exp(x[i, j] - r[i]), te.exp(c(i, j) - r[i]))

    r = small.fold("max", "r", 3, m, c)
    return [x, y, z], [small.fold("sum", "o", 3, m, term)]


# Right for float16 inputs; in float32 a mask's finfo.min in the first tile overflows when it is squared or summed.
UNBOUNDED = {
    "a square that overflows": lambda **of: small.pair(lambda c, r: c / te.sqrt(r * r + 0.5), **of),
    "weights of itself": lambda **of: small.pair(lambda c, r: te.exp(c - r) * c, **of),
    "weights of its magnitude": lambda **of: small.pair(lambda c, r: te.exp(c - r) * te.abs(c), **of),
}


# The largest is NaN where an element is, and the sum then 0; what was summed before it is no NaN yet, and becomes one.
HIDING_NAN = {
    "above -inf": lambda: small.pair(lambda c, r: te.if_then_else(r > -math.inf, te.exp(c - r), 0.0)),
    "equal to itself": lambda: small.pair(lambda c, r: te.if_then_else(tirx.EQ(r, r), te.exp(c - r), 0.0)),
}


REFUSED = {
    "grows with the maximum": lambda: small.pair(lambda c, r: te.exp(c + r)),
    "of other values": of_other_values,
    "of the mean": lambda: small.pair(lambda c, r: te.exp(c - r / 5), first="sum"),
    "of twice the maximum": lambda: small.pair(lambda c, r: te.exp(c - r * 2.0)),
    "of negative whole numbers": lambda: small.pair(lambda c, r: te.exp(c - r), "max", first="sum", dtype="int8"),
    "where a number is met": lambda: where_met(lambda y, _: tirx.EQ(y, tirx.const(3.5, "float32"))),
    "at one place": lambda: where_met(lambda _, j: tirx.EQ(j, tirx.const(300, "int32")), m=301),
    **HIDING_NAN,
    **UNBOUNDED,
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_what_loses_its_digits_is_refused(name: str, update: str):
    with pytest.raises(RepairRefused, match="step 'range' failed") as caught:
        fused(REFUSED[name](), update)
    assert caught.value.failed_step == "range"
    assert caught.value.help
    assert "tile by tile" in caught.value.reason


def test_what_counts_where_a_number_is_met_counts_at_a_singular_point():
    """Where z is -inf so far, the sum of exp(x - max z) is no 0, but it would be kept as if it was."""
    definition = where_met(lambda y, _: tirx.EQ(y, tirx.const(3.5, "float32")), finite=False)
    with pytest.raises(RepairRefused, match="the program does not show that 'o_tile' is still its identity"):
        fused(definition, "rolling_update")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", UNBOUNDED)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_what_overflows_in_float32_is_taken_where_it_is_bounded(name: str, update: str):
    definition = UNBOUNDED[name](dtype="float16")
    given = np.array([[-65504, -65504, 3, 1, 0]] * 3, np.float16)
    expected = small.schedule(definition).run(x=given)["o"]
    np.testing.assert_allclose(fused(definition, update).run(x=given)["o"], expected, rtol=1e-5)


TAKEN = {
    "softmax": (lambda: small.pair(lambda c, r: te.exp(c - r)), "the factor exp(r - r') is at most 1: r only rises"),
    "root mean square": (small.rms_max, "is at most 1: r only rises"),
    "magnitude": (small.l2_norm, "is at most 1: r only rises"),
    "shifted": (lambda: small.pair(lambda c, r: te.exp(r - c), first="min"), "is at most 1: r only falls"),
    "bounded": (lambda: small.pair(lambda c, r: c * te.exp(te.tanh(r))), None),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_the_derivation_says_why_it_is_right_in_floats(name: str, update: str):
    make, why = TAKEN[name]
    sch = fused(make(), update)
    term = next(p.derivation for p in sch.phases if p.derivation is not None)
    assert isinstance(term, RepairTerm)
    last = term.steps[-1]
    assert last.title == "Range: in float32"
    assert "rolled and split in float32" in last.text
    if why is not None:
        shown = last.text.replace("_local", "")
        assert why in shown, shown


def test_a_sum_that_overflows_stays_what_it_is():
    """x / sqrt(inf) is 0 in the definition, and inf / inf must not make NaN of it."""
    sch = fused(small.rms_max(), "rolling_update")
    x = np.array([[1e30, 1, 2, 3, 4], [1, 2, 1e30, 3, -1e30], [1, 2, 3, 4, 5]], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(sch.run(x=x)["o"], small.schedule(small.rms_max()).run(x=x)["o"], rtol=1e-5)


@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_an_infinity_that_another_stage_divides_by_is_kept(update: str):
    """x / (|-inf| + 1) is 0, so a loop that makes NaN of a masked sum is refused, and the stages stay apart."""
    x, y = small.matrix(), small.matrix("y")
    r = small.fold("max", "r", 3, 5, lambda i, j: x[i, j])
    low = te.const(float("-inf"), "float32")
    o = small.fold("sum", "o", 3, 5, lambda i, j: te.if_then_else(y[i, j] > 0, x[i, j], low) * te.tanh(r[i]))
    z = small.compute((3,), lambda i: 1.0 / (te.abs(o[i]) + 1.0), name="z")
    sch = custom_schedule(([x, y], [z]), update)
    given = np.array([[3, 1, 2, 0, -1]] * 3, np.float32)
    with np.errstate(all="ignore"):
        found = run_in_python(sch.program, {"x": given, "y": given - 2})
    np.testing.assert_array_equal(found["z"], np.zeros(3))


@pytest.mark.nightly
def test_a_fold_that_reads_another_producer_comes_after_it():
    """Three reductions in turn, split: the second producer's element reads the first one."""
    x, y = small.matrix(n=2, m=5), small.matrix("y", n=2, m=5)
    r = small.fold("max", "r", 2, 5, lambda i, j: te.max(x[i, j], 0.0))
    s = small.fold("sum", "s", 2, 5, lambda i, j: x[i, j] * y[i, j] / te.sqrt(r[i] * r[i] + 0.5))
    o = small.fold("sum", "o", 2, 5, lambda i, j: te.exp(y[i, j] - s[i]) / (te.abs(r[i]) + 1.0) * x[i, j])
    sch = custom_schedule(([x, y], [o]), "split_k_update")
    assert sch.check()


def custom_schedule(definition: small.Definition, template: str):
    """The definition through a template; stages that are refused stay apart."""
    return schedule(small.operator(definition), template, block_kv=2)


def square_of_tanh(after) -> small.Definition:
    """The sum of exp(x * x - max x) is infinite at 300, and after(it) is an output."""
    inputs, (total,) = small.pair(lambda c, r: te.exp(c * c - r))
    return inputs, [te.compute((3,), lambda i: after(total[i]), name="e")]


@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_an_infinity_that_an_output_tells_from_nan_is_kept_or_refused(update: str):
    """inf * exp(r - r') is NaN where the factor is 0; tanh makes a 1 of the definition's infinity."""
    with pytest.raises(RepairRefused, match="step 'range' failed"):
        fused(square_of_tanh(te.tanh), update)
    fused(square_of_tanh(lambda r: r * 2.0), update)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_an_infinity_that_a_later_reduction_tells_from_nan_is_kept(template: str):
    """The smallest x / sqrt(inf) is 0: the sum of exp(x * x - max x) may not be NaN where the definition's is inf."""
    (x,), (total,) = small.pair(lambda c, r: te.exp(c * c - r))
    extent = int(x.shape[1])
    o = small.fold("min", "low", 3, extent, lambda i, j: x[i, j] / te.sqrt(total[i] * total[i] + 0.5))
    sch = custom_schedule(([x], [small.compute((3,), lambda i: o[i] + 1.0, name="e")]), template)
    given = np.array([[95.0] * (extent - 1) + [2000.0]] * 3, np.float32)
    with np.errstate(all="ignore"):
        found = run_in_python(sch.program, {"x": given})
    np.testing.assert_array_equal(found["e"], np.ones(3))


def test_a_producer_whose_elements_are_not_found_is_refused():
    """r is split and combined: its own loop folds what the splits made, and repaired on the way."""
    x, v = small.matrix(n=2, m=7), small.matrix("v", n=2, m=7)
    r = small.fold("sum", "r", 2, 7, lambda i, j: te.tanh(x[i, j]))
    o = small.fold("sum", "o", 2, 7, lambda i, j: te.exp(te.tanh(x[i, j]) - r[i]) * v[i, j])
    sch = schedule(small.operator(([x, v], [o])), "split_k_update", block_kv=2, config=SplitKConfig(splits=2))
    with pytest.raises(ScheduleError) as caught:
        sch.rolling_update("o", "r.j0", maps="inline")
    assert caught.value.help


@pytest.mark.parametrize(("columns", "widths"), [(1, 1), (3, 4)])
def test_elements_of_an_iteration_differ_from_those_of_the_next(columns: int, widths: int):
    """A tile of one element along the rolling loop has no loop over its elements; each still has a value of its own."""
    x = small.matrix(m=columns)

    def total(name: str, term: Callable[..., Any]) -> Any:
        j, k = te.reduce_axis((0, columns), name="j"), te.reduce_axis((0, widths), name="k")
        axes = [j] if widths == 1 else [j, k]
        return small.compute((3,), lambda i: te.sum(term(i, j), axis=axes), name=name)

    r = total("r", lambda i, j: x[i, j])
    sch = small.schedule(([x], [total("o", lambda i, j: te.exp(x[i, j] - r[i]))]))
    with pytest.raises(RepairRefused, match="step 'range' failed"):
        sch.rolling_update("o", "r.j")
