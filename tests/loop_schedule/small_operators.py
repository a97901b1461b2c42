"""Small operators in tensor expressions: chains of a few nests over `x` (n, m), each for one thing that can happen.

Every stage is named after the tensor it writes; the reduced dimension is j throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.tvm_compat import from_te
from neptune_lab.loop_schedule import Schedule
from neptune_lab.operators.base import Operator, TensorSpec

Definition = tuple[list[Any], list[Any]]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

# TVM's own annotations take the functions below for lists.
compute: Any = te.compute
REDUCERS: dict[str, Any] = {"sum": te.sum, "max": te.max, "min": te.min}


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def leading_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows whose first elements are 0, and one nonzero element at least."""
    x = rng.standard_normal(shape)
    x[..., : shape[-1] - 2] = 0
    return x


def operator(definition: Definition, draw: Draw = normal) -> Operator:
    inputs, outputs = definition

    def specs(tensors: list[Any]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t.op.name, tuple(int(n) for n in t.shape), str(t.dtype)) for t in tensors)

    def build() -> Program:
        return from_te("chain", inputs, outputs)

    def reference(*_: np.ndarray):
        raise NotImplementedError("compare with the unscheduled program")

    taken = specs(inputs)
    return Operator(
        name="chain",
        title="chain",
        doc="a test",
        params={},
        inputs=taken,
        outputs=specs(outputs),
        source="",
        build=build,
        compute=reference,
        draw=lambda rng: tuple(draw(rng, t.shape) for t in taken),
    )


def schedule(definition: Definition, draw: Draw = normal) -> Schedule:
    return Schedule(operator(definition, draw))


def matrix(name: str = "x", n: int = 3, m: int = 5, dtype: str = "float32") -> Any:
    return te.placeholder((n, m), dtype, name=name)


def fold(reducer: str, name: str, n: int, m: int, term: Callable[[Any, Any], Any]) -> Any:
    """`name[i] = reducer(term(i, j) for j)`."""
    j = te.reduce_axis((0, m), name="j")
    return compute((n,), lambda i: REDUCERS[reducer](term(i, j), axis=j), name=name)


def pair(
    g: Callable[[Any, Any], Any],
    reducer: str = "sum",
    *,
    first: str = "max",
    of: Callable[[Any], Any] = lambda c: c,
    n: int = 3,
    m: int = 5,
    dtype: str = "float32",
) -> Definition:
    """r[i] = first(of(x[i, j])); o[i] = reducer(g(x[i, j], r[i])), in float32; x may be of float16, and bounded so."""
    x = matrix(n=n, m=m, dtype=dtype)
    r = fold(first, "r", n, m, lambda i, j: of(x[i, j].astype("float32")))
    o = fold(reducer, "o", n, m, lambda i, j: g(x[i, j].astype("float32"), r[i]))
    return [x], [o]


def l2_norm(n: int = 3, m: int = 5) -> Definition:
    """The largest magnitude, then the sum of squares scaled by it."""
    return pair(lambda c, r: (c / r) * (c / r), of=te.abs, n=n, m=m)


def rms_max(n: int = 3, m: int = 5) -> Definition:
    """A sum of squares, then the max of x / sqrt(r + eps)."""
    return pair(lambda c, r: c / te.sqrt(r + 1e-5), "max", first="sum", of=lambda c: c * c, n=n, m=m)


def doubled(n: int = 3, m: int = 5) -> Definition:
    """A map alone."""
    x = matrix(n=n, m=m)
    return [x], [compute((n, m), lambda i, j: x[i, j] * 2.0, name="o")]


def two_inputs(n: int = 3, m: int = 5) -> Definition:
    """Maxima of two inputs, which share no tensor until the sum reads both."""
    x, y = matrix(n=n, m=m), matrix("y", n, m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    s = fold("max", "s", n, m, lambda i, j: y[i, j])
    return [x, y], [fold("sum", "o", n, m, lambda i, j: te.exp(x[i, j] - r[i]) * te.exp(y[i, j] - s[i]))]


def mean_variance(n: int = 3, m: int = 5) -> Definition:
    """A mean, then the sum of (c - mean)**2: no repair term of its own, but a vector repair."""
    return pair(lambda c, r: (c - r / m) * (c - r / m), first="sum", n=n, m=m)


def _softmax(n: int, m: int) -> tuple[Any, Any, Any]:
    x = matrix(n=n, m=m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    e = compute((n, m), lambda i, j: te.exp(x[i, j] - r[i]), name="e")
    return x, r, e


def late_reader(n: int = 3, m: int = 5) -> Definition:
    """Softmax: after the sum, e and r are read again."""
    x, r, e = _softmax(n, m)
    s = fold("sum", "s", n, m, lambda i, j: e[i, j])
    return [x], [compute((n, m), lambda i, j: e[i, j] / s[i] + r[i], name="o")]


def two_sums(n: int = 3, m: int = 5) -> Definition:
    """Two sums, both of e, and r read again at the end."""
    x, r, e = _softmax(n, m)
    s = fold("sum", "s", n, m, lambda i, j: e[i, j])
    q = fold("sum", "q", n, m, lambda i, j: e[i, j] * e[i, j])
    return [x], [compute((n,), lambda i: s[i] / q[i] + r[i], name="o")]


def two_direct_sums(n: int = 3, m: int = 5) -> Definition:
    """Two sums that read r itself, at different powers."""
    x = matrix(n=n, m=m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    s = fold("sum", "s", n, m, lambda i, j: te.exp(x[i, j] - r[i]))
    q = fold("sum", "q", n, m, lambda i, j: te.exp((x[i, j] - r[i]) * 2.0))
    return [x], [compute((n,), lambda i: s[i] / q[i], name="o")]


def weighted(n: int = 3, m: int = 5) -> Definition:
    """A softmax that is normalised before it is used: `o` depends on r and on s, which depends on r."""
    x, _, e = _softmax(n, m)
    s = fold("sum", "s", n, m, lambda i, j: e[i, j])
    p = compute((n, m), lambda i, j: e[i, j] / s[i], name="p")
    return [x], [fold("sum", "o", n, m, lambda i, j: p[i, j] * x[i, j])]


def two_producers(n: int = 3, m: int = 5) -> Definition:
    """A term that depends on two reductions of the same tensor, the second of which cannot be 0."""
    x = matrix(n=n, m=m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    s = fold("sum", "s", n, m, lambda i, j: te.exp(te.tanh(x[i, j])))
    return [x], [fold("sum", "o", n, m, lambda i, j: te.exp(x[i, j] - r[i]) / s[i])]


def exponential_output(n: int = 3, m: int = 5) -> Definition:
    """The map between the reductions is an output too."""
    x, _, e = _softmax(n, m)
    return [x], [e, fold("sum", "s", n, m, lambda i, j: e[i, j])]


def maximum_output(n: int = 3, m: int = 5) -> Definition:
    """The producing reduction is an output too."""
    x, r, e = _softmax(n, m)
    return [x], [r, fold("sum", "s", n, m, lambda i, j: e[i, j])]


def elsewhere(index: Callable[[Any, Any], Any], n: int = 4, m: int = 4) -> Definition:
    """The sum reads r at `index(i, j)`."""
    x = matrix(n=n, m=m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    return [x], [fold("sum", "o", n, m, lambda i, j: te.exp(x[i, j] - r[index(i, j)]))]


def mirrored(n: int = 4, m: int = 4) -> Definition:
    """A map under the rolling loop, which the sum reads at j and at m - 1 - j."""
    x = matrix(n=n, m=m)
    c = compute((n, m), lambda i, j: x[i, j] * 2.0, name="c")
    r = fold("max", "r", n, m, lambda i, j: c[i, j])
    return [x], [fold("sum", "o", n, m, lambda i, j: te.exp(c[i, j] - r[i]) * c[i, m - 1 - j])]


def scaled_first(n: int = 3, m: int = 5) -> Definition:
    """A map, then the max of it, then the sum."""
    x = matrix(n=n, m=m)
    c = compute((n, m), lambda i, j: x[i, j] * 2.0, name="c")
    r = fold("max", "r", n, m, lambda i, j: c[i, j])
    return [x], [fold("sum", "o", n, m, lambda i, j: te.exp(c[i, j] - r[i]))]


def late_weight(n: int = 3, m: int = 5) -> Definition:
    """The sum also reads a map that is computed after the max."""
    x, y = matrix(n=n, m=m), matrix("y", n, m)
    r = fold("max", "r", n, m, lambda i, j: x[i, j])
    w = compute((n, m), lambda i, j: y[i, j] * y[i, j], name="w")
    e = compute((n, m), lambda i, j: te.exp(x[i, j] - r[i]) * w[i, j], name="e")
    return [x, y], [fold("sum", "o", n, m, lambda i, j: e[i, j])]


def prefix(n: int = 3, m: int = 5, part: int = 3) -> Definition:
    """The sum folds the whole row, the two maxima only its first and its last `part` elements; two outputs."""
    x = matrix(n=n, m=m)
    r = fold("max", "r", n, part, lambda i, j: x[i, j])
    q = fold("max", "q", n, part, lambda i, j: x[i, j + m - part])
    return [x], [q, fold("sum", "o", n, m, lambda i, j: te.exp(x[i, j] - r[i] - q[i]))]


def permuted(n: int = 4) -> Definition:
    """One square tensor that is read by rows and by columns."""
    x = matrix(n=n, m=n)
    r = fold("max", "r", n, n, lambda i, j: x[j, i])
    return [x], [fold("sum", "o", n, n, lambda i, j: te.exp(x[i, j] - r[i]) * x[j, i])]


def updated(sch: Schedule, update: str, *chain: str, tile: int = 2, maps: str = "auto") -> Schedule:
    """`sch` with the reduction r split by `tile` and every block of `chain` fused under its outer loop."""
    sch.split("r.j", (None, tile))
    for block in chain:
        first = "r_local" if sch.has_block("r_local") else "r"
        getattr(sch, update)(block, f"{first}.j0", maps=maps)
    return sch
