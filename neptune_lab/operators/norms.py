"""Norms of each row: L2 norm, RMSNorm (its row maximum, or quantized to int8), LayerNorm and its statistics.

All take `x` (rows, cols), and reduce along a row in float32.  "Neptune, 4.4" is section 4.4 of the paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import Arrays, Operator, TensorSpec, positive, source_of, supported, tensor_expressions
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.stages import builder
from neptune_lab.strict.values import check_number

Definition = tuple[list[Any], list[Any]]


def define_l2_norm(rows: int, cols: int, dtype: str) -> Definition:
    """The scaled L2 norm as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    j = te.reduce_axis((0, cols), name="j")
    x_max = te.compute((rows,), lambda i: te.max(te.abs(x[i, j].astype("float32")), axis=j), name="x_max")
    x_scaled = te.compute((rows, cols), lambda i, j: x[i, j].astype("float32") / x_max[i], name="x_scaled")
    s_sum = te.compute((rows,), lambda i: te.sum(x_scaled[i, j] * x_scaled[i, j], axis=j), name="s_sum")
    zero = te.const(0, "float32")
    out = te.compute(
        (rows,), lambda i: te.if_then_else(x_max[i].equal(zero), zero, x_max[i] * te.sqrt(s_sum[i])), name="out"
    )
    return [x], [out]


@takes_dims
def l2_norm(rows: int = 2, cols: int = 4, dtype: str = "float32") -> Operator:
    """`x` (rows, cols) to `out` (rows,): the L2 norm of each row, without overflow of the squares.

    out = m * sqrt(sum((x / m)**2)) with m = max|x| (Neptune, 4.4).  For a row of zeros this is NaN (0 / 0), so the last
    stage selects 0 there.  The reductions are the paper's.

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        dtype: "float16", "bfloat16" or "float32", of `x`; `out` is float32.

    Returns:
        The operator, from `x` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """
    return _rowwise(
        "l2_norm",
        "Numerically stable L2 norm of each row",
        "Neptune, section 4.4",
        define_l2_norm,
        ("x_max", "x_scaled", "s_sum", "out"),
        (rows, cols, dtype),
        outputs=[("out", (rows,), "float32")],
        compute=lambda x: (np.linalg.norm(x, axis=1),),
    )


def define_rms_norm_max(rows: int, cols: int, dtype: str, eps: float) -> Definition:
    """RMSNorm's row maximum as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    j = te.reduce_axis((0, cols), name="j")
    mean_square = _mean_square(te, x, rows, cols)
    y = te.compute(
        (rows, cols),
        lambda i, j: x[i, j].astype("float32") / te.sqrt(mean_square[i] + te.const(eps, "float32")),
        name="y",
    )
    y_max = te.compute((rows,), lambda i: te.max(y[i, j], axis=j), name="y_max")
    return [x], [y_max]


@takes_dims
def rms_norm_max(rows: int = 2, cols: int = 4, eps: float = 1e-6, dtype: str = "float32") -> Operator:
    """`x` (rows, cols) to `y_max` (rows,): the largest element of each row after RMSNorm.

    y_max = max(x / sqrt(mean(x**2) + eps)) (Neptune, 4.4).

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        eps: added to the mean of squares; positive.
        dtype: "float16", "bfloat16" or "float32", of `x`; `y_max` is float32.

    Returns:
        The operator, from `x` to `y_max`.

    Raises:
        DefinitionError: a size that is not a positive integer, another dtype, or an eps that is not positive.
    """
    check_number("eps", eps, DefinitionError, positive=True)
    return _rowwise(
        "rms_norm_max",
        "RMSNorm, then the maximum of each row",
        "Neptune, section 4.4",
        define_rms_norm_max,
        ("x2_sum", "mean_square", "y", "y_max"),
        (rows, cols, dtype),
        outputs=[("y_max", (rows,), "float32")],
        compute=lambda x: (_rms_norm(x, eps).max(axis=1),),
        eps=eps,
        helpers=(_mean_square,),
    )


def define_rms_norm_quantize(rows: int, cols: int, dtype: str, eps: float) -> Definition:
    """RMSNorm quantized to int8 as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    j = te.reduce_axis((0, cols), name="j")
    mean_square = _mean_square(te, x, rows, cols)
    y = te.compute(
        (rows, cols),
        lambda i, j: x[i, j].astype("float32") / te.sqrt(mean_square[i] + te.const(eps, "float32")),
        name="y",
    )
    y_max = te.compute((rows,), lambda i: te.max(te.abs(y[i, j]), axis=j), name="y_max")
    scale = te.compute((rows,), lambda i: y_max[i] * te.const(1 / 127, "float32"), name="scale")

    def quantized(i, j):
        zero, limit = te.const(0, "float32"), te.const(127, "float32")
        steps = te.if_then_else(scale[i].equal(zero), zero, te.round(y[i, j] / scale[i]))
        return te.max(te.min(steps, limit), te.const(-127, "float32")).astype("int8")

    q = te.compute((rows, cols), quantized, name="q")
    return [x], [q, scale]


@takes_dims
def rms_norm_quantize(rows: int = 2, cols: int = 4, eps: float = 1e-6, dtype: str = "float32") -> Operator:
    """`x` (rows, cols) to `q` (rows, cols) in int8 and `scale` (rows,) in float32: RMSNorm, quantized row by row.

    y = x / sqrt(mean(x**2) + eps); scale = max|y| / 127; q = round(y / scale), ties to even, clipped to [-127, 127].
    So q * scale differs from y by at most scale / 2, up to rounding.  A row of zeros has scale 0 and q 0.  After
    Neptune, 4.4 (dynamic scaling quantization).  `q` needs the scale of the whole row, so `x` is read twice.

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        eps: added to the mean of squares; positive.
        dtype: "float16", "bfloat16" or "float32", of `x`.

    Returns:
        The operator, from `x` to `q` and `scale`.

    Raises:
        DefinitionError: a size that is not a positive integer, another dtype, or an eps that is not positive.
    """
    check_number("eps", eps, DefinitionError, positive=True)

    def compute(x: np.ndarray) -> Arrays:
        y = _rms_norm(x, eps)
        scale = np.abs(y).max(axis=1, keepdims=True) / 127
        steps = np.divide(y, scale, out=np.zeros_like(y), where=scale != 0)
        return np.clip(np.rint(steps), -127, 127), scale[:, 0]

    return _rowwise(
        "rms_norm_quantize",
        "RMSNorm, quantized to int8 with a scale for each row",
        "Neptune, section 4.4 (dynamic scaling quantization)",
        define_rms_norm_quantize,
        ("x2_sum", "mean_square", "y", "y_max", "scale", "q"),
        (rows, cols, dtype),
        outputs=[("q", (rows, cols), "int8"), ("scale", (rows,), "float32")],
        compute=compute,
        eps=eps,
        helpers=(_mean_square,),
    )


def define_layer_norm_statistics(rows: int, cols: int, dtype: str) -> Definition:
    """Mean and variance of each row as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    mean, variance = _statistics(te, x, rows, cols)
    return [x], [mean, variance]


@takes_dims
def layer_norm_statistics(rows: int = 2, cols: int = 4, dtype: str = "float32") -> Operator:
    """`x` (rows, cols) to `mean` and `variance`, both (rows,): the mean of a row, and the mean of (x - mean)**2.

    The variance divides by cols, as LayerNorm does (Ba, Kiros and Hinton, "Layer Normalization", 2016, Eq. 3).

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        dtype: "float16", "bfloat16" or "float32", of `x`; the outputs are float32.

    Returns:
        The operator, from `x` to `mean` and `variance`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """
    return _rowwise(
        "layer_norm_statistics",
        "Mean and variance of each row",
        "Layer Normalization (Ba, Kiros and Hinton, 2016), Eq. 3",
        define_layer_norm_statistics,
        ("x_sum", "mean", "deviation_sum", "variance"),
        (rows, cols, dtype),
        outputs=[("mean", (rows,), "float32"), ("variance", (rows,), "float32")],
        compute=lambda x: (x.mean(axis=1), x.var(axis=1)),
        helpers=(_statistics,),
    )


def define_layer_norm(rows: int, cols: int, dtype: str, eps: float) -> Definition:
    """LayerNorm as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), dtype, name="x")
    gamma = te.placeholder((cols,), dtype, name="gamma")
    beta = te.placeholder((cols,), dtype, name="beta")
    mean, variance = _statistics(te, x, rows, cols)

    def normalized(i, j):
        wide = (x[i, j].astype("float32") - mean[i]) * te.rsqrt(variance[i] + te.const(eps, "float32"))
        return (wide * gamma[j].astype("float32") + beta[j].astype("float32")).astype(dtype)

    return [x, gamma, beta], [te.compute((rows, cols), normalized, name="out")]


@takes_dims
def layer_norm(rows: int = 2, cols: int = 4, eps: float = 1e-5, dtype: str = "float32") -> Operator:
    """`x` (rows, cols), `gamma` and `beta` (cols,) to `out` (rows, cols), all of one dtype: LayerNorm.

    out = (x - mean) / sqrt(variance + eps) * gamma + beta, with `layer_norm_statistics` of each row in float32
    (Ba, Kiros and Hinton, "Layer Normalization", 2016).

    Args:
        rows: rows of `x`.
        cols: columns of `x`, the reduced dimension.
        eps: added to the variance; positive.
        dtype: "float16", "bfloat16" or "float32".

    Returns:
        The operator, from `x`, `gamma` and `beta` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, another dtype, or an eps that is not positive.
    """
    check_number("eps", eps, DefinitionError, positive=True)

    def compute(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> Arrays:
        deviation = x - x.mean(axis=1, keepdims=True)
        return (deviation / np.sqrt(x.var(axis=1, keepdims=True) + eps) * gamma + beta,)

    return _rowwise(
        "layer_norm",
        "LayerNorm of each row",
        "Layer Normalization (Ba, Kiros and Hinton, 2016)",
        define_layer_norm,
        ("x_sum", "mean", "deviation_sum", "variance", "out"),
        (rows, cols, dtype),
        outputs=[("out", (rows, cols), dtype)],
        compute=compute,
        eps=eps,
        weights=("gamma", "beta"),
        helpers=(_statistics,),
    )


# -- shared helpers ---------------------------------------------------------------------------------------


def _mean_square(te: Any, x: Any, rows: int, cols: int) -> Any:
    """The mean of squares of each row."""
    j = te.reduce_axis((0, cols), name="j")
    wide = "float32"
    x2_sum = te.compute((rows,), lambda i: te.sum(x[i, j].astype(wide) * x[i, j].astype(wide), axis=j), name="x2_sum")
    return te.compute((rows,), lambda i: x2_sum[i] * te.const(1 / cols, wide), name="mean_square")


def _statistics(te: Any, x: Any, rows: int, cols: int) -> tuple[Any, Any]:
    """The mean and the variance of each row."""
    j = te.reduce_axis((0, cols), name="j")
    part = te.const(1 / cols, "float32")
    x_sum = te.compute((rows,), lambda i: te.sum(x[i, j].astype("float32"), axis=j), name="x_sum")
    mean = te.compute((rows,), lambda i: x_sum[i] * part, name="mean")

    def square(i):
        deviation = x[i, j].astype("float32") - mean[i]
        return te.sum(deviation * deviation, axis=j)

    deviation_sum = te.compute((rows,), square, name="deviation_sum")
    return mean, te.compute((rows,), lambda i: deviation_sum[i] * part, name="variance")


def _rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """The reference's RMSNorm of each row."""
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + eps)


def _rowwise(
    name: str,
    title: str,
    doc: str,
    define: Any,
    stages: tuple[str, ...],
    sizes: tuple[int, int, str],
    *,
    outputs: list[tuple[str, tuple[int, ...], str]],
    compute: Any,
    eps: float | None = None,
    weights: tuple[str, ...] = (),
    helpers: tuple[Any, ...] = (),
) -> Operator:
    """The operator from `x` (rows, cols) and `weights` (cols,) to `outputs` (name, shape, dtype).

    Raises DefinitionError for wrong `sizes`.  `helpers` are functions that `define` calls, for the operator's source.
    """
    rows, cols, dtype = sizes
    positive(rows=rows, cols=cols)
    supported(dtype, "float16", "bfloat16", "float32")
    params: dict[str, Any] = {"rows": int(rows), "cols": int(cols), "dtype": dtype}
    if eps is not None:
        params["eps"] = float(eps)
    extra = () if eps is None else (float(eps),)
    inputs = (TensorSpec("x", (rows, cols), dtype), *(TensorSpec(w, (cols,), dtype) for w in weights))
    return Operator(
        name=name,
        title=title,
        doc=doc,
        params=params,
        inputs=inputs,
        outputs=tuple(TensorSpec(*o) for o in outputs),
        source="\n".join(source_of(f) for f in (*helpers, define)),
        build=builder(name, stages, define, rows, cols, dtype, *extra),
        compute=compute,
        draw=lambda rng: tuple(rng.standard_normal(t.shape) for t in inputs),
    )
