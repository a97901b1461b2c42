"""Mods that capture tensors: what is found, what it becomes, what is refused, and the kernels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, or_masks

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.loop_ir.run import run
from neptune_lab.operators import attention
from neptune_lab.operators.base import Operator
from neptune_lab.operators.capture import with_shapes

SIZES = {"batch": 2, "heads": 4, "q_len": 5, "kv_len": 7, "head_dim": 4}
TEMPLATES = ["rolling_update", "split_k_update"]

SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])  # float64, as NumPy makes it
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2, 2]])
HALF = torch.tensor(0.5)


def global_slopes(score, b, h, q, kv):
    return score + SLOPES[h] * (kv - q)


def same_document(b, h, q, kv):
    return DOCUMENTS[b, q] == DOCUMENTS[b, kv]


def not_far(b, h, q, kv):
    return abs(q - kv) < 3


def nested(b, h, q, kv):
    return same_document(b, h, q, kv) & not_far(b, h, q, kv)


def general(**mods) -> Operator:
    return attention.general(**SIZES, **mods, dtype="float32")


def check(op: Operator, expected_bias: np.ndarray, expected_mask: np.ndarray | None = None) -> None:
    """Reference and native run equal torch's attention with the bias and mask written out."""
    inputs = op.random_inputs()
    q, k, v = (torch.from_numpy(inputs[n]).double() for n in ("q", "k", "v"))
    bias = torch.from_numpy(np.broadcast_to(expected_bias, (2, 4, 5, 7)).astype(np.float64))
    if expected_mask is not None:
        bias = torch.where(torch.from_numpy(np.array(expected_mask)), bias, -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).numpy()
    np.testing.assert_allclose(op.reference(*inputs.values()), expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(run(op.program, inputs)["out"], expected, rtol=1e-5, atol=1e-5)


B, H, Q, KV = np.ogrid[0:2, 0:4, 0:5, 0:7]
DOC = DOCUMENTS.numpy()


def test_globals_of_the_module() -> None:
    op = general(score_mod=global_slopes)
    assert str(op.inputs[3]) == "SLOPES: float32[4]"
    check(op, SLOPES[H] * (KV - Q))


@pytest.mark.nightly
def test_globals_of_an_example_in_our_own_docstrings() -> None:
    """A doctest runs in a copy of its module's variables, under the module's name: an array there is the user's."""
    variables = {**vars(attention), "slopes": SLOPES}
    code = compile("lambda score, b, h, q, kv: score + slopes[h] * (kv - q)", "<doctest neptune_lab.x[3]>", "eval")
    mod = eval(code, variables)
    assert mod.__module__ == "neptune_lab.operators.attention"
    op = general(score_mod=mod)
    assert str(op.inputs[3]) == "slopes: float32[4]"
    check(op, SLOPES[H] * (KV - Q))


@pytest.mark.nightly
def test_masks_that_call_masks() -> None:
    op = general(mask_mod=nested)
    assert str(op.inputs[3]) == "DOCUMENTS: int32[2, 7]"
    mask = (DOC[B, Q] == DOC[B, KV]) & (abs(Q - KV) < 3)
    check(op, 0.0, mask)
    check(general(mask_mod=lambda b, h, q, kv: nested(b, h, q, kv) | (kv == 0)), 0.0, mask | (KV == 0))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_closures_of_each_library(kind: str) -> None:
    values = np.linspace(-1, 1, 2 * 4 * 5 * 7, dtype=np.float32).reshape(2, 4, 5, 7)
    bias = torch.from_numpy(values) if kind == "torch" else values
    check(general(score_mod=lambda s, b, h, q, kv: s + bias[b, h, q, kv]), values)


@pytest.mark.nightly
def test_flexattentions_own_composition_of_masks() -> None:
    keep = torch.arange(7) % 3 == 0
    kept = and_masks(lambda b, h, q, kv: keep[kv], not_far)
    op = general(mask_mod=or_masks(kept, lambda b, h, q, kv: q == kv))
    assert str(op.inputs[3]) == "keep: int32[7]"
    check(op, 0.0, np.broadcast_to((KV % 3 == 0) & (abs(Q - KV) < 3) | (Q == KV), (2, 4, 5, 7)))


def test_partials_defaults_chained_indices_and_plain_numbers() -> None:
    table = np.arange(8, dtype=np.int64).reshape(4, 2)

    def mod(score, b, h, q, kv, weights=SLOPES, *, factor):
        return score * HALF + factor * weights[h] * table[h][-1]

    op = general(score_mod=partial(mod, factor=2.0), scale=1.0)
    assert [t.name for t in op.inputs[3:]] == ["table", "weights"]
    inputs = op.random_inputs()
    plain = general(score_mod=lambda s, b, h, q, kv: s, scale=0.5)
    # What is added does not depend on the key, so softmax does not see it.
    expected = plain.reference(*list(inputs.values())[:3])
    np.testing.assert_allclose(op.reference(*inputs.values()), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(run(op.program, inputs)["out"], expected, rtol=1e-4, atol=1e-5)


def test_names_do_not_clash_and_one_array_is_one_input() -> None:
    q = np.ones(4, dtype=np.float16)
    alike = q

    def bias():
        q = np.ones(7, dtype=np.float32)
        return lambda score, b, h, i, kv: score + q[kv]

    inner = bias()
    op = general(
        score_mod=lambda s, b, h, i, kv: inner(s, b, h, i, kv) + q[h], mask_mod=lambda b, h, i, kv: alike[h] > 0
    )
    assert [str(t) for t in op.inputs[3:]] in (
        ["q_2: float32[7]", "q_3: float16[4]"],
        ["q_2: float16[4]", "q_3: float32[7]"],
    )


def test_what_is_not_read_is_no_input_and_values_are_copied() -> None:
    bias, unread = np.zeros(7), np.zeros(3)

    def mod(score, b, h, q, kv):
        return score + bias[kv] if bias.shape[0] == 7 else score + unread[h]

    op = general(score_mod=mod)
    assert list(op.captured) == ["bias"]
    bias[:] = 9
    assert (op.captured["bias"] == 0).all()


def test_variables_are_seen_as_they_were_when_the_operator_was_made() -> None:
    bias = np.ones(7, dtype=np.float32)
    factor = torch.tensor(2.0)

    def mod(score, b, h, q, kv):
        return score + factor * bias[kv] * kv

    op = general(score_mod=mod)
    bias, factor = np.zeros(3), torch.tensor(0.0)
    check(op, 2.0 * KV)


def test_functions_that_capture_nothing_are_left_alone() -> None:
    op = general(mask_mod=not_far)
    assert op.captured == {}
    assert [t.name for t in op.inputs] == ["q", "k", "v"]


def test_the_reference_takes_other_values() -> None:
    op = general(score_mod=lambda s, b, h, q, kv: s + SLOPES[h] * kv)
    inputs = list(op.random_inputs().values())
    np.testing.assert_array_equal(op.reference(*inputs[:3]), op.reference(*inputs))
    assert not np.allclose(op.reference(*inputs[:3], -inputs[3]), op.reference(*inputs))


# -- kernels ---------------------------------------------------------------------------------------------------------


# By day both templates in float32 and one of them in each other dtype; all at night.
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("dtype", "template"),
    [
        pytest.param(dtype, template, marks=() if dtype == "float32" or n == m else pytest.mark.nightly)
        for n, dtype in enumerate(["float16", "bfloat16", "float32"])
        for m, template in enumerate(TEMPLATES)
    ],
)
def test_kernels_read_captured_tensors(dtype: str, template: str) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=getattr(torch, dtype))
    keep = torch.arange(40) % 5 != 0
    doc = torch.arange(40)[None] // 17

    def mask(b, h, q, kv):
        return (doc[b, q] == doc[b, kv]) & (keep[kv] | (q == kv))

    def bias(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    op = attention.general(1, 4, 40, 40, 16, bias, mask, dtype, kv_heads=2)
    assert [str(t) for t in op.inputs[3:]] == [f"slopes: {dtype}[4]", "doc: int32[1, 40]", "keep: int32[40]"]
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}[dtype]
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < tolerance


@pytest.mark.nightly
@pytest.mark.parametrize("template", TEMPLATES)
def test_kernels_read_a_bias_of_every_position(template: str) -> None:
    bias = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 2, 21, 35)))
    op = attention.general(1, 2, 21, 35, 16, lambda s, b, h, q, kv: s + bias[b, h, q, kv])
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < 1e-3


def test_an_index_of_two_loops_is_read_by_a_kernel_of_its_own() -> None:
    relative = np.linspace(-1, 1, 64)
    op = attention.general(1, 1, 32, 32, 16, lambda s, b, h, q, kv: s + relative[q - kv + 31])
    assert nl.compile(op, block_q=16, block_kv=16).relative_error() < 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("length", [pytest.param(32, marks=pytest.mark.nightly), 37])
def test_document_attention(length: int, template: str) -> None:
    doc = np.arange(2 * length).reshape(2, length) // 11
    op = attention.document(doc, heads=2, head_dim=16)
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < 1e-3
    at = np.arange(length)
    mask = (doc[:, None, :, None] == doc[:, None, None, :]) & (at[:, None] >= at)
    q, k, v = (torch.from_numpy(a.astype(np.float64)) for a in list(op.random_inputs().values())[:3])
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(mask))
    np.testing.assert_allclose(op.reference(q, k, v), expected, rtol=1e-10, atol=1e-12)


def test_kernels_supply_captured_tensors_and_take_others() -> None:
    slopes = torch.tensor([1.0, 0.5])
    op = attention.general(1, 2, 16, 16, 16, lambda s, b, h, q, kv: s + slopes[h] * kv, dtype="float32")
    kernel = nl.compile(op, block_q=16, block_kv=16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (torch.from_numpy(op.random_inputs()[n]).to(device) for n in ("q", "k", "v"))
    own = kernel(q, k, v)
    torch.testing.assert_close(own, kernel(q, k, v, slopes.to(device)))
    other = kernel(q, k, v, -slopes.to(device))
    expected = op.reference(q.cpu(), k.cpu(), v.cpu(), -slopes)
    np.testing.assert_allclose(other.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(own, other)
    with pytest.raises(LaunchError, match=r"got 2 arguments; expected 4: q, k, v, slopes"):
        kernel(q, k)
    torch.testing.assert_close(own, kernel(q, v=v, k=k))
    torch.testing.assert_close(other, kernel(q, k, slopes=-slopes.to(device), v=v))
    for call, said in (
        (lambda: kernel(q, keys=k, v=v), r"has no input 'keys'\n.*the inputs: q, k, v, slopes"),
        (lambda: kernel(q, k, v, slope=slopes), r"has no input 'slope'\n.*did you mean 'slopes'"),
        (lambda: kernel(q, k, q=q), r"got q twice: as argument 1 and by its name\n.*q, k, v, slopes"),
        (lambda: kernel(q, v=v), r"got no k\n"),
    ):
        with pytest.raises(LaunchError, match=said):
            call()


# -- live captures ---------------------------------------------------------------------------------------------------


def live_operator() -> Operator:
    """A mask that reads a document of each position, a switch a key, a last position and a flag; a scale of scores."""
    doc, keep = torch.arange(37) // 11, torch.arange(37) % 3 > 0
    last, on, factor = torch.tensor(30), torch.tensor(True), np.array(0.5)

    def mask(b, h, q, kv):
        return (doc[q] == doc[kv]) & (keep[kv] | (q == kv)) & (kv <= last) & on

    def scaled(score, b, h, q, kv):
        return score * factor

    return attention.general(1, 2, 37, 37, 16, scaled, mask, "float32", empty_rows="zero", live=True)


def test_live_captures_stay_as_they_are_and_get_an_axis() -> None:
    op = live_operator()
    found = {t.name: str(t).partition(": ")[2] for t in op.inputs[3:]}
    assert found == {
        "doc": "int64[37]",
        "keep": "bool[37]",
        "last": "int64[1]",
        "on": "bool[1]",
        "factor": "float64[1]",
    }
    assert op.captured["last"].tolist() == [30]


@pytest.mark.parametrize("changed", ["nothing", "last", "on", "keep", "factor"])
def test_the_definition_and_its_reference_follow_live_captures(changed: str) -> None:
    op = live_operator()
    inputs = op.random_inputs()
    own = op.reference(*inputs.values())
    values = {"last": [3], "on": [False], "keep": np.zeros(37, bool), "factor": [2.0]}
    if changed != "nothing":
        inputs[changed] = np.asarray(values[changed], inputs[changed].dtype)
    expected = op.reference(*inputs.values())
    assert np.allclose(own, expected) == (changed == "nothing")
    np.testing.assert_allclose(run(op.program, inputs)["out"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("template", TEMPLATES)
def test_kernels_read_live_captures(template: str) -> None:
    kernel = nl.compile(live_operator(), template, block_q=16, block_kv=16)
    assert kernel.relative_error() < 1e-5


def test_a_live_number_is_no_number_while_the_mod_is_traced() -> None:
    on = torch.tensor(True)
    with pytest.raises(DefinitionError, match="needs one truth value of an expression that differs"):
        general(mask_mod=lambda b, h, q, kv: q >= kv if on else q < kv, live=True)


# -- refusals --------------------------------------------------------------------------------------------------------

BIG = np.array([2**40])
COMPLEX = np.array([1j])
EMPTY = np.zeros(0)
OBJECT = type("Settings", (), {"slopes": SLOPES})


def writes(score, b, h, q, kv):
    SLOPES[h] = 0.0
    return score


@pytest.mark.parametrize(
    ("score_mod", "message"),
    [
        (lambda s, b, h, q, kv: s + SLOPES[h, q], r"SLOPES has shape \(4,\), but a mod gives it 2 indices"),
        (
            lambda s, b, h, q, kv: s + DOCUMENTS[b],
            r"an array of shape \(7,\) is used whole: an element of it",
        ),
        (lambda s, b, h, q, kv: SLOPES, r"SLOPES is used whole: an element of it needs 1 more"),
        (lambda s, b, h, q, kv: s + SLOPES[kv], r"index 0 of the captured tensor SLOPES reaches 6, but its shape is"),
        (lambda s, b, h, q, kv: s + SLOPES[h - 5], r"index 0 of the captured tensor SLOPES reaches -5"),
        (lambda s, b, h, q, kv: s + SLOPES[4], r"index 0 of the captured tensor SLOPES reaches 4"),
        (lambda s, b, h, q, kv: s + SLOPES[h / 2], r"index 0 of the captured tensor SLOPES is a float"),
        (lambda s, b, h, q, kv: s + SLOPES[1.0], r"index 0 of the captured tensor SLOPES is a float"),
        (lambda s, b, h, q, kv: s + SLOPES[h > 1], r"index 0 of the captured tensor SLOPES is a bool"),
        (lambda s, b, h, q, kv: s + SLOPES[1:], r"an array of shape \(3,\) is used whole"),
        (lambda s, b, h, q, kv: s + SLOPES["h"], r"index 0 of the captured tensor SLOPES is a str"),
        (writes, r"score_mod=writes: a mod writes to the captured tensor SLOPES"),
        (lambda s, b, h, q, kv: s + BIG[b], r"BIG with values from 1099511627776 to 1099511627776: int32"),
        (lambda s, b, h, q, kv: s + COMPLEX[b], r"score_mod captures the tensor COMPLEX of dtype complex128"),
        (lambda s, b, h, q, kv: s + EMPTY[b], r"score_mod captures the tensor EMPTY of shape \(0,\), which is empty"),
        (lambda s, b, h, q, kv: s + OBJECT.slopes[h], r"(.|\n)*give the array a variable of its own"),
    ],
)
def test_refusals_name_the_tensor(score_mod, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        general(score_mod=score_mod)


def test_the_program_is_checked_by_the_bounds_of_its_loops() -> None:
    """`kv % 5` is largest at neither end of the keys, where mods are tried; the loops' bounds show it."""
    table = np.zeros(4)
    op = general(score_mod=lambda s, b, h, q, kv: s + table[kv % 5])
    with pytest.raises(DefinitionError, match=r"index 0 of the captured tensor table reaches 4"):
        op.program


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.bool_, np.int64])
def test_tensors_at_large_lengths_take_no_memory(dtype) -> None:
    """A kernel for all lengths is made from operators of up to 45,461 keys, whose masks would fill the memory."""
    table = np.ones((4, 5, 7), dtype)
    with with_shapes({id(table): (4, 10**5, 10**5)}):
        op = attention.general(
            1, 4, 10**5, 10**5, 4, lambda score, b, h, q, kv: score * table[h, q, kv], dtype="float32", live=True
        )
    assert op.inputs[-1].shape == (4, 10**5, 10**5)
    assert not any(op.captured["table"].strides)
