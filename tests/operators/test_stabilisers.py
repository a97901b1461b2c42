"""Maxima whose repair terms cancel have no gradient; others keep theirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from gradients import worst_error
from tvm import te

import neptune_lab as nl
from neptune_lab.loop_schedule.templates.elementwise import LONGEST_TERM
from neptune_lab.operators import Operator, backward, custom, norms, rows, training


def _rows(name: str, of: Callable[..., object], exponential: Callable[..., object]) -> Operator:
    """out[i] = of(m[i], s[i], i), where s sums exponential(x[i, j], m[i])."""
    x = te.placeholder((5, 7), "float32", name="x")
    j, k = te.reduce_axis((0, 7), name="j"), te.reduce_axis((0, 7), name="k")
    m = te.compute((5,), lambda i: te.max(x[i, j], axis=j), name="m")
    e = te.compute((5, 7), lambda i, c: exponential(x[i, c], m[i]), name="e")
    s = te.compute((5,), lambda i: te.sum(e[i, k], axis=k), name="s")
    return custom(name, [x], [te.compute((5,), lambda i: of(m[i], s[i], i), name="out")])


def _log_of_sum(m, s, i):
    return m + te.log(s)


def _difference(x, m):
    return te.exp(x - m)


def _power_mean(m, s, i):
    return te.abs(m) * te.power(s, te.const(1 / 3, "float32"))


def _cube(x, m):
    return te.power(te.abs(x) / te.abs(m), te.const(3.0, "float32"))


def _over_rows(of: Callable[..., Any]) -> Operator:
    """out = the sum of of(m[i], s[i]) over the rows, as of a mean loss."""
    x = te.placeholder((5, 7), "float32", name="x")
    j, k, r = te.reduce_axis((0, 7), name="j"), te.reduce_axis((0, 7), name="k"), te.reduce_axis((0, 5), name="r")
    m = te.compute((5,), lambda i: te.max(x[i, j], axis=j), name="m")
    s = te.compute((5,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="s")
    return custom("loss", [x], [te.compute((), lambda: te.sum(of(m[r], s[r]), axis=r), name="out")])


def _element_by_element() -> Operator:
    """A sum whose terms follow the maximum by different multiples, each of which the result takes away again."""
    x = te.placeholder((5, 7), "float32", name="x")
    j, k = te.reduce_axis((0, 7), name="j"), te.reduce_axis((0, 7), name="k")
    m = te.compute((5,), lambda i: te.max(x[i, k], axis=k), name="m")
    s = te.compute((5,), lambda i: te.sum(te.exp(-m[i] * x[i, j]), axis=j), name="s")
    return custom("elements", [x], [te.compute((5, 7), lambda i, j: te.log(s[i]) + m[i] * x[i, j], name="out")])


CANCEL = {
    "log-sum-exp": lambda: rows.log_sum_exp(4, 6),
    "cross entropy": lambda: rows.cross_entropy(4, 6),
    "l2 norm": lambda: norms.l2_norm(4, 6),
    "in another order": lambda: _rows("order", lambda m, s, i: te.log(s * s) + m - 3 + m, _difference),
    "with a temperature": lambda: _rows("cool", lambda m, s, i: m + te.log(s) * 4, lambda x, m: te.exp((x - m) / 4)),
    "to another base": lambda: _rows("two", lambda m, s, i: m + te.log2(s), lambda x, m: te.power(2.0, x - m)),
    "in one of two branches": lambda: _rows(
        "branch", lambda m, s, i: te.if_then_else(i < 2, m + te.log(s), te.exp(m) * s), _difference
    ),
    "in a sum over the rows": lambda: _over_rows(lambda m, s: m + te.log(s)),
}
STAY = {
    "half of it": lambda: _rows("half", _log_of_sum, lambda x, m: te.exp(x - m * te.const(0.5, "float32"))),
    "once more": lambda: _rows("more", lambda m, s, i: m + te.log(s) + m * te.const(0.125, "float32"), _difference),
    "in one branch only": lambda: _rows(
        "one_branch", lambda m, s, i: te.if_then_else(i < 2, m + te.log(s), m + s), _difference
    ),
    "not a multiple": lambda: _rows("shifted", _log_of_sum, lambda x, m: te.exp(x - m) + te.const(1.0, "float32")),
    "of the wrong power": lambda: _rows("power", _power_mean, lambda x, m: te.abs(x) / te.abs(m)),
    "nearly": lambda: _rows("nearly", lambda m, s, i: m + te.log(s) * te.const(1.0000001, "float32"), _difference),
    "element by element": _element_by_element,
    "half of it, in a sum over the rows": lambda: _over_rows(lambda m, s: m * te.const(0.5, "float32") + te.log(s)),
    "a result itself": lambda: norms.rms_norm_max(4, 6),
}


def _plus(y, n, i, j):
    return y[i, j] + n


def _polynomial(y, i, j):
    return (y[i, j] * y[i, j] + y[i, j]) * te.const(0.25, "float32")


def _counts_ties(op: Operator) -> bool:
    return "_ties" in backward(op).source


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CANCEL)
def test_a_maximum_whose_repair_terms_cancel_has_no_gradient(name):
    op = CANCEL[name]()
    assert not _counts_ties(op)
    assert worst_error(op, training(op)) < 1e-6


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", STAY)
def test_other_maxima_keep_theirs(name):
    op = STAY[name]()
    assert _counts_ties(op)
    assert worst_error(op, training(op)) < 1e-6


def test_a_power_needs_a_positive_base_to_cancel():
    # (|x| / |m|)^3 is |m|^-3 times the rest, which the algebra may or may not find; the numbers are right either way.
    op = _rows("cubes", _power_mean, _cube)
    assert worst_error(op, training(op)) < 1e-6


@pytest.mark.nightly
def test_the_gradient_of_a_log_sum_exp_is_one_map_in_one_kernel():
    passes = training(rows.cross_entropy(4, 6))
    assert passes.kept == ("lse2",)
    kernel = nl.compile(passes.backward, validate="full")
    assert kernel.spec.text.count("@triton.jit") == 1
    assert kernel.relative_error() < 1e-6


def test_maps_of_several_results_are_computed_in_each():
    x = te.placeholder((5, 7), "float32", name="x")
    y = te.compute((5, 7), lambda i, j: te.exp(x[i, j]), name="y")
    outs = [te.compute((5, 7), partial(_plus, y, n), name=f"out{n}") for n in (1, 2)]
    kernel = nl.compile(custom("two", [x], outs))
    assert kernel.spec.text.count("@triton.jit") == 2
    assert kernel.relative_error() < 1e-6


@pytest.mark.nightly
def test_a_long_chain_of_maps_does_not_grow_without_bound():
    last = x = te.placeholder((3, 4), "float32", name="x")
    for n in range(12):
        last = te.compute((3, 4), partial(_polynomial, last), name=f"y{n}")
    kernel = nl.compile(custom("chain", [x], [last]))
    assert max(len(line) for line in kernel.spec.text.splitlines()) < 50 * LONGEST_TERM
    assert 2 <= kernel.spec.text.count("@triton.jit") <= 6
    assert kernel.relative_error() < 1e-5
