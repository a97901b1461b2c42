"""Backward passes: derived gradients against differences of the references, against torch, and as kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gradients import as_float64, gradients, worst_error
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.operators import (
    Operator,
    attention,
    backward,
    custom,
    gemm_chain,
    norms,
    performer,
    rows,
    softmax,
    training,
)

ATTENTION = {"batch": 2, "heads": 2, "seq": 12, "head_dim": 4, "dtype": "float32"}


def _f(x):
    return x.astype("float32")


def _sum(name: str, term: Callable[..., object], shape: tuple[int, ...], *extents: int):
    axes = [te.reduce_axis((0, n), name=f"r{i}") for i, n in enumerate(extents)]
    return te.compute(shape, lambda *at: te.sum(term(*at, *axes), axis=axes), name=name)


def _max(name: str, term: Callable[..., object], shape: tuple[int, ...], extent: int):
    j = te.reduce_axis((0, extent), name="j")
    return te.compute(shape, lambda *at: te.max(term(*at, j), axis=j), name=name)


def _functions() -> Operator:
    """Every function that has a derivative, on positive numbers."""
    x = te.placeholder((3, 5), "float32", name="x")
    y = te.placeholder((3, 5), "float32", name="y")
    half = te.const(0.5, "float32")

    def value(i, j):
        a = te.abs(x[i, j]) + half
        b = te.abs(y[i, j]) + half
        first = te.exp(x[i, j] * half) + te.log(a) + te.log2(a) + te.sqrt(a) + te.rsqrt(b) + te.sigmoid(x[i, j])
        second = te.tanh(y[i, j]) + te.sin(x[i, j]) * te.cos(y[i, j]) + te.erf(x[i, j]) + te.power(a, b) + a / b
        return first + second + te.max(x[i, j], y[i, j]) + te.min(x[i, j], y[i, j])

    return custom("functions", [x, y], [te.compute((3, 5), value, name="out")])


def _relative_bias() -> Operator:
    """A gather along a diagonal: bias[q - kv + 6]."""
    x = te.placeholder((7, 7), "float32", name="x")
    bias = te.placeholder((13,), "float32", name="bias")
    biased = te.compute((7, 7), lambda i, j: x[i, j] * bias[i - j + 6], name="biased")
    return custom("relative_bias", [x, bias], [_sum("out", lambda i, j: te.exp(biased[i, j]), (7,), 7)])


def _table() -> Operator:
    """A gather by data: table[ids[i], d]; some rows are read several times, others never."""
    ids = te.placeholder((9,), "int32", name="ids")
    table = te.placeholder((4, 3), "float32", name="table")
    out = te.compute((9, 3), lambda i, d: te.sin(table[te.min(te.max(ids[i], 0), 3), d]), name="out")
    return custom("table", [ids, table], [out], draw=lambda rng: (rng.integers(0, 3, 9), rng.standard_normal((4, 3))))


def _blocks() -> Operator:
    """Reads by blocks and by remainders: scale[i // 4] and shift[i % 4], of a length that 4 does not divide."""
    x = te.placeholder((10,), "float32", name="x")
    scale = te.placeholder((3,), "float32", name="scale")
    shift = te.placeholder((4,), "float32", name="shift")
    out = te.compute((10,), lambda i: x[i] * scale[i // 4] + te.exp(shift[i % 4]), name="out")
    return custom("blocks", [x, scale, shift], [out])


def _diagonal() -> Operator:
    """Reads one element by two equal indices."""
    x = te.placeholder((5, 5), "float32", name="x")
    return custom("diagonal", [x], [te.compute((5,), lambda i: x[i, i] * x[i, 4 - i], name="out")])


def _prefix() -> Operator:
    """Reads a part of a tensor; the rest has gradient 0."""
    x = te.placeholder((6, 4), "float32", name="x")
    return custom("prefix_sum", [x], [_sum("out", lambda i, j: te.exp(x[i + 1, j]), (4,), 3)])


def _product() -> Operator:
    """A product along an axis, in which there is a 0 in one row and two in another."""
    x = te.placeholder((4, 5), "float32", name="x")
    reducer = te.comm_reducer(lambda a, b: a * b, lambda t: te.const(1, t), name="prod")
    j = te.reduce_axis((0, 5), name="j")
    out = te.compute((4,), lambda i: reducer(x[i, j], axis=j), name="out")

    def draw(rng: np.random.Generator):
        values = rng.standard_normal((4, 5))
        values[1, 2] = values[2, 0] = values[2, 3] = 0
        return (values,)

    return custom("product", [x], [out], draw=draw)


def _extrema() -> Operator:
    """A maximum of computed values, and a minimum."""
    x = te.placeholder((4, 6), "float32", name="x")
    y = te.compute((4, 6), lambda i, j: te.exp(x[i, j]) * te.const(0.3, "float32"), name="y")
    low = te.reduce_axis((0, 6), name="k")
    largest = _max("largest", lambda i, j: y[i, j], (4,), 6)
    smallest = te.compute((4,), lambda i: te.min(x[i, low], axis=low), name="smallest")
    return custom("extrema", [x], [te.compute((4,), lambda i: largest[i] * smallest[i], name="out")])


def _two_weights() -> Operator:
    """Weights that are a result themselves, beside an average with them."""
    x = te.placeholder((4, 6), "float32", name="x")
    v = te.placeholder((6, 3), "float32", name="v")
    m = _max("m", lambda i, j: x[i, j], (4,), 6)
    e = te.compute((4, 6), lambda i, j: te.exp(x[i, j] - m[i]), name="e")
    s = _sum("s", lambda i, j: e[i, j], (4,), 6)
    acc = _sum("acc", lambda i, d, j: e[i, j] * v[j, d], (4, 3), 6)
    out = te.compute((4, 3), lambda i, d: acc[i, d] / s[i], name="out")
    weights = te.compute((4, 6), lambda i, j: e[i, j] / s[i], name="weights")
    return custom("two_weights", [x, v], [out, weights])


def _cosine() -> Operator:
    """Scores of normalised rows."""
    x = te.placeholder((5, 4), "float32", name="x")
    y = te.placeholder((6, 4), "float32", name="y")
    square = _sum("square", lambda i, d: x[i, d] * x[i, d], (5,), 4)
    inverse = te.compute((5,), lambda i: te.rsqrt(square[i] + te.const(1e-3, "float32")), name="inverse")
    dot = _sum("dot", lambda i, j, d: x[i, d] * y[j, d], (5, 6), 4)
    return custom("cosine", [x, y], [te.compute((5, 6), lambda i, j: dot[i, j] * inverse[i], name="out")])


def _mlp() -> Operator:
    """Two products with a gate between them."""
    x = te.placeholder((5, 4), "float32", name="x")
    w = te.placeholder((4, 6), "float32", name="w")
    u = te.placeholder((6, 3), "float32", name="u")
    hidden = _sum("hidden", lambda i, j, k: x[i, k] * w[k, j], (5, 6), 4)
    gated = te.compute((5, 6), lambda i, j: hidden[i, j] * te.sigmoid(hidden[i, j]), name="gated")
    return custom("mlp", [x, w, u], [_sum("out", lambda i, d, j: gated[i, j] * u[j, d], (5, 3), 6)])


def _difference_of_softmaxes() -> Operator:
    """Differential attention: two softmaxes with averages of one v, one taken off the other; an input has the name that
    a stage would get."""
    x, y = (te.placeholder((4, 6), "float32", name=n) for n in ("x", "weights"))
    v = te.placeholder((6, 3), "float32", name="v")

    def average(scores, n):
        m = _max(f"m{n}", lambda i, j: scores[i, j], (4,), 6)
        e = te.compute((4, 6), lambda i, j: te.exp(scores[i, j] - m[i]), name=f"e{n}")
        s = _sum(f"s{n}", lambda i, j: e[i, j], (4,), 6)
        acc = _sum(f"acc{n}", lambda i, d, j: e[i, j] * v[j, d], (4, 3), 6)
        return acc, s

    (a, s), (b, t) = average(x, 1), average(y, 2)
    out = te.compute((4, 3), lambda i, d: a[i, d] / s[i] - te.const(0.3, "float32") * (b[i, d] / t[i]), name="out")
    return custom("difference_of_softmaxes", [x, y, v], [out])


OWN = {
    f.__name__.strip("_"): f
    for f in (
        _functions, _relative_bias, _table, _blocks, _diagonal, _prefix, _product, _extrema, _two_weights, _cosine,
        _mlp, _difference_of_softmaxes,
    )
}  # fmt: skip
LIBRARY: dict[str, Callable[[], Operator]] = {
    "full": lambda: attention.full(**ATTENTION),
    "causal": lambda: attention.causal(**ATTENTION),
    "causal_lse": lambda: attention.causal(**ATTENTION, return_lse=True),
    "largest_scores": lambda: attention.general(2, 2, 9, 13, 4, dtype="float32", return_max=True),
    "gqa": lambda: attention.gqa(kv_heads=1, **ATTENTION),
    "alibi": lambda: attention.alibi(**ATTENTION),
    "softcap": lambda: attention.softcap(**ATTENTION),
    "window": lambda: attention.window(**ATTENTION, window=4),
    "prefix": lambda: attention.prefix(**ATTENTION, prefix=3),
    "widths": lambda: attention.general(1, 2, 9, 13, 4, v_head_dim=3, dtype="float32"),
    "empty_rows": lambda: attention.general(
        1, 2, 9, 13, 4, mask_mod=lambda b, h, q, kv: kv < q - 2, dtype="float32", empty_rows="zero"
    ),
    "shared_keys": lambda: attention.general(3, 2, 9, 13, 4, kv_batch=1, dtype="float32"),
    "gemm_chain": lambda: gemm_chain.gemm_chain(m=5, n=6, k=4, h=3, dtype="float32"),
    "performer": lambda: performer.performer(batch=1, heads=2, seq=8, head_dim=4, features=8, dtype="float32"),
    "l2_norm": lambda: norms.l2_norm(rows=3, cols=7),
    "layer_norm": lambda: norms.layer_norm(rows=3, cols=7),
    "layer_norm_statistics": lambda: norms.layer_norm_statistics(rows=3, cols=7),
    "rms_norm_max": lambda: norms.rms_norm_max(rows=3, cols=7),
    "rms_norm_quantize": lambda: norms.rms_norm_quantize(rows=3, cols=7),
    "softmax": lambda: rows.softmax(rows=3, cols=7, dtype="float32"),
    "log_sum_exp": lambda: rows.log_sum_exp(rows=3, cols=7, dtype="float32"),
    "cross_entropy": lambda: rows.cross_entropy(rows=3, cols=7, dtype="float32"),
    "figure1": lambda: softmax.figure1(),
}
EVERY = {**LIBRARY, **OWN}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", EVERY)
def test_the_definition_s_derivative_is_that_of_its_reference(name):
    op = EVERY[name]()
    assert worst_error(op, training(op)) < 1e-6


@pytest.mark.one_in(36)
@pytest.mark.parametrize("name", EVERY)
def test_kernels_compute_the_derived_gradients(name):
    op = backward(EVERY[name]())
    kernel = nl.compile(op)
    errors = kernel.relative_error()
    assert errors < 2e-5, errors


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["full", "causal", "gqa", "alibi", "softcap"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_of_16_bits_round_as_attention_does(name, dtype):
    sizes = {**ATTENTION, "seq": 40, "head_dim": 16, "dtype": dtype}
    op = attention.gqa(kv_heads=1, **sizes) if name == "gqa" else getattr(attention, name)(**sizes)
    assert nl.compile(backward(op)).relative_error() < (2e-3 if dtype == "float16" else 1.6e-2)


@pytest.mark.nightly
def test_flashattention_s_backward_is_derived():
    """Delta once per row; dq in one nest over keys; dk and dv together in one over queries; nothing per pair in
    global memory; hidden tiles skipped."""
    kernel = nl.compile(backward(attention.causal(batch=1, heads=2, seq=256, head_dim=16)), block_q=32, block_kv=32)
    assert kernel.htile_text.count("\nkernel ") == 3
    pairs = [line for line in kernel.htile_text.splitlines() if line.startswith("  global") and line.count("256") > 1]
    assert not pairs
    assert "right edge" not in kernel.htile_text
    assert "left edge" not in kernel.htile_text
    assert kernel.relative_error() < 2e-3


def test_torch_s_gradients_of_ties_are_shared():
    x = np.array([[1.0, 3.0, 3.0, 0.0]])
    op = custom(
        "largest", [y := te.placeholder((1, 4), "float32", name="x")], [_max("out", lambda i, j: y[i, j], (1,), 4)]
    )
    found = gradients(training(op), {"x": x}, {"d_out": np.array([2.0])})["x"]
    tensor = torch.tensor(x, requires_grad=True)
    tensor.amax(1).backward(torch.tensor([2.0], dtype=torch.float64))
    assert found.tolist() == tensor.grad.tolist() == [[0.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_torch_s_gradients_of_pairs_are_halved_at_ties(name):
    a, b = (te.placeholder((3,), "float32", name=n) for n in "ab")
    function = {"maximum": te.max, "minimum": te.min}[name]
    op = custom("pairs", [a, b], [te.compute((3,), lambda i: function(a[i], b[i]), name="out")])
    values = {"a": np.array([1.0, 2.0, 0.0]), "b": np.array([1.0, 0.0, 2.0])}
    given = {"d_out": np.array([3.0, 5.0, 7.0])}
    found = gradients(training(op), values, given)
    tensors = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
    getattr(torch, name)(*tensors.values()).backward(torch.tensor(given["d_out"]))
    assert {n: g.tolist() for n, g in found.items()} == {n: t.grad.tolist() for n, t in tensors.items()}


def test_the_row_s_log_sum_exp_is_kept_and_nothing_per_pair():
    made = training(attention.causal(**ATTENTION))
    assert made.kept == ("lse2", "out")
    assert [t.name for t in made.forward.outputs] == ["out", "lse2"]
    assert training(attention.causal(**ATTENTION, return_lse=True)).kept[-1] == "out"


def test_what_is_kept_can_be_chosen():
    op = attention.causal(**ATTENTION)
    made = training(op, keep=["qk", "lse2", "out"])
    assert "qk" in made.kept
    assert worst_error(op, made) < 1e-6


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"wrt": ["w"]}, "has no input 'w'"),
        ({"wrt": []}, "expected a list"),
        ({"wrt": ["q", "q"]}, "expected a list"),
        ({"keep": ["nothing"]}, "there is no stage 'nothing'"),
    ],
)
def test_refusals(arguments, match):
    with pytest.raises(DefinitionError, match=match):
        backward(attention.causal(**ATTENTION), **arguments)


def test_whole_numbers_have_no_gradient():
    with pytest.raises(DefinitionError, match="only floats have a gradient"):
        backward(_table(), ["ids"])
    assert training(_table()).wrt == ("table",)


def test_sizes_with_a_name_are_refused():
    with pytest.raises(DefinitionError, match="backward pass is for numbers"):
        backward(attention.causal(seq=nl.dim("n")))


def _repeated_names() -> Operator:
    """Two reads of one table, whose sums are copied for a second nest under names that others may have."""
    x = te.placeholder((6, 5), "float32", name="x")
    t = te.placeholder((2, 3), "float32", name="t")
    score = te.compute((6, 5), lambda i, j: x[i, j] * t[i % 2, j % 3] + te.exp(t[i // 3, j // 2]), name="score")
    rows = _sum("rows", lambda i, j: te.exp(score[i, j]), (6,), 5)
    return custom("repeated_names", [x, t], [rows, _sum("cols", lambda j, i: score[i, j] * score[i, j], (5,), 6)])


def test_copies_of_stages_have_names_of_their_own():
    op = _repeated_names()
    made = training(op)
    stages = [name for part in made.backward.parts for name in part]
    assert len(set(stages)) == len(stages)
    assert worst_error(op, made) < 1e-6


class _Differentiated(torch.autograd.Function):
    """An operator's reference, with the derivative that this package derives."""

    @staticmethod
    def forward(ctx, op, passes, names, *tensors):
        ctx.of = op, passes, names
        ctx.save_for_backward(*tensors)
        found = op.reference(*(t.numpy() for t in tensors))
        return tuple(torch.from_numpy(np.array(a)) for a in (found if isinstance(found, tuple) else (found,)))

    @staticmethod
    def backward(ctx, *given):
        op, passes, names = ctx.of
        cotangents = {f"d_{t.name}": g.numpy() for t, g in zip(op.outputs, given, strict=True)}
        values = dict(zip(names, (t.numpy() for t in ctx.saved_tensors), strict=True))
        found = gradients(passes, values, cotangents)
        return (None, None, None, *(torch.from_numpy(found[n]) if n in found else None for n in names))


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", [n for n in EVERY if n != "rms_norm_quantize"])
def test_torch_s_gradcheck_accepts_the_derivative(name):
    op = EVERY[name]()
    values = as_float64(op.random_inputs(1))
    passes = training(op)
    tensors = [torch.tensor(a, requires_grad=n in passes.wrt) for n, a in values.items()]
    check = lambda *t: _Differentiated.apply(op, passes, list(values), *t)  # noqa: E731
    assert torch.autograd.gradcheck(check, tensors, fast_mode=True)


@pytest.mark.parametrize("name", ["softmax", "log_sum_exp", "cross_entropy"])
def test_kernels_of_rows_of_16_bits(name):
    op = getattr(rows, name)(rows=5, cols=37, dtype="float16")
    assert nl.compile(backward(op)).relative_error() < 2e-3


def test_inputs_without_a_gradient_are_left_out_unless_they_are_named():
    x, y = (te.placeholder((3,), "float32", name=n) for n in "xy")
    op = custom("steps", [x, y], [te.compute((3,), lambda i: x[i] * te.floor(y[i]), name="out")])
    assert training(op).wrt == ("x",)
    with pytest.raises(DefinitionError, match=r"depends on 'y'(.|\n)*its gradient is 0"):
        training(op, ["x", "y"])
    with pytest.raises(DefinitionError, match="no result of steps depends"):
        training(custom("steps", [y], [te.compute((3,), lambda i: te.floor(y[i]), name="out")]))
