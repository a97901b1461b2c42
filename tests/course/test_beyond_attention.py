"""The exercises of 08_beyond_attention: right answers, wrong ones with their reasons, and the facts of its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from neptune_widgets.course import beyond_attention as exercises

import neptune_lab as nl
from neptune_lab.operators import gemm_chain, norms, rows
from neptune_lab.operators.base import tensor_expressions


def reductions(finish: Callable[..., Any], term: Callable[..., Any], *, peak: bool = True) -> tuple[Any, Any]:
    """x, and out = finish(peak, total) with total the sum of term(x, peak), by row."""
    te = tensor_expressions()
    x = te.placeholder((4, 32), "float32", name="x")
    j = te.reduce_axis((0, 32), name="j")
    if not peak:
        total = te.compute((4,), lambda i: te.sum(term(te, x[i, j], 0.0), axis=j), name="total")
        return x, te.compute((4,), lambda i: finish(te, 0.0, total[i]), name="out")
    top = te.compute((4,), lambda i: te.max(x[i, j], axis=j), name="top")
    total = te.compute((4,), lambda i: te.sum(term(te, x[i, j], top[i]), axis=j), name="total")
    return x, te.compute((4,), lambda i: finish(te, top[i], total[i]), name="out")


def tempered(outer: float, inner: float, *, add: float = 1, peak: bool = True) -> Any:
    def finish(te, top, total):
        return te.log(total) * outer + top * add

    return exercises.tempered(*reductions(finish, lambda te, x, top: te.exp((x - top) / inner), peak=peak))


def test_temperature():
    verdict = tempered(2, 2)
    assert verdict
    assert "one loop over 4 tiles" in verdict.text
    assert "t*exp(" in verdict.text


def test_temperature_by_a_scaled_row():
    """The row divided first, and powers of two in place of exponentials."""
    te = tensor_expressions()
    x = te.placeholder((4, 32), "float32", name="x")
    j = te.reduce_axis((0, 32), name="j")
    half = te.compute((4, 32), lambda i, j: x[i, j] / 2, name="half")
    top = te.compute((4,), lambda i: te.max(half[i, j], axis=j), name="top")
    total = te.compute((4,), lambda i: te.sum(te.exp(half[i, j] - top[i]), axis=j), name="total")
    out = te.compute((4,), lambda i: 2 * (top[i] + te.log(total[i])), name="out")
    assert exercises.tempered(x, out)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (lambda: tempered(1, 1), "without a temperature"),
        (lambda: tempered(1, 2), "missing before the logarithm"),
        (lambda: tempered(2, 1), "missing inside the exponential"),
        (lambda: tempered(0.5, 0.5), "temperature 1/T"),
        (lambda: tempered(1, 2, add=0.5), "missing before the whole"),
        (lambda: tempered(2, 2, add=0), "not added again"),
        (lambda: tempered(2, 2, add=2), "added T times"),
        (lambda: tempered(3, 5), "in float64 is"),
        (lambda: tempered(2, 2, peak=False), "beyond float32"),
    ],
)
def test_wrong_temperatures(verdict: Callable[[], Any], reason: str):
    found = verdict()
    assert found.state == "wrong"
    assert reason in found.text


def test_temperature_takes_one_number_a_row_of_what_the_compiler_takes():
    te = tensor_expressions()
    x = te.placeholder((4, 32), "float32", name="x")
    whole = te.compute((4, 32), lambda i, j: x[i, j] * 2, name="whole")
    assert "one number per row" in exercises.tempered(x, whole).text
    assert "the compiler refused" in exercises.tempered(x, "log").text


@pytest.mark.nightly
@pytest.mark.parametrize("order", [1, -1])
def test_shared_loops(order: int):
    groups = [["top", "total", "x_sum", "square"], ("deviation",)][::order]
    verdict = exercises.shared_loops(groups)
    assert verdict
    assert "deviation starts a loop of its own" in verdict.text


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([["top", "total", "x_sum", "square", "deviation"]], "more than one loop"),
        ([[name] for name in ("top", "total", "x_sum", "square", "deviation")], "as without repairs"),
        ([["top", "total", "x_sum"], ["square", "deviation"]], "`square` and `top` share a loop in the compiled"),
        ([["top", "total"], ["x_sum", "square"], ["deviation"]], "share a loop in the compiled program"),
        ([["top", "total", "x_sum", "square"]], "`deviation` stands in 0 loops"),
        ([["top", "total", "x_sum", "square"], ["deviation", "top"]], "`top` stands in 2 loops"),
        ([["top", "lse"]], "'lse' is not one of the reductions"),
        (["top", "total"], "a list of loops"),
    ],
)
def test_wrong_loops(groups: Any, reason: str):
    found = exercises.shared_loops(groups)
    assert found.state == "wrong"
    assert reason in found.text


def test_p_norm_repair():
    assert exercises.p_norm_repair(lambda t, r, new: t * (r / new) ** 3)
    assert "x_max**3" in exercises.p_norm_repair(lambda t, r, new: t / (new / r) / new**2 * r * r).text


@pytest.mark.parametrize(
    ("h", "reason"),
    [
        (lambda t, r, new: t, "nothing is repaired"),
        (lambda t, r, new: t * (r / new) ** 2, "L2 norm"),
        (lambda t, r, new: t * r / new, "first powers"),
        (lambda t, r, new: t * (new / r) ** 3, "upside down"),
        (lambda t, r, new: t + r - new, "folding a row of 12 numbers"),
        (lambda t, r: t, "raised TypeError"),
        ("t*r**3/new**3", "expected a function"),
    ],
)
def test_wrong_repairs(h: Any, reason: str):
    found = exercises.p_norm_repair(h)
    assert found.state == "wrong"
    assert reason in found.text


@pytest.mark.nightly
def test_quantize_bytes():
    size = exercises.ROWS * exercises.COLS
    assert exercises.quantize_bytes(5 * size)
    assert exercises.quantize_bytes(5 * size + 4 * exercises.ROWS)
    for wrong, reason in {
        2 * size: "nothing else",
        3 * size: "single pass",
        4 * size: "is int8",
        6 * size: "not two",
        9 * size: "not four",
        5: "one element",
        11 * size: "11 bytes per element",
        "many": "a number of bytes",
    }.items():
        found = exercises.quantize_bytes(wrong)
        assert found.state == "wrong"
        assert reason in found.text


def test_exercises_are_open_without_an_answer():
    for judge in (exercises.shared_loops, exercises.p_norm_repair, exercises.quantize_bytes):
        assert judge(None).state == "open"
        assert len(judge(None).hints) >= 2
    assert exercises.tempered(object(), None).state == "open"


@pytest.mark.nightly
def test_bytes_of_a_row_read_once_and_of_one_read_twice():
    found = exercises.fusion(norms.l2_norm(8, 64), block_q=8, block_kv=16)
    assert found.fused == found.least == 8 * 64 * 4 + 8 * 4
    assert found.loops == (1,)
    assert found.kernels[0] == 1
    assert found.kernels[2] == 4
    assert len(found.kernel.triton.kernels) == 1
    twice = nl.compile(rows.softmax(8, 64), "rolling_update", block_q=8, block_kv=16)
    assert exercises.bytes_moved(twice) == 3 * 8 * 64 * 4
    assert exercises.loops(twice) == (2,)


def test_each_stage_alone_stores_every_stage():
    kernel = exercises.each_alone(gemm_chain.gemm_chain(m=16, n=16, k=16, h=16))
    assert "ab float32[1, 16, 16]" in kernel.outline
    assert kernel.relative_error() < 1e-3


@pytest.mark.nightly
def test_the_recorded_run_says_where_it_ran():
    found = exercises.recorded("norms")
    assert "H200" in found.device
    assert found.ratios["l2_norm"]
    assert sum(len(ratios) for ratios in found.ratios.values()) == len(exercises.recorded_ways())
