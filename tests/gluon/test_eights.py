"""Gluon kernels that multiply floats of 8 bits, simulated warp by warp, against float64 of what tensors stand for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import by_name
import numpy as np
import pytest
import torch

from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite
from neptune_lab.htile_to_gluon import why_unsupported
from neptune_lab.operators import Operator, attention, math
from neptune_lab.pipeline import tuned
from neptune_lab.pipeline.gluon_for_sizes import gluon_choice
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.target import Target

E4 = "float8_e4m3fn"
HOPPER = Target("cuda", (9, 0))
# Of weights of e4m3 (docs/concepts/numbers.md).
TOLERANCE = 3e-2
OF_SPLIT = 2e-2  # the first half of each tile of keys with weights that are two numbers, or float16


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def eights(mask_mod: Any = None, score_mod: Any = None, **sizes: Any) -> Operator:
    """Attention of e4m3 tensors with a scale per head, and weights of e4m3."""
    given = {"batch": 1, "heads": 2, "q_len": 256, "kv_len": 256, "head_dim": 64, **sizes}
    heads, keys = (1, given["heads"]), (1, given.get("kv_heads") or given["heads"])
    formats = {f"{name}_dtype": E4 for name in "qkv"} | {"q_scale": heads, "k_scale": keys, "v_scale": keys}
    formats |= {"dtype": "bfloat16", "weights_dtype": E4, "v_transposed": True}
    return attention.general(mask_mod=mask_mod, score_mod=score_mod, **{**formats, **given})


def compiled(operator: Operator, **options: Any) -> Any:
    chosen = {"block_q": 128, "block_kv": 64, "rounded_weights": "single", **options}
    return by_name.compile(operator, "rolling_update", code="gluon", **chosen)


def as_torch(array: np.ndarray) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    if not array.dtype.name.startswith("float8"):
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))


def array_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy() if tensor.dtype == torch.float16 else tensor.float().numpy()


def run(kernel: Any, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    simulator = Simulator(kernel.source, 5, triton=triton_numpy.for_tensors(array_of))
    out = simulator(kernel.triton.entry, *map(as_torch, inputs.values()))
    return tuple(t.double().numpy() for t in (out if isinstance(out, tuple) else (out,)))


def wanted(operator: Operator, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    out = operator.reference(*inputs.values())
    return out if isinstance(out, tuple) else (out,)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The relative error; infinities that are right have none."""
    difference = np.where((got == want) & np.isinf(want), 0.0, got - np.where(np.isinf(want), 0.0, want))
    return float(np.linalg.norm(difference) / np.linalg.norm(want[np.isfinite(want)]))


def amplified(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same scores, from values of q and k that use the range of e4m3, and small scales."""
    made = {n: (inputs[n].astype(np.float32) * 64).astype(inputs[n].dtype) for n in "qk"}
    made |= {f"{n}_scale": inputs[f"{n}_scale"] / np.float32(64) for n in "qk" if f"{n}_scale" in inputs}
    return {**inputs, **made}


def check(operator: Operator, tolerance: float = TOLERANCE, **options: Any) -> str:
    """The source of the kernel, which is right."""
    kernel = compiled(operator, **options)
    drawn = operator.random_inputs(0)
    for inputs in (drawn, amplified(drawn)) if "q_scale" in drawn else (drawn,):
        for got, want in zip(run(kernel, inputs), wanted(operator, inputs), strict=True):
            assert error(got, want) < tolerance
    return kernel.source


BIAS = np.random.default_rng(0).normal(size=256).astype(np.float32)
OPERATORS = {
    "plain": lambda: eights(),
    "causal": lambda: eights(causal),
    "window": lambda: eights(lambda b, h, q, kv: (q >= kv) & (q - kv < 200), q_len=512, kv_len=512),
    "gqa": lambda: eights(causal, heads=4, kv_heads=2, batch=2),
    "lse": lambda: eights(causal, return_lse=True, return_max=True),
    "empty rows": lambda: eights(lambda b, h, q, kv: (q >= kv) & (q > 3), empty_rows="zero", return_lse=True),
    "softcap": lambda: eights(causal, lambda s, b, h, q, kv: math.tanh(s / 20.0) * 20.0),
    "bias": lambda: eights(None, lambda s, b, h, q, kv: s + BIAS[kv]),
    "no scales": lambda: eights(causal, q_scale=None, k_scale=None, v_scale=None),
    "e5m2": lambda: eights(causal, q_dtype="float8_e5m2", k_dtype="float8_e5m2"),
    "width of values": lambda: eights(causal, v_head_dim=128),
    "keys that tiles do not divide": lambda: eights(causal, q_len=304, kv_len=304),
    "queries that tiles do not divide": lambda: eights(q_len=131),
}
# In these, scores are products times a scale, perhaps masked.
UNSCALED = {*OPERATORS} - {"softcap", "bias", "no scales"}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", OPERATORS)
def test_attention(name: str):
    source = check(OPERATORS[name]())
    assert ("_negate(" in source) == (name in UNSCALED)
    assert source.count("if unit <= ") == (name in UNSCALED)
    assert "enable_fp_fusion=False" in source
    # Where tiles divide the keys, no weight moves between threads; rows are summed after the loop.
    assert ("_in_order_of_keys(" in source) == (name != "keys that tiles do not divide")
    assert "_sums_of_threads(" in source


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", OPERATORS)
def test_weights_that_are_two_numbers(name: str):
    source = check(OPERATORS[name](), OF_SPLIT, rounded_weights="split")
    assert source.count("_rounded_and_rest(") > 1  # its definition, and calls


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPERATORS)
def test_weights_of_which_half_are_float16(name: str):
    """Where tiles do not divide the keys, those weights are two numbers."""
    source = check(OPERATORS[name](), OF_SPLIT, rounded_weights="mixed")
    mixed = name != "keys that tiles do not divide"
    assert ("_fill_both(" in source) == mixed
    assert ("_rounded_and_rest(" in source) != mixed


@pytest.mark.nightly
@pytest.mark.parametrize("weights", ["split", "mixed"])
@pytest.mark.parametrize(
    "options",
    [
        {"block_kv": 128},
        {"block_kv": 256},
        {"block_kv": 256, "persistent": True},
        {"block_kv": 64, "ping_pong": False, "ring_stages": 3},
        {"block_q": 192, "block_kv": 128, "persistent": True},
    ],
    ids=str,
)
def test_options_of_weights_with_more_digits(options: dict[str, Any], weights: str):
    check(eights(causal, heads=4, q_len=512, kv_len=512), OF_SPLIT, rounded_weights=weights, **options)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", range(3))
def test_keys_that_both_products_weigh_are_refused(number: int):
    kernel = by_name.compile(eights(), "rolling_update", block_q=128, block_kv=64, rounded_weights="mixed")
    parts = to_text(kernel.htile).split("] < 32,")
    assert len(parts) == 4
    program = from_text("] < 32,".join(parts[: number + 1]) + "] < 16," + "] < 32,".join(parts[number + 1 :]))
    verify(program)
    assert why_unsupported(kernel.htile, kernel.htile.kernels[1]) is None
    assert "is added to another product" in (why_unsupported(program, program.kernels[1]) or "")


def test_two_numbers_of_a_weight_multiply_the_same_values():
    program = by_name.compile(eights(), "rolling_update", block_q=128, block_kv=64, rounded_weights="split").htile

    def first_head(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, index=(ir.Int(0), ir.Int(0), *expr.index[2:])) if isinstance(expr, ir.Access) else expr

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        is_added = isinstance(expr, ir.Dot) and isinstance(expr.acc, ir.Dot)
        return replace(expr, b=rewrite(expr.b, first_head)) if is_added else expr

    def changed(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(
            replace(s, body=changed(s.body)) if isinstance(s, ir.For) else replace(s, value=rewrite(s.value, visit))
            for s in body
        )

    kernel = program.kernels[0]
    assert why_unsupported(program, kernel) is None
    other = replace(kernel, body=changed(kernel.body))
    assert other != kernel
    assert "is added to another product" in (why_unsupported(program, other) or "")


def test_tiles_of_too_few_keys_for_weights_that_are_two_numbers():
    kernel = by_name.compile(eights(), "rolling_update", block_q=128, block_kv=32, rounded_weights="split")
    why = why_unsupported(kernel.htile, kernel.htile.kernels[0]) or ""
    assert "has a remainder for 16 keys; expected a multiple of 32" in why


@pytest.mark.nightly
def test_positions_follow_the_order_of_keys():
    """A bias per key and a mask read positions of keys, whose columns are in another order."""
    odd = np.arange(256) % 7 < 3
    check(eights(lambda b, h, q, kv: (q >= kv) & (kv % 3 != 1), lambda s, b, h, q, kv: s + BIAS[kv] - 0.1 * (q - kv)))
    source = check(eights(lambda b, h, q, kv: odd[kv]), block_kv=128)
    assert "_keys_in_halves(" in source


@pytest.mark.nightly
@pytest.mark.parametrize("start", [0, 2])
def test_keys_are_in_halves_only_if_tiles_start_at_four_rows(start: int):
    """A part of a cache: a sample starts at a row that is no multiple of four."""
    operator = eights(causal, batch=2)
    strided = operator.with_strides(k=(2 * (256 + start) * 64, (256 + start) * 64, 64, 1))
    kernel = compiled(strided)
    assert ("_fill_halves(" in kernel.source) == (start == 0)
    inputs = operator.random_inputs(0)
    memory = torch.zeros(2, 2, 256 + start, 64, dtype=torch.uint8)
    memory[:, :, :256] = as_torch(inputs["k"]).view(torch.uint8)
    tensors = [as_torch(a) for a in inputs.values()]
    tensors[list(inputs).index("k")] = memory.view(torch.float8_e4m3fn)[:, :, :256]
    out = Simulator(kernel.source, 5)(kernel.triton.entry, *tensors)
    assert error(out.double().numpy(), wanted(operator, inputs)[0]) < TOLERANCE


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"ping_pong": False},
        {"ring_stages": 1},
        {"ring_stages": 3},
        {"persistent": True},
        {"persistent": True, "ahead": True, "tie": True, "ring_stages": 1},
        {"block_kv": 128},
        {"block_kv": 256},
        {"block_kv": 256, "persistent": True, "ping_pong": False},
        {"block_q": 64},
        {"block_q": 192, "block_kv": 64},
        {"block_q": 192, "block_kv": 128, "persistent": True},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]):
    length = 384 if options.get("block_q") == 192 else 2 * max(128, options.get("block_kv", 0))
    check(eights(causal, heads=4, q_len=length, kv_len=length), **options)


@pytest.mark.nightly
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("length", [64, 128, 256, 320, 336, 448])
@pytest.mark.parametrize("block_q", [128, 192])
def test_rows_that_programs_do_not_divide(block_q: int, length: int, persistent: bool):
    """Whole consumers of a head's last program are past its end: the rows there, the next head's, stay as they are."""
    operator = eights(causal, batch=2, q_len=length, kv_len=448, return_lse=True)
    kernel = compiled(operator, block_q=block_q, block_kv=64, persistent=persistent)
    inputs = {**operator.random_inputs(1), "q_scale": np.float32([[1.0, -0.5]])}
    for got, want in zip(run(kernel, inputs), wanted(operator, inputs), strict=True):
        assert error(got, want) < TOLERANCE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("persistent", [False, True])
def test_scales_of_any_sign_and_size(persistent: bool):
    """A head per pair of scales: positive, negative (q is negated), 0 (masked keys stay out), large and small."""
    operator = eights(causal, heads=6, return_max=True)
    kernel = compiled(operator, persistent=persistent)
    inputs = dict(operator.random_inputs(3))
    inputs["q_scale"] = np.float32([[1.0, -1.0, 0.0, -1e-3, 1e30, 1e-30]])
    inputs["k_scale"] = np.float32([[1.0, 2.0, 1.0, -3.0, -1e5, 1e-30]])
    assert "_negate(" in kernel.source
    for got, want in zip(run(kernel, inputs), wanted(operator, inputs), strict=True):
        for head in range(6):
            if np.abs(want[:, head]).max() > 1e-20:
                assert error(got[:, head], want[:, head]) < TOLERANCE


def test_scales_that_are_no_numbers_give_none():
    operator = eights(causal)
    inputs = dict(operator.random_inputs(3))
    inputs["q_scale"] = np.float32([[np.nan, np.inf]])
    (got,) = run(compiled(operator), inputs)
    assert np.isnan(got).all()


@pytest.mark.nightly
def test_kernels_for_all_sizes_have_weights_of_two_numbers():
    operator = eights(causal, q_len=4096, kv_len=4096, head_dim=128, heads=8)
    of_one, of_all = tuned.untuned_choice(operator, HOPPER), gluon_choice(operator, None, None, None, HOPPER)
    assert of_one is not None
    assert of_all is not None
    assert (of_one.code.rounded_weights, of_all.code.rounded_weights) == ("mixed", "split")


def test_scores_that_are_large_and_equal():
    """The largest weight is 256, not what rounding makes of it: each row averages the values of its largest scores."""
    operator = eights(heads=1, kv_len=256)
    inputs = dict(operator.random_inputs(5))
    chosen = np.random.default_rng(1).random(256) < 0.4
    q, k = (np.zeros_like(inputs[name]) for name in ("q", "k"))
    q[..., 0], k[..., 0] = 448, np.where(chosen, 448, 416)
    inputs |= {"q": q, "k": k, "q_scale": np.float32([[3.3e7]]), "k_scale": np.float32([[0.7]])}
    (got,) = run(compiled(operator), inputs)
    v = inputs["v"].astype(np.float64)[0, 0] * inputs["v_scale"].astype(np.float64)
    assert error(got[0, 0], np.broadcast_to(v[:, chosen].mean(1), got[0, 0].shape)) < 5e-3


@pytest.mark.nightly
def test_layouts():
    operator = eights(causal, batch=2)
    inputs = operator.random_inputs(0)
    turned = {n: as_torch(inputs[n].swapaxes(1, 2)).transpose(1, 2) for n in "qk"}  # (batch, length, heads, head_dim)
    strided = operator.with_strides(**{n: t.stride() for n, t in turned.items()})
    tensors = [turned.get(n, as_torch(a)) for n, a in inputs.items()]
    kernel = compiled(strided)
    out = Simulator(kernel.source, 5)(kernel.triton.entry, *tensors)
    assert error(out.double().numpy(), wanted(operator, inputs)[0]) < TOLERANCE


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("operator", "why"),
    [
        (lambda: eights(weights_dtype=None, v_transposed=False), "the right operand of acc is not a tile in global"),
        (lambda: eights(q_dtype="bfloat16", k_dtype="bfloat16"), "some of its products multiply floats of 8 bits"),
        (lambda: eights(q_len=250, kv_len=250), "the copy engine cannot load tiles of v"),
    ],
)
def test_reasons(operator: Any, why: str):
    kernel = by_name.compile(operator(), "rolling_update", block_q=128, block_kv=64)
    assert re.search(why, why_unsupported(kernel.htile, kernel.htile.kernels[0]) or "")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("operator", "gluon"),
    [
        (lambda: eights(causal, q_len=2048, kv_len=2048, head_dim=128, heads=8), True),
        (lambda: eights(q_len=4096, kv_len=4096, heads=8), True),
        (lambda: eights(causal, q_len=2048, kv_len=2048, head_dim=256, heads=8), False),  # too many registers
        (lambda: eights(causal, q_len=2050, kv_len=2050, head_dim=128, heads=8), False),
    ],
)
def test_the_choice_without_a_record(operator: Any, gluon: bool):
    op = operator()
    choice = tuned.untuned_choice(op, HOPPER)
    assert gluon == (choice is not None and choice.code.code == "gluon")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sizes", "keys"),
    [
        ({"head_dim": 128}, 256),
        ({"head_dim": 128, "kv_len": 8208}, 128),  # tiles would not divide the keys, so weights would move
        ({"head_dim": 128, "kv_len": 1024}, 128),  # few tiles
        ({"head_dim": 256}, None),  # too many registers
    ],
)
def test_the_choice_of_keys_per_tile(sizes: dict[str, int], keys: int | None):
    choice = tuned.untuned_choice(eights(**{"q_len": 8192, "kv_len": 8192, "heads": 8, **sizes}), HOPPER)
    if keys is None:
        assert choice is None or choice.code.code != "gluon"
    else:
        assert choice is not None
        assert (choice.sizes.block_kv, choice.code.persistent) == (keys, keys == 256)
        assert choice.code.rounded_weights == ("mixed" if keys == 256 else "split")
