"""An extremum of a reduction and of constants of its row: one loop, if the reduction can take the constants with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loop_texts import figure
from small_operators import compute
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.run import compare
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.operators import custom
from neptune_lab.operators.base import Operator

ROWS, COLS = 4, 12
BOTH = pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])


def tensor(name: str, *shape: int) -> Any:
    return te.placeholder(shape, "float32", name=name)


def fold(name: str, term: Callable[[Any, Any], Any], reduce: Any = te.max) -> Any:
    axis = te.reduce_axis((0, COLS), name="j")
    return compute((ROWS,), lambda i: reduce(term(i, axis.var), axis=axis), name=name)


def row(name: str, term: Callable[[Any], Any]) -> Any:
    return compute((ROWS,), term, name=name)


X, S, V = tensor("x", ROWS, COLS), tensor("s", ROWS), tensor("v", ROWS, COLS)
R = fold("r", lambda i, j: X[i, j])


def summed(top: Callable[[Any], Any], inputs: list[Any], *more: Any) -> Operator:
    """The sum of exp(x - top), and `more` outputs."""
    m = row("m", top)
    return custom("sink", inputs, [fold("d", lambda i, j: te.exp(X[i, j] - m[i]), te.sum), *more])


def least() -> Operator:
    low = fold("low", lambda i, j: X[i, j], te.min)
    m = row("m", lambda i: te.min(S[i], low[i]))
    return custom("least", [X, S], [fold("d", lambda i, j: te.exp(m[i] - X[i, j]), te.sum)])


def largest_term() -> Operator:
    m = row("m", lambda i: te.max(R[i], S[i]))
    return custom("largest", [X, S], [fold("d", lambda i, j: X[i, j] - m[i])])


def with_sink_in_the_sum() -> Operator:
    m = row("m", lambda i: te.max(R[i], S[i]))
    d = fold("d", lambda i, j: te.exp(X[i, j] - m[i]), te.sum)
    return custom("softmax", [X, S], [row("y", lambda i: d[i] + te.exp(S[i] - m[i]))])


TAKEN: dict[str, Callable[[], Operator]] = {
    "a sink": lambda: summed(lambda i: te.max(R[i], S[i]), [X, S]),
    "the constant first": lambda: summed(lambda i: te.max(S[i], R[i]), [X, S]),
    "one element of a row": lambda: summed(lambda i: te.max(R[i], V[i, 0]), [X, V]),
    "computed": lambda: summed(lambda i: te.max(te.exp(S[i]) - 1.0, R[i]), [X, S]),
    "two constants": lambda: summed(lambda i: te.max(te.max(R[i], S[i]), V[i, 3]), [X, S, V]),
    "the sink in the sum too": with_sink_in_the_sum,
    "a minimum": least,
    "a maximum below it": largest_term,
}


@pytest.mark.one_in(18)
@BOTH
@pytest.mark.parametrize("name", TAKEN)
def test_the_constant_needs_no_loop_of_its_own(name: str, template: str):
    kernel = nl.compile(TAKEN[name](), template, block_kv=4)
    assert not [remark for remark in kernel.remarks if "loop of its own" in remark]
    assert kernel.validated is not None
    assert kernel.validated.stages
    assert kernel.relative_error() < 1e-6


def repaired(operator: Operator, loop: str = "r.j0") -> Schedule:
    sch = Schedule(operator)
    sch.split("r.j", (None, 4))
    sch.rolling_update("d", loop)
    return sch


def test_every_phase_is_what_it_says():
    sch = repaired(TAKEN["a sink"]())
    naive = sch.phases[1]
    assert naive.note == (
        "d now runs inside loop j0 and reads r too early: the numbers are wrong. r takes s[i] with it, since "
        "max(max(r, s), s) = max(r, s): its readers need no max of their own."
    )
    for phase in sch.phases:
        found = compare(phase.program, sch.definition, sch.operator.random_inputs(0))
        assert found.equal is not phase.wrong, phase.title


def test_the_repaired_loop(golden: Callable[[str, str], None]):
    golden("row_constant.loops.txt", figure(repaired(TAKEN["a sink"]()).program))


def test_attention_with_a_sink(golden: Callable[[str, str], None]):
    """The running maximum starts with the sink, so that the loop has no step for it, and skips hidden tiles."""
    source = nl.compile(attention_with_sink(), "rolling_update", block_q=16, block_kv=16).source
    golden("attention_sink.triton.py", source)
    assert "range(3 - i0)" in source


def attention_with_sink() -> Operator:
    n, width = 64, 16
    q, k, v = (tensor(name, n, width) for name in "qkv")
    sink = tensor("sink", 1)
    d, j = te.reduce_axis((0, width), name="d"), te.reduce_axis((0, n), name="j")
    qk = compute((n, n), lambda i, t: te.sum(q[i, d] * k[t, d], axis=d), name="qk")
    low = te.const(float("-inf"), "float32")
    score = compute((n, n), lambda i, t: te.if_then_else(t <= i, qk[i, t] * 0.25, low), name="score")
    r = compute((n,), lambda i: te.max(score[i, j], axis=j), name="r")
    m = compute((n,), lambda i: te.max(r[i], sink[0]), name="m")
    p = compute((n, n), lambda i, t: te.exp(score[i, t] - m[i]), name="p")
    total = compute((n,), lambda i: te.sum(p[i, j], axis=j), name="l")
    acc = compute((n, width), lambda i, e: te.sum(p[i, j] * v[j, e], axis=j), name="acc")
    out = compute((n, width), lambda i, e: acc[i, e] / (total[i] + te.exp(sink[0] - m[i])), name="out")
    return custom("attention_sink", [q, k, v, sink], [out])


# -- what is not taken -------------------------------------------------------------------------------------------


def read_elsewhere() -> Operator:
    return summed(lambda i: te.max(R[i], S[i]), [X, S], row("log", lambda i: R[i] * 2.0))


def an_output() -> Operator:
    return summed(lambda i: te.max(R[i], S[i]), [X, S], R)


def another_operation() -> Operator:
    return summed(lambda i: te.min(R[i], S[i]), [X, S])


def two_constants_apart() -> Operator:
    m, other = row("m", lambda i: te.max(R[i], S[i])), row("other", lambda i: te.max(R[i], V[i, 0]))
    d = fold("d", lambda i, j: te.exp(X[i, j] - m[i]), te.sum)
    return custom("apart", [X, S, V], [d, other])


def of_each_column() -> Operator:
    d = fold("d", lambda i, j: te.exp(X[i, j] - te.max(R[i], V[i, j])), te.sum)
    return custom("columns", [X, V], [d])


NOT_TAKEN: dict[str, Callable[[], Operator]] = {
    f.__name__: f for f in (read_elsewhere, an_output, another_operation, two_constants_apart, of_each_column)
}


@pytest.mark.one_in(6)
@BOTH
@pytest.mark.parametrize("name", NOT_TAKEN)
def test_what_is_no_constant_of_the_only_reader_stays_outside(name: str, template: str):
    """The numbers are those of the definition, in two loops."""
    kernel = nl.compile(NOT_TAKEN[name](), template, block_kv=4)
    assert kernel.validated is not None
    assert kernel.validated.stages
    assert kernel.relative_error() < 1e-6
    assert "loop of its own" in " ".join(kernel.remarks)


def test_an_extremum_that_is_repaired_takes_nothing():
    """h would move the constant as if it were an element: max(max_j (x - r), s)."""
    q = fold("q", lambda i, j: X[i, j] - R[i])
    m = row("m", lambda i: te.max(q[i], S[i]))
    operator = custom("repaired", [X, S], [fold("d", lambda i, j: te.exp(X[i, j] - R[i] - m[i]), te.sum)])
    sch = Schedule(operator)
    sch.split("r.j", (None, 4))
    sch.rolling_update("q", "r.j0")
    with pytest.raises(RepairRefused):
        sch.rolling_update("d", "r.j0")
    assert nl.compile(operator, "rolling_update", block_kv=4).relative_error() < 1e-6


def test_a_stage_after_the_loop_may_not_be_what_it_takes():
    """The constant is computed by a later nest than the extremum."""
    total = fold("total", lambda i, j: V[i, j] * 2.0, te.sum)
    operator = custom("late", [X, V], [fold("d", lambda i, j: te.exp(X[i, j] - te.max(R[i], total[i])), te.sum)])
    sch = Schedule(operator)
    sch.split("r.j", (None, 4))
    with pytest.raises(ScheduleError):
        sch.rolling_update("d", "r.j0")
    assert nl.compile(operator, "rolling_update", block_kv=4).relative_error() < 1e-6


@pytest.mark.nightly
@BOTH
@pytest.mark.parametrize("hidden", [False, True])
def test_infinities_and_nan_are_those_of_the_definition(template: str, hidden: bool):
    """Sinks of -inf, inf and NaN, in rows that are ordinary, hidden by a mask, infinite or NaN."""
    low = te.const(float("-inf"), "float32")
    rows = 2 * ROWS
    x, s, axis = tensor("x", rows, COLS), tensor("s", rows), te.reduce_axis((0, COLS), name="j")

    def seen_by(i: Any, j: Any) -> Any:
        return te.if_then_else(j < i * 3 - 3, x[i, j], low) if hidden else x[i, j]

    score = compute((rows, COLS), seen_by, name="score")
    r = compute((rows,), lambda i: te.max(score[i, axis], axis=axis), name="r")
    m = compute((rows,), lambda i: te.max(r[i], s[i]), name="m")
    d = compute((rows,), lambda i: te.sum(te.exp(score[i, axis] - m[i]), axis=axis), name="d")
    kernel = nl.compile(custom("special", [x, s], [d]), template, block_kv=4, block_q=4)
    rng = np.random.default_rng(0)
    for special in (0.0, -np.inf, np.inf, np.nan):
        values, sinks = rng.standard_normal((rows, COLS)) * 30, rng.standard_normal(rows) * 30
        sinks[::2] = special
        values[1] = values[2] = -np.inf
        values[5, 3], values[6, 2], values[7, 5] = np.inf, np.nan, -np.inf
        seen = np.where(np.arange(COLS) < np.arange(rows)[:, None] * 3 - 3, values, -np.inf) if hidden else values
        with np.errstate(all="ignore"):
            exact = np.exp(seen - np.maximum(seen.max(1), sinks)[:, None]).sum(1)
        found = kernel(*(torch.tensor(a, dtype=torch.float32) for a in (values, sinks))).numpy()
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-30)
