"""Kernels on special values, by the promise of docs/concepts/numbers.md.

If the definition, evaluated stage by stage in float32, gives a finite number, so does the kernel, close to it; if it
gives NaN or an infinity, so does the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_name
import numpy as np
import pytest
import torch
from tvm import te

import neptune_lab as nl
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators import attention, custom, math, norms, rows, softmax
from neptune_lab.operators.base import Operator

INF = float("inf")
LEAST = float(np.finfo(np.float32).min)
COLS = 40
# How a row of special values is made: name -> what it does to a row of ordinary ones.
KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "ordinary": lambda x: x,
    "-inf": lambda x: np.full_like(x, -INF),
    "-inf first": lambda x: np.where(np.arange(COLS) < 21, -INF, x),
    "finfo.min": lambda x: np.full_like(x, LEAST),
    "finfo.min first": lambda x: np.where(np.arange(COLS) < 21, LEAST, x),
    "zeros": np.zeros_like,
    "zeros first": lambda x: np.where(np.arange(COLS) < 21, 0, x),
    "equal": lambda x: np.full_like(x, x[0]),
    "low": lambda x: x - 300,
    "low after -inf": lambda x: np.where(np.arange(COLS) < 21, -INF, x - 300),
    "large": lambda x: 1e30 * x,
    "3e4": lambda x: np.full_like(x, 3e4),
    "denormal": lambda x: 1e-42 * x,
    "nan": lambda x: np.where(np.arange(COLS) == 33, np.nan, x),
    "inf": lambda x: np.where(np.arange(COLS) == 5, INF, x),
    "-1e30": lambda x: np.where(np.arange(COLS) % 2 == 0, -1e30, x),
}
ROWS = len(KINDS)


def special() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([make(rng.standard_normal(COLS) * 3) for make in KINDS.values()])


def hold(
    op: Operator, given: dict[str, np.ndarray], kernel: Any, rtol: float = 2e-5, but: tuple[str, ...] = ()
) -> None:
    """The promise, row by row; `but` are kinds that docs/concepts/numbers.md excepts.

    Close is: to rounding, and to what the definition in float32 is off itself, as the exponential of a difference is.
    """
    with np.errstate(all="ignore"):
        sch = Schedule(op)
        want, exact = sch.run(**given), run_wide(sch.definition, given)
        found = kernel(*(torch.from_numpy(given[t.name]) for t in op.inputs))
    for spec, got in zip(op.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        a, b = np.asarray(want[spec.name], np.float64), np.asarray(got.double().numpy())
        kept = np.array([name not in but for name in KINDS])
        if a.shape[0] == ROWS:
            a, b = a[kept], b[kept]
        np.testing.assert_array_equal(np.isfinite(b), np.isfinite(a), err_msg=spec.name)
        good = np.isfinite(a)
        precise = np.asarray(exact[spec.name], np.float64)
        precise = precise[kept] if precise.shape[0] == ROWS else precise
        off = np.where(np.isfinite(precise[good]), np.abs(precise[good] - a[good]), 0.0)
        assert (np.abs(b[good] - a[good]) <= 2e-5 * np.abs(a[good]) + 1e-6 + off).all(), (b, a)


def matrix_of(op: Operator) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    given = {}
    for t in op.inputs:
        if t.dtype == "int32":
            given[t.name] = rng.integers(0, COLS, t.shape).astype(np.int32)
        elif t.shape == (ROWS, COLS) and t.name not in ("y",):
            with np.errstate(all="ignore"):
                given[t.name] = special().astype(t.dtype)
        else:
            given[t.name] = rng.standard_normal(t.shape).astype(t.dtype)
    return given


PRESETS: dict[str, tuple[Callable[[], Operator], tuple[str, ...]]] = {
    "figure1": (lambda: softmax.figure1(ROWS, COLS), ()),
    "softmax": (lambda: rows.softmax(ROWS, COLS), ()),
    "log_sum_exp": (lambda: rows.log_sum_exp(ROWS, COLS), ()),
    "cross_entropy": (lambda: rows.cross_entropy(ROWS, COLS), ()),
    "l2_norm": (lambda: norms.l2_norm(ROWS, COLS), ()),
    # -inf / inf is NaN, which LLVM's max leaves out of the definition's run; the kernel keeps it.
    "rms_norm_max": (lambda: norms.rms_norm_max(ROWS, COLS), ("-inf", "-inf first", "low after -inf", "inf")),
    "layer_norm_statistics": (lambda: norms.layer_norm_statistics(ROWS, COLS), ()),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_on_special_values(name: str):
    make, but = PRESETS[name]
    op = make()
    hold(op, matrix_of(op), nl.compile(op), but=but)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_figure_1_at_small_tiles(template: str):
    op = softmax.figure1(ROWS, COLS)
    hold(op, matrix_of(op), nl.compile(op, template=template, block_q=16, block_kv=16))


def fold(reducer: Any, name: str, term: Callable[[Any, Any], Any]) -> Any:
    j = te.reduce_axis((0, COLS), name="j")
    return te.compute((ROWS,), lambda i: reducer(term(i, j), axis=j), name=name)


def masked(value: Any, i: Any, j: Any, otherwise: float = -INF) -> Any:
    return te.if_then_else(j <= i + 9, value, te.const(otherwise, "float32"))


def own(name: str) -> Operator:
    """Operators of one's own, over x with special values and y without."""
    x, y = (te.placeholder((ROWS, COLS), "float32", name=n) for n in "xy")
    top = fold(te.max, "top", lambda i, j: x[i, j])
    seen = fold(te.max, "seen", lambda i, j: masked(x[i, j], i, j))
    size = fold(te.max, "size", lambda i, j: te.abs(x[i, j]))
    mean = fold(te.sum, "mean", lambda i, j: x[i, j])
    other = fold(te.max, "other", lambda i, j: y[i, j])
    low = fold(te.min, "low", lambda i, j: x[i, j])
    terms: dict[str, Callable[[Any, Any], Any]] = {
        "weighted": lambda i, j: te.exp(x[i, j] - top[i]) * y[i, j],
        "masked": lambda i, j: masked(te.exp(x[i, j] - seen[i]), i, j, 0.0),
        "divergence": lambda i, j: te.exp(x[i, j] - top[i]) * (x[i, j] - y[i, j]),
        "mean of scaled": lambda i, j: x[i, j] / size[i],
        "infinite on zeros": lambda i, j: (te.abs(x[i, j]) + 1.0) / size[i],
        "away from the maximum": lambda i, j: te.exp(x[i, j] + top[i]),
        "about the mean": lambda i, j: te.exp(x[i, j] - mean[i] / COLS),
        "of another maximum": lambda i, j: te.exp(x[i, j] - other[i]) * y[i, j],
        "from the minimum": lambda i, j: te.exp(low[i] - x[i, j]),
    }
    inputs = [x, y] if name in ("weighted", "divergence", "of another maximum") else [x]
    return custom(name.replace(" ", "_"), inputs, [fold(te.sum, "o", terms[name])])


OWN = ("weighted", "masked", "divergence", "mean of scaled", "infinite on zeros", "from the minimum")
# Not fused, as they would be wrong in float32.
APART = ("infinite on zeros", "away from the maximum", "about the mean", "of another maximum")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", APART)
def test_what_cannot_be_repaired_in_floats_is_kept_apart(name: str):
    op = own(name)
    kernel = nl.compile(op)
    assert any("step 'range'" in remark or "step 'guard'" in remark for remark in kernel.remarks)
    hold(op, matrix_of(op), kernel)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", OWN)
def test_own_operators_on_special_values(name: str):
    op = own(name)
    # Rows that a mask cuts to elements of -inf.
    but = ("-inf", "-inf first", "low after -inf") if name == "masked" else ()
    hold(op, matrix_of(op), nl.compile(op), but=but)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("options", [{}, {"template": "split_k_update"}], ids=["default", "split_k"])
@pytest.mark.parametrize("bias", [-INF, LEAST, -1e30, -65504.0])
def test_a_bias_may_mask(bias: float, options: dict[str, Any]):
    """What `transformers` writes: a captured bias, whole tiles of it, whole rows of it."""
    seq = 48
    table = np.zeros((seq, seq), np.float32)
    table[:, :20] = bias
    table[3] = bias
    op = attention.general(
        1, 1, seq, seq, 8, score_mod=lambda s, b, h, i, j: s + table[i, j], dtype="float32", empty_rows="nan"
    )
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in op.inputs}
    given[op.inputs[3].name] = table
    kernel = by_name.compile(op, block_q=16, block_kv=16, **options)
    with np.errstate(all="ignore"):
        want = Schedule(op).run(**given)["out"]
        found = kernel(*(torch.from_numpy(given[n]) for n in "qkv")).numpy()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(want))
    # exp(s - m) is exp2(s * c - m * c): the products round, in the interpreter, where m is large.
    close = {"rtol": 1e-4, "atol": 1e-5 if bias != -65504.0 else 1e-3}
    np.testing.assert_allclose(found, want, **close)
    assert np.isfinite(want).all() != (bias == -INF)


def test_a_mask_of_finfo_min():
    op = attention.general(1, 1, 32, 48, 8, score_mod=lambda s, b, h, i, j: math.where(j >= i + 5, s, LEAST))
    given = {t.name: np.random.default_rng(0).standard_normal(t.shape).astype(t.dtype) for t in op.inputs}
    found = nl.compile(op, block_q=16, block_kv=16)(*(torch.from_numpy(given[n]) for n in "qkv")).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, Schedule(op).run(**given)["out"], rtol=2e-2, atol=2e-3)
