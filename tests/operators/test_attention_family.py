"""The attention family: grouped heads, head widths, dtypes, log-sum-exp, ready-made mods, presets, kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.run import run
from neptune_lab.operators import PRESETS, attention, find
from neptune_lab.operators.base import Operator

TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}
TEMPLATES = ["rolling_update", "split_k_update"]


def in_turn(*cases: tuple[Any, ...]) -> list[Any]:
    """Each case with each template; by day with one of them, in turn."""
    return [
        pytest.param(*case, template, marks=() if (n + m) % 2 == 0 else pytest.mark.nightly)
        for n, case in enumerate(cases)
        for m, template in enumerate(TEMPLATES)
    ]


FAMILY = {
    "global": lambda **sizes: attention.full(**sizes),
    "causal": lambda **sizes: attention.causal(**sizes),
    "gqa": lambda **sizes: attention.gqa(kv_heads=2, **sizes),
    "alibi": lambda **sizes: attention.alibi(kv_heads=1, **sizes),
    "softcap": lambda **sizes: attention.softcap(cap=2.0, **sizes),
    "window": lambda **sizes: attention.window(window=5, **sizes),
    "prefix": lambda **sizes: attention.prefix(prefix=4, **sizes),
}


def native(op: Operator, seed: int = 0) -> dict[str, np.ndarray]:
    """The definition, run natively in its own dtypes."""
    return run(op.program, op.random_inputs(seed))


def sdpa(op: Operator, mask: np.ndarray | None = None, bias: np.ndarray | None = None) -> np.ndarray:
    """torch's float64 attention on the operator's random inputs."""
    q, k, v = (torch.from_numpy(a.astype(np.float64)) for a in list(op.random_inputs().values())[:3])
    added = None
    if mask is not None or bias is not None:
        added = torch.zeros(1) if bias is None else torch.from_numpy(np.asarray(bias, dtype=np.float64))
        if mask is not None:
            added = torch.where(torch.from_numpy(mask), added.double(), -torch.inf)
    grouped = q.shape[1] != k.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=grouped)
    return out.numpy()


def reference(op: Operator) -> np.ndarray:
    return op.reference(*op.random_inputs().values())


# -- the references against torch ------------------------------------------------------------------------------------


def positions(q_len: int, kv_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of queries (the last stands at the last key) and of keys."""
    return np.arange(q_len)[:, None] + kv_len - q_len, np.arange(kv_len)[None]


@pytest.mark.parametrize(("q_len", "kv_len"), [(6, 6), (3, 8), (1, 5)])
def test_references_are_attention_as_torch_has_it(q_len: int, kv_len: int) -> None:
    sizes = {"batch": 2, "heads": 4, "q_len": q_len, "kv_len": kv_len, "head_dim": 4}
    q, kv = positions(q_len, kv_len)
    slopes = np.array([2.0 ** (-8 * (h + 1) / 4) for h in range(4)])[:, None, None]
    cases = [
        (attention.gqa(**sizes, kv_heads=2), kv <= q, None),
        (attention.gqa(**sizes, kv_heads=1, causal=False), None, None),
        (attention.alibi(**sizes), kv <= q, slopes * (kv - q)),
        (attention.alibi(**sizes, causal=False), None, slopes * (kv - q)),
        (attention.window(**sizes, window=2), (kv <= q) & (q - kv < 2), None),
        (attention.prefix(**sizes, prefix=2), (kv <= q) | (kv < 2), None),
        (attention.full(**sizes, v_head_dim=7), None, None),
    ]
    for op, mask, bias in cases:
        np.testing.assert_allclose(reference(op), sdpa(op, mask, bias), rtol=1e-12, atol=1e-12, err_msg=op.name)


def test_softcap_keeps_scores_within_the_cap() -> None:
    op = attention.softcap(heads=2, seq=5, head_dim=4, cap=0.5, causal=False, kv_heads=1)
    q, k, v = (a.astype(np.float64) for a in op.random_inputs().values())
    scores = 0.5 * np.tanh(q @ k.swapaxes(2, 3) / 2 / 0.5)  # one key head serves both query heads
    expected = torch.softmax(torch.from_numpy(scores), dim=-1).numpy() @ v
    np.testing.assert_allclose(reference(op), expected, rtol=1e-12)


def test_grouped_heads_follow_one_another() -> None:
    """Query heads 0 and 1 read key head 0, heads 2 and 3 read head 1."""
    op = attention.gqa(heads=4, kv_heads=2, seq=3, head_dim=4)
    q, k, v = op.random_inputs().values()
    plain = attention.causal(heads=4, seq=3, head_dim=4)
    repeated = plain.reference(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))
    np.testing.assert_array_equal(op.reference(q, k, v), repeated)
    assert {t.name: t.shape[1] for t in op.inputs} == {"q": 4, "k": 2, "v": 2}


# -- the definitions against the references --------------------------------------------------------------------------


# By day gqa in every dtype, and each other name in one of them, in turn; all at night.
@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        pytest.param(dtype, name, marks=() if name == "gqa" or n % 3 == m else pytest.mark.nightly)
        for n, name in enumerate(FAMILY)
        for m, dtype in enumerate(TOLERANCE)
    ],
)
def test_definitions_equal_their_references(name: str, dtype: str) -> None:
    op = FAMILY[name](batch=2, heads=4, q_len=3, kv_len=7, head_dim=4, v_head_dim=5, dtype=dtype)
    found = native(op)["out"]
    assert found.dtype == dtype
    error = np.linalg.norm(found.astype(np.float64) - reference(op)) / np.linalg.norm(reference(op))
    assert error < TOLERANCE[dtype]


def test_bfloat16_inputs_are_rounded_to_bfloat16() -> None:
    op = attention.causal(seq=4, head_dim=4, dtype="bfloat16")
    q = op.random_inputs()["q"]
    assert q.dtype == "bfloat16"
    as_torch = torch.from_numpy(q.astype(np.float32))
    assert torch.equal(as_torch.bfloat16().float(), as_torch)
    ours = [torch.from_numpy(a.astype(np.float32)).bfloat16() for a in op.random_inputs().values()]
    np.testing.assert_array_equal(op.reference(*ours), reference(op))  # torch's own bfloat16 is taken too


def test_schedules_of_bfloat16_are_checked_in_float64() -> None:
    op = attention.gqa(heads=2, kv_heads=1, seq=8, head_dim=4, dtype="bfloat16")
    made = nl.templates.rolling_update(nl.Schedule(op), block_q=4, block_kv=4)
    assert made.check().error < 1e-12


# -- log-sum-exp -----------------------------------------------------------------------------------------------------


def test_lse_is_the_logarithm_of_the_sum() -> None:
    op = attention.alibi(batch=2, heads=2, seq=5, head_dim=4, return_lse=True, dtype="float32")
    q, k, _ = (torch.from_numpy(a).double() for a in op.random_inputs().values())
    at, kv = positions(5, 5)
    slopes = np.array([2.0**-4, 2.0**-8])[:, None, None]
    scores = q @ k.transpose(2, 3) / 2 + torch.from_numpy(slopes * (kv - at))
    expected = torch.logsumexp(torch.where(torch.from_numpy(kv <= at), scores, -torch.inf), dim=-1)
    out, lse = op.reference(*op.random_inputs().values())
    np.testing.assert_allclose(lse, expected, rtol=1e-12)
    assert [str(t) for t in op.outputs] == ["out: float32[2, 2, 5, 4]", "lse: float32[2, 2, 5]"]
    found = native(op)
    np.testing.assert_allclose(found["lse"], lse, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["out"], out, rtol=1e-5, atol=1e-6)


def test_lse_of_a_fully_masked_row_is_minus_infinity() -> None:
    op = attention.causal(q_len=4, kv_len=2, head_dim=4, return_lse=True)
    out, lse = op.reference(*op.random_inputs().values())
    assert np.isneginf(lse[0, 0]).tolist() == [True, True, False, False]
    assert np.isnan(out[0, 0]).all(axis=1).tolist() == [True, True, False, False]
    assert np.isneginf(native(op)["lse"][0, 0]).tolist() == [True, True, False, False]


# -- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("q_len", "kv_len"), [pytest.param(32, 32, marks=pytest.mark.nightly), (21, 35)])
@pytest.mark.parametrize(("name", "template"), in_turn(*((name,) for name in FAMILY)))
def test_kernels_equal_their_references(name: str, template: str, q_len: int, kv_len: int) -> None:
    """With lengths that tiles do not divide; that they do, and each with both templates, is in `test_table.py`.

    Two query heads to each key head where heads are grouped, and otherwise two heads.
    """
    heads = 4 if name == "gqa" else 2
    op = FAMILY[name](batch=2, heads=heads, q_len=q_len, kv_len=kv_len, head_dim=16)
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < TOLERANCE["float16"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("q_len", "kv_len", "template"), in_turn((32, 32), (35, 21), (21, 35), (1, 40)))
def test_kernels_give_the_lse(q_len: int, kv_len: int, template: str) -> None:
    """With more queries than keys, some rows are -inf in the kernel's lse too."""
    op = attention.gqa(heads=2, kv_heads=1, q_len=q_len, kv_len=kv_len, head_dim=16, return_lse=True)
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < TOLERANCE["float16"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("dtype", "template"), in_turn(*((dtype,) for dtype in TOLERANCE)))
def test_kernels_keep_each_dtype(dtype: str, template: str) -> None:
    op = attention.gqa(heads=2, kv_heads=1, q_len=17, kv_len=33, head_dim=16, dtype=dtype)
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < TOLERANCE[dtype]


WIDTHS = [(64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("head_dim", "v_head_dim", "template"), in_turn(*WIDTHS))
def test_kernels_take_the_usual_head_widths(head_dim: int, v_head_dim: int, template: str) -> None:
    op = attention.causal(q_len=9, kv_len=20, head_dim=head_dim, v_head_dim=v_head_dim)
    kernel = nl.compile(op, template, block_q=16, block_kv=16)
    assert kernel.operator.outputs[0].shape == (1, 1, 9, v_head_dim)
    assert kernel.relative_error() < TOLERANCE["float16"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("q_len", "kv_len", "template"), in_turn((1, 1), (1, 40), (3, 2), (40, 1)))
def test_kernels_take_any_length(q_len: int, kv_len: int, template: str) -> None:
    op = attention.gqa(heads=4, kv_heads=2, q_len=q_len, kv_len=kv_len, head_dim=16)
    assert nl.compile(op, template, block_q=16, block_kv=16).relative_error() < TOLERANCE["float16"]


# -- presets ---------------------------------------------------------------------------------------------------------


def test_presets_have_the_papers_shapes() -> None:
    heads = {
        "global_pf": (32, 32), "causal_pf": (32, 32), "alibi_pf": (32, 32), "gqa_pf": (64, 8), "softcap_pf": (32, 16),
        "window_pf": (32, 8), "causal_dc": (32, 32), "alibi_dc": (32, 32), "gqa_dc": (64, 8), "softcap_dc": (32, 16),
    }  # fmt: skip
    for name, (q_heads, kv_heads) in heads.items():
        op = attention.preset(name, seq=8192)
        q_len = 1 if name.endswith("dc") else 8192
        q, kv = (1, q_heads, q_len, 128), (1, kv_heads, 8192, 128)
        assert [t.shape for t in (*op.inputs, *op.outputs)] == [q, kv, kv, q]
        assert op.inputs[0].dtype == "float16"
    assert attention.preset("window_pf", seq=8).params["window"] == 4096
    assert attention.preset("softcap_pf", seq=8).params["cap"] == 50.0
    s6 = attention.preset("s6")
    assert [t.shape for t in s6.inputs] == [(1, 16, 256, 80)] * 3
    assert attention.preset("s8").inputs[1].shape == (1, 1, 384, 64)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PRESETS)
def test_presets_compile_at_small_sizes(name: str) -> None:
    """By the template that the compiler chooses; by day `test_table.py` runs each preset by one of them in turn."""
    small = {"heads": 4, "head_dim": 16}
    small |= {"kv_heads": 2} if "kv_heads" in PRESETS[name].sizes else {}
    small |= {"window": 9} if "window" in PRESETS[name].sizes else {}
    small |= {} if PRESETS[name].takes_seq else {"q_len": 20, "kv_len": 12, "v_head_dim": 16}
    op = attention.preset(name, seq=20 if PRESETS[name].takes_seq else None, **small)
    assert nl.compile(op, block_q=16, block_kv=16).relative_error() < TOLERANCE["float16"]


def test_only_prefill_is_masked_in_the_presets() -> None:
    for name, preset in PRESETS.items():
        op = attention.preset(name, seq=6 if preset.takes_seq else None)
        causal = name.endswith("pf") and name != "global_pf"
        assert ("mask(" in op.source) == causal, name


def test_alibi_decode_stands_at_the_last_key() -> None:
    op = attention.preset("alibi_dc", seq=5, heads=2, head_dim=4)
    slopes = np.array([2.0**-4, 2.0**-8])[:, None, None]
    np.testing.assert_allclose(reference(op), sdpa(op, None, slopes * (np.arange(5) - 4)), rtol=1e-12)


def test_the_command_line_finds_presets() -> None:
    assert find("gqa_pf")(seq=4, heads=2, kv_heads=1, head_dim=4).name == "attention_gqa"
    assert find("s1")().inputs[0].shape == (1, 8, 512, 64)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention.gqa(heads=4, kv_heads=3, seq=4), r"kv_heads=3: expected a divisor of heads=4"),
        (lambda: attention.causal(heads=2, kv_heads=4, seq=4), r"kv_heads=4: expected a divisor of heads=2"),
        (lambda: attention.causal(kv_heads=0, seq=4), r"kv_heads=0: expected a positive integer"),
        (lambda: attention.causal(v_head_dim=-1, seq=4), r"v_head_dim=-1: expected a positive integer"),
        (lambda: attention.causal(seq=4, dtype="float64"), r"expected one of float16, bfloat16, float32"),
        (lambda: attention.causal(seq=4, return_lse="yes"), r"return_lse='yes': expected True or False"),
        (lambda: attention.causal(seq=4, widow=3), r"no argument 'widow'"),
        (lambda: attention.window(seq=4, window=0), r"window=0: expected a positive integer"),
        (lambda: attention.prefix(seq=4, prefix=0), r"prefix=0: expected a positive integer"),
        (lambda: attention.softcap(seq=4, cap=0.0), r"cap=0.0: expected a positive finite number"),
        (lambda: attention.preset("causal_dx", seq=4), r"no preset 'causal_dx'(.|\n)*causal_dc"),
        (lambda: attention.preset("causal_pf"), r"preset 'causal_pf' needs seq"),
        (lambda: attention.preset("causal_pf", seq=4, window=2), r"takes no window"),
        (lambda: attention.document(np.zeros(4, dtype=int)), r"doc has shape \(4,\): expected \(batch, seq\)"),
        (lambda: attention.document(np.zeros((1, 4), dtype=int), q_len=2), r"takes its lengths from doc"),
    ],
)
def test_refusals_name_the_argument(make, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()
