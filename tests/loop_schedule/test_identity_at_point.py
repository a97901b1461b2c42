"""Is there anything to repair where a producer sits at a singular point?  How the previous value is read says so."""

from __future__ import annotations

import numpy as np
import pytest
import small_operators as small
from tvm import te

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Op, Previous
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import norms
from neptune_lab.pipeline import SplitKConfig, compile, schedule


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
    for guard in found:
        assert any(getattr(e, "buffer", "") == "r" for e in walk(guard.args[2])), "the current value stands in"


@pytest.mark.nightly
def test_a_largest_magnitude_is_minus_infinity_only_if_everything_is_masked():
    """|x| is never -inf, so with splits that do not divide the columns the sum of squares is still 0 then."""
    made = compile(norms.l2_norm(2, 41), "split_k_update", config=SplitKConfig(block_kv=4, splits=3), validate="full")
    assert len(made.htile.kernels) == 2, "the splits, and what combines them"


@pytest.mark.parametrize(
    "term",
    [
        pytest.param(lambda x, r, i, j: te.exp(masked(x[i, 4 - j]) - r[i]) * x[i, j], id="other elements"),
        pytest.param(lambda x, r, i, j: te.exp(x[i, j] - r[i]), id="not masked"),
    ],
)
def test_what_may_have_been_accumulated_is_refused(term):
    """The sum reads other values than the maximum does: at r = -inf it may hold numbers that a stand-in would spoil."""
    x = small.matrix()
    r = small.fold("max", "r", 3, 5, lambda i, j: masked(x[i, j]))
    o = small.fold("sum", "o", 3, 5, lambda i, j: term(x, r, i, j))
    with pytest.raises(ScheduleError, match="step 'guard' failed"):
        guards(([x], [o]))


def quotient(x, y):
    """Zero rows give 0/0, x/0 or 0 * inf; a guard at r = 0 must hide none of them."""
    r = small.fold("max", "r", 3, 6, lambda i, j: te.abs(x[i, j]))
    return [
        small.fold("sum", "o", 3, 6, lambda i, j: (te.abs(x[i, j]) + 1.0) / r[i]),
        small.fold("sum", "o", 3, 6, lambda i, j: te.exp(x[i, j]) * y[i, j] / r[i]),
        small.fold("sum", "o", 3, 6, lambda i, j: (x[i, j] + y[i, j]) / r[i]),
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_a_guard_does_not_hide_an_infinity(which: int, update: str):
    """sum (|x| + 1) / max|x| is infinite on a row of zeros."""
    x, y = small.matrix(m=6), small.matrix("y", m=6)
    sch = small.schedule(([x, y], [quotient(x, y)[which]]))
    sch.split("r.j", (None, 2))
    with pytest.raises(ScheduleError, match=r"step 'guard' failed: '.*' can be 0 before the loop ends"):
        getattr(sch, update)("o", "r.j0")


INF = float("inf")
ROWS = np.array(
    [
        [-INF] * 6, [-INF, -INF, -300, -301, -INF, -302], [-INF, -INF, -INF, -INF, 5, -INF],
        [5, -INF, 4, -INF, -INF, -INF],
        [0] * 6, [0, 0, 0, 0, 3, -4], [-200] * 6, [-INF, -INF, INF, 1, 2, 3], [np.nan, -INF, 1, 2, 3, 4],
    ],
    np.float32,
)  # fmt: skip


def causal(value, i, j, otherwise=-INF):
    return te.if_then_else(j <= i + 2, value, te.const(otherwise, "float32"))


def special(name: str, n: int = len(ROWS), m: int = 6) -> small.Definition:
    """Sums whose producer can be singular, each an output itself, so that nothing after it hides a slip."""
    # In float32, (x - y) can be the lowest float, and sums of it overflow while r is that too.
    dtype = "float16" if name == "divergence" else "float32"
    x, y = small.matrix(n=n, m=m, dtype=dtype), small.matrix("y", n, m)
    mask = causal if "masked" in name else lambda value, i, j, otherwise=0.0: value
    of = {"l2": te.abs, "mean": te.abs}.get(name, lambda c: c)
    r = small.fold("max", "r", n, m, lambda i, j: mask(of(x[i, j].astype("float32")), i, j))
    g = {
        "exp": lambda i, j: te.exp(x[i, j] - r[i]),
        "masked exp": lambda i, j: mask(te.exp(x[i, j] - r[i]), i, j, 0.0),
        "masked weighted": lambda i, j: mask(te.exp(x[i, j] - r[i]) * y[i, j], i, j, 0.0),
        "divergence": lambda i, j: te.exp(x[i, j].astype("float32") - r[i]) * (x[i, j].astype("float32") - y[i, j]),
        "l2": lambda i, j: (x[i, j] / r[i]) * (x[i, j] / r[i]),
        "mean": lambda i, j: x[i, j] / r[i],
    }[name]
    return ([x, y] if "weighted" in name or name == "divergence" else [x]), [small.fold("sum", "o", n, m, g)]


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", ["exp", "masked exp", "masked weighted", "divergence", "l2", "mean"])
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update", "both"])
def test_special_values_come_out_as_the_definition_has_them(name: str, update: str):
    """In float32, run as scheduled: finite where the definition is, and not finite where it is not."""
    sch = small.schedule(special(name))
    y = np.random.default_rng(0).standard_normal(ROWS.shape).astype(np.float32)
    rows = ROWS.astype(sch.operator.inputs[0].dtype)
    given = {"x": rows, "y": y} if len(sch.operator.inputs) > 1 else {"x": rows}
    with np.errstate(all="ignore"):
        expected = sch.run(**given)["o"]
    sch.split("r.j", (None, 2))
    if update == "both":
        sch = small.schedule(special(name))
        sch.split("r.j", (2, None, 1))
        sch.split_k_update("o", "r.j0")
        sch.rolling_update("o_local", "r_local.j1")
    else:
        getattr(sch, update)("o", "r.j0")
    with np.errstate(all="ignore"):
        found = sch.run(**given)["o"]
    good = np.isfinite(expected)
    assert good.any()
    assert (np.isfinite(found) == good)[seen(name)].all(), (expected, found)
    np.testing.assert_allclose(found[good], expected[good], rtol=1e-5, atol=1e-6)


def seen(name: str) -> np.ndarray:
    """Rows of which a mask removes no element that decides."""
    return np.array([not ("masked" in name and np.isinf(row[:6]).any()) for row in ROWS])


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


INFINITE = {
    "largest magnitude": (te.abs, lambda c, r: te.exp(c - r), "sum"),
    "largest square": (lambda c: c * c, lambda c, r: te.exp(c - r), "sum"),
    "largest of the largest magnitude": (te.abs, lambda c, r: te.exp(c - r), "max"),
    "smallest of the largest magnitude": (te.abs, lambda c, r: te.exp(c - r), "min"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", INFINITE)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_an_extremum_that_is_infinite_stays_so(name: str, update: str):
    """exp(x - inf) is 0, and exp(inf - inf) of h must not make NaN of it."""
    of, g, reducer = INFINITE[name]
    sch = small.schedule(small.pair(g, reducer, of=of, n=4, m=6))
    low = np.finfo(np.float32).min
    x = np.array(
        [[-INF, 1, 2, 3, 4, 5], [1, 2, -INF, 3, -INF, 4], [low, low, low, low, 1, 2], [1, 2, 0, 3, 4, -1]], np.float32
    )
    want = sch.run(x=x)["o"]
    assert np.isfinite(want).all()
    sch.split("r.j", (None, 2))
    getattr(sch, update)("o", "r.j0")
    np.testing.assert_allclose(sch.run(x=x)["o"], want, rtol=1e-5)


def test_what_is_no_number_anyway_needs_no_guard():
    """The score that takes the maximum to +inf makes NaN of its own weight: h has nothing to keep."""
    assert all(e.args[1].value < 1 for e in guards(small.pair(lambda c, r: te.exp(c - r))))
    assert all(e.args[1].value < 1 for e in guards(small.l2_norm()))


def masked_sum(mask):
    """The sum of masked exponentials: 0 on a row that the mask empties, NaN on one whose elements are all -inf."""
    x, y = small.matrix(m=6), small.matrix("y", m=6)
    r = small.fold("max", "r", 3, 6, lambda i, j: mask(x[i, j], y, i, j, -INF))
    return [x, y], [small.fold("sum", "o", 3, 6, lambda i, j: mask(te.exp(x[i, j] - r[i]), y, i, j, 0.0))]


def by_value(value, y, i, j, otherwise):
    return te.if_then_else(y[i, j] > 0.0, value, te.const(otherwise, "float32"))


def by_place(keeps):
    return lambda value, y, i, j, otherwise: te.if_then_else(keeps(i, j), value, te.const(otherwise, "float32"))


EMPTIES = {"a mask of values": by_value, "a band that leaves out rows": by_place(lambda i, j: i + j <= 1)}
NEVER_EMPTY = {
    "causal": by_place(lambda i, j: j <= i),
    "all but the first": by_place(lambda i, j: j >= 1),
    "from the row on": by_place(lambda i, j: j >= i),
}


@pytest.mark.parametrize("name", EMPTIES)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_a_row_that_a_mask_may_empty_is_not_guarded_at_the_end(name: str, update: str):
    """At r = -inf an output tells 0 from NaN, and one pass over the tiles cannot."""
    sch = small.schedule(masked_sum(EMPTIES[name]))
    sch.split("r.j", (None, 2))
    with pytest.raises(ScheduleError, match=r"step 'guard' failed: if 'r(_local)?' ends at"):
        getattr(sch, update)("o", "r.j0")


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", NEVER_EMPTY)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_a_row_that_keeps_an_element_shows_what_it_is(name: str, update: str):
    sch = small.schedule(masked_sum(NEVER_EMPTY[name]))
    x = np.stack([np.full(6, -INF), np.arange(6), np.where(np.arange(6) < 3, -INF, 1)]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = sch.run(x=x, y=x)["o"]
    sch.split("r.j", (None, 2))
    getattr(sch, update)("o", "r.j0")
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(sch.run(x=x, y=x)["o"], expected, rtol=1e-6)
    assert np.isnan(expected[0])


@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_a_row_of_masked_values_stays_nan_through_a_later_maximum(template: str):
    """max exp(x - sum) reads the sum alone, which is 0 behind a guard and NaN in the definition: no identity."""
    x, y = small.matrix(n=2, m=4), small.matrix("y", n=2, m=4)
    score = lambda i, j: te.if_then_else(y[i, j] > 0, x[i, j], te.const(float("-inf"), "float32"))  # noqa: E731
    r = small.fold("max", "r", 2, 4, score)
    total = small.fold("sum", "total", 2, 4, lambda i, j: te.exp(score(i, j) - r[i]))
    high = small.fold("max", "high", 2, 4, lambda i, j: te.exp(x[i, j] - total[i]))
    out = small.compute((2,), lambda i: high[i] / 2.0, name="out")
    sch = schedule(small.operator(([x, y], [out])), template, block_kv=2)
    given = {"x": np.ones((2, 4), np.float32), "y": np.array([[0] * 4, [0, 0, 1, 1]], np.float32)}
    with np.errstate(all="ignore"):
        found = run_in_python(sch.program, given)["out"]
    np.testing.assert_allclose(found, [np.nan, np.exp(-1) / 2], rtol=1e-6)


def test_a_split_that_a_mask_empties_ends_nothing():
    """Split and rolled: the second split of a causal row is all -inf, and the row is not."""
    x = small.matrix(n=2, m=12)
    r = small.fold("max", "r", 2, 12, lambda i, j: causal(x[i, j], i, j))
    o = small.fold(
        "max", "o", 2, 12, lambda i, j: te.exp(causal(x[i, j], i, j) - r[i]) / (te.abs(r[i]) + 1.0) * x[i, j]
    )
    sch = schedule(small.operator(([x], [o])), "split_k_update", block_kv=2, config=SplitKConfig(splits=2))
    assert "rolling_update" in [step.primitive for step in sch.steps]
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 12)).astype(np.float32)}
    with np.errstate(all="ignore"):
        # In NumPy: TVM's own code takes the number of max(number, NaN).
        expected, found = (run_in_python(p, inputs)["o"] for p in (sch.definition, sch.program))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_the_end_shows_where_the_guard_leaves_no_identity(update: str):
    """The largest of exp(x - r) on a row of -inf: 0 behind a guard, which max does not start from, and NaN without."""
    inputs, (o,) = small.pair(lambda c, r: te.exp(c - r), "max")
    sch = small.schedule((inputs, [small.compute((3,), lambda i: o[i] + 1.0, name="z")]))
    x = {"x": np.array([[-INF] * 5, [-INF, -INF, 1, 2, 3], [0, 1, 2, 3, 4]], np.float32)}
    sch.split("r.j", (None, 2))
    getattr(sch, update)("o", "r.j0")
    with np.errstate(all="ignore"):
        expected, found = (run_in_python(p, x)["z"] for p in (sch.definition, sch.program))
    np.testing.assert_array_equal(np.isnan(found), [True, False, False])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def a_quotient_of_neighbours(total):
    """total[i] / (total[i] + total[i + 1]): 0 / (0 + 1) behind a guard, NaN without."""
    return small.compute((2,), lambda i: total[i] / (total[i] + total[i + 1]), name="z")


def a_quotient_of_sums(total):
    """Both sums have elements of all rows, so they are not 0 if only one row is at the point."""
    i = [te.reduce_axis((0, 3), name=name) for name in ("i1", "i2")]
    a = small.compute((1,), lambda k: te.sum(total[i[0]] * 2.0, axis=i[0]), name="a")
    b = small.compute((1,), lambda k: te.sum(total[i[1]], axis=i[1]), name="b")
    return small.compute((1,), lambda k: a[k] / b[k], name="z")


@pytest.mark.parametrize("quotient", [a_quotient_of_neighbours, a_quotient_of_sums])
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_a_row_at_the_point_is_not_hidden_by_other_rows(quotient, update: str):
    """If all rows are -inf, the quotient is NaN with a guard too; if one is, it is a number with a guard."""
    inputs, (total,) = small.pair(lambda c, r: te.exp(c - r))
    sch = small.schedule((inputs, [quotient(total)]))
    x = {"x": np.array([[-INF] * 5, [-INF, -INF, 1, 2, 3], [0, 1, 2, 3, 4]], np.float32)}
    sch.split("r.j", (None, 2))
    getattr(sch, update)("o", "r.j0")
    with np.errstate(all="ignore"):
        expected, found = (run_in_python(p, x)["z"] for p in (sch.definition, sch.program))
    assert np.isnan(expected[0])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
