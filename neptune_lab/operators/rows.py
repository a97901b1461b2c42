"""Softmax, log-sum-exp and cross-entropy of each row.

All three compute a row's maximum, then the sum of exp(x - maximum) (as in Neptune, Figure 1), in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neptune_lab.operators.base import Arrays, Operator, TensorSpec, positive, source_of, supported, tensor_expressions
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.stages import builder

Definition = tuple[list[Any], list[Any]]


def define_softmax(rows: int, cols: int, dtype: str) -> Definition:
    """Softmax as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    _, s_exp, s_sum = _exponentials(te, x, rows, cols)
    out = te.compute((rows, cols), lambda i, j: (s_exp[i, j] / s_sum[i]).astype(dtype), name="out")
    return [x], [out]


@takes_dims
def softmax(rows: int = 2, cols: int = 4, dtype: str = "float32") -> Operator:
    """`x` (rows, cols) to `out` (rows, cols): exp(x - max), divided by its sum along the row.

    If all elements of a row are -inf, its outputs are NaN.  The stages are those of Neptune, Figure 1, and a division.

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        dtype: "float16", "bfloat16" or "float32", of `x` and `out`; sums are in float32.

    Returns:
        The operator, from `x` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """

    def compute(x: np.ndarray) -> Arrays:
        with np.errstate(invalid="ignore"):
            weights = np.exp(x - x.max(axis=1, keepdims=True))
            return (weights / weights.sum(axis=1, keepdims=True),)

    stages = ("s_max", "s_exp", "s_sum", "out")
    return _rows("softmax", "Softmax of each row", define_softmax, stages, (rows, cols, dtype), (rows, cols), compute)


def define_log_sum_exp(rows: int, cols: int, dtype: str) -> Definition:
    """Log-sum-exp as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    s_max, _, s_sum = _exponentials(te, x, rows, cols)
    return [x], [te.compute((rows,), lambda i: _log_of_sum(te, s_max[i], s_sum[i]), name="out")]


@takes_dims
def log_sum_exp(rows: int = 2, cols: int = 4, dtype: str = "float32") -> Operator:
    """`x` (rows, cols) to `out` (rows,): log(sum(exp(x))) of each row, with the natural logarithm.

    It is computed as max + log(sum(exp(x - max))).  If all elements of a row are -inf, its output is -inf.

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        dtype: "float16", "bfloat16" or "float32", of `x`; `out` is float32.

    Returns:
        The operator, from `x` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """
    stages = ("s_max", "s_exp", "s_sum", "out")
    sizes = (rows, cols, dtype)
    return _rows(
        "log_sum_exp", "Log-sum-exp of each row", define_log_sum_exp, stages, sizes, (rows,), lambda x: (_lse(x),)
    )


def define_cross_entropy(rows: int, cols: int, dtype: str) -> Definition:
    """Cross-entropy as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    logits = te.placeholder((rows, cols), dtype, name="logits")
    labels = te.placeholder((rows,), "int32", name="labels")
    s_max, _, s_sum = _exponentials(te, logits, rows, cols)
    j = te.reduce_axis((0, cols), name="j")

    def picked(i):
        logit = logits[i, j].astype("float32")
        return te.sum(te.if_then_else(labels[i].equal(j.var), logit, te.const(0, "float32")), axis=j)

    target = te.compute((rows,), picked, name="target")
    loss = te.compute((rows,), lambda i: _log_of_sum(te, s_max[i], s_sum[i]) - target[i], name="loss")
    return [logits, labels], [loss]


@takes_dims
def cross_entropy(rows: int = 2, cols: int = 4, dtype: str = "float32") -> Operator:
    """`logits` (rows, cols), `labels` (rows,) in int32 to `loss` (rows,): log-sum-exp minus the label's logit.

    The label's logit is a sum over the row that counts all other columns as 0, so that it can run in the same loop as
    the other reductions.  If a label is outside [0, cols), the sum is 0 and the loss is the log-sum-exp.

    Args:
        rows: rows of `logits`, such as tokens.
        cols: columns of `logits`, the classes.
        dtype: "float16", "bfloat16" or "float32", of `logits`; `loss` is float32.

    Returns:
        The operator, from `logits` and `labels` to `loss`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """

    def compute(logits: np.ndarray, labels: np.ndarray) -> Arrays:
        inside = (labels >= 0) & (labels < cols)
        column = np.where(inside, labels, 0).astype(np.int64)
        return (_lse(logits) - np.where(inside, logits[np.arange(rows), column], 0.0),)

    return _rows(
        "cross_entropy",
        "Cross-entropy of each row with its label",
        define_cross_entropy,
        ("s_max", "s_exp", "s_sum", "target", "loss"),
        (rows, cols, dtype),
        (rows,),
        compute,
        labels=True,
    )


# -- shared helpers ---------------------------------------------------------------------------------------


def _exponentials(te: Any, x: Any, rows: int, cols: int) -> tuple[Any, Any, Any]:
    """The max of each row, exp(x - max), and its sum along the row."""
    j = te.reduce_axis((0, cols), name="j")
    s_max = te.compute((rows,), lambda i: te.max(x[i, j].astype("float32"), axis=j), name="s_max")
    s_exp = te.compute((rows, cols), lambda i, j: te.exp(x[i, j].astype("float32") - s_max[i]), name="s_exp")
    return s_max, s_exp, te.compute((rows,), lambda i: te.sum(s_exp[i, j], axis=j), name="s_sum")


def _log_of_sum(te: Any, peak: Any, total: Any) -> Any:
    """peak + log(total); -inf if the peak is -inf, since then exp(x - peak) and the total are NaN."""
    least = te.const(float("-inf"), "float32")
    return te.if_then_else(peak.equal(least), least, peak + te.log(total))


def _lse(x: np.ndarray) -> np.ndarray:
    """The reference's log-sum-exp of each row; -inf if all elements of the row are."""
    peak = x.max(axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(peak == -np.inf, -np.inf, peak + np.log(np.exp(x - peak[:, None]).sum(axis=1)))


def _rows(
    name: str,
    title: str,
    define: Callable[..., Definition],
    stages: tuple[str, ...],
    sizes: tuple[int, int, str],
    shape: tuple[int, ...],
    compute: Callable[..., Arrays],
    *,
    labels: bool = False,
) -> Operator:
    """The operator from a matrix (and labels) to an output of `shape`; raises DefinitionError for wrong `sizes`."""
    rows, cols, dtype = sizes
    positive(rows=rows, cols=cols)
    supported(dtype, "float16", "bfloat16", "float32")
    inputs = (TensorSpec("logits" if labels else "x", (rows, cols), dtype),)
    if labels:
        inputs = (*inputs, TensorSpec("labels", (rows,), "int32"))

    def draw(rng: np.random.Generator) -> Arrays:
        matrix = rng.standard_normal((rows, cols))
        return (matrix, rng.integers(0, cols, rows)) if labels else (matrix,)

    return Operator(
        name=name,
        title=title,
        doc="after Neptune, Figure 1",
        params={"rows": int(rows), "cols": int(cols), "dtype": dtype},
        inputs=inputs,
        outputs=(TensorSpec(stages[-1], shape, dtype if len(shape) == 2 else "float32"),),
        source=f"{source_of(_exponentials)}\n{source_of(define)}",
        build=builder(name, stages, define, rows, cols, dtype, masked=(inputs[0].name,)),
        compute=compute,
        draw=draw,
    )
