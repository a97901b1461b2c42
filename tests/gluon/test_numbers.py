"""Emitted Gluon kernels, simulated warp by warp, against float64."""

from __future__ import annotations

from types import SimpleNamespace

import by_name
import numpy as np
import pytest
import torch
from by_turns import in_turn
from layouts import LAYOUTS
from torch_to_stages import patterns

import neptune_lab as nl
from neptune_lab.gluon_simulator import Deadlock, Simulator, language
from neptune_lab.htile.nodes import For
from neptune_lab.operators import attention
from neptune_lab.operators.gemm_chain import gemm_chain
from neptune_lab.tensor_spec import dense_strides


def simulate(operator, template="rolling_update", multiprocessors=5, **options) -> float:
    """The largest relative error of a Gluon kernel of `operator`."""
    kernel = by_name.compile(operator, template, code="gluon", **{"block_q": 128, "block_kv": 64, **options})
    inputs = operator.random_inputs(0)
    made = Simulator(kernel.source, multiprocessors)(
        kernel.triton.entry, *(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs.values())
    )
    wanted = operator.reference(*inputs.values())
    pairs = zip(
        made if isinstance(made, tuple) else (made,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    )
    return max(np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want) for got, want in pairs)


SMALL = {"heads": 2, "seq": 256, "head_dim": 64}
OPERATORS = {
    "global": lambda: attention.full(**SMALL),
    "causal": lambda: attention.causal(**SMALL),
    "alibi": lambda: attention.alibi(**SMALL),
    "softcap": lambda: attention.softcap(**SMALL),
    "window": lambda: attention.window(**{**SMALL, "seq": 512}, window=200),
    "gqa": lambda: attention.gqa(**{**SMALL, "heads": 4}, kv_heads=2),
    "v_head_dim": lambda: attention.causal(**SMALL, v_head_dim=128),
    "batch": lambda: attention.causal(batch=2, **SMALL),
    "lse": lambda: attention.causal(**SMALL, return_lse=True),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", OPERATORS)
def test_attention(name):
    assert simulate(OPERATORS[name]()) < 2e-3


ODD = {"batch": 2, "heads": 2, "seq": 301, "head_dim": 64}
OF_ODD_LENGTHS = {
    "global": lambda: attention.full(**ODD),
    "causal": lambda: attention.causal(**ODD),
    "one head": lambda: attention.causal(**{**ODD, "batch": 1, "heads": 1}),
    "chunk": lambda: attention.causal(2, 2, q_len=131, kv_len=300, head_dim=64),
    "keys that divide": lambda: attention.full(2, 2, q_len=131, kv_len=256, head_dim=64),
    "queries that divide": lambda: attention.full(2, 2, q_len=256, kv_len=261, head_dim=64),
    "window": lambda: attention.window(**ODD, window=200),
    "alibi": lambda: attention.alibi(**ODD),
    "lse": lambda: attention.causal(**ODD, return_lse=True),
    "gqa": lambda: attention.gqa(**{**ODD, "heads": 4}, kv_heads=2),
    # The second consumer of each head's last program has no rows.
    "rows of one consumer": lambda: attention.causal(**{**ODD, "seq": 192}),
    "rows of one consumer, lse": lambda: attention.causal(2, 2, q_len=64, kv_len=256, head_dim=64, return_lse=True),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("length", "persistent"), [(130, False), (256, True)])
def test_documents_of_one_length(length: int, persistent: bool):
    """Neither the first part of their loop nor the last has a tile in every program, so it stays one."""

    def mask(b, h, q, kv):
        return q // length == kv // length

    operator = attention.general(1, 1, 301, 301, 32, None, mask, empty_rows="zero", live=True)
    assert simulate(operator, persistent=persistent, one_consumer=True) < 2e-3
    tiles = by_name.compile(operator, "rolling_update", code="triton", block_q=64, block_kv=64)
    parts = {loop.part for loop in tiles.htile.kernels[0].body if isinstance(loop, For)}
    assert parts == {"left edge", "interior", "right edge"}, "in Triton, tiles without edges have no condition"


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("name", "persistent"), in_turn(OF_ODD_LENGTHS, [False, True], every=2))
def test_lengths_that_tiles_do_not_divide(name: str, persistent: bool):
    """The copy engine reads each (batch, head) as a matrix of its own, past whose end are zeros."""
    operator = OF_ODD_LENGTHS[name]()
    assert simulate(operator, persistent=persistent) < 2e-3


@pytest.mark.nightly
def test_values_past_the_end_are_not_of_the_next_head():
    """A product with a weight of 0 is NaN if the value is: those of another head must not be read."""
    operator = attention.causal(1, 2, 150, 64)
    kernel = by_name.compile(operator, code="gluon", block_q=128, block_kv=64)
    q, k, v = (torch.from_numpy(array) for array in operator.random_inputs(0).values())
    k[:, 1], v[:, 1] = float("nan"), float("nan")
    out = Simulator(kernel.source, 5)(kernel.triton.entry, q, k, v)
    wanted = operator.reference(q.numpy(), k.numpy(), v.numpy())
    assert np.isnan(out[:, 1].numpy()).all()
    assert np.linalg.norm(out[:, 0].double().numpy() - wanted[:, 0]) < 2e-3 * np.linalg.norm(wanted[:, 0])


@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    "options",
    [
        {"ping_pong": False},
        {"tie": True},
        {"ring_stages": 1},
        {"ring_stages": 3},
        {"persistent": True},
        {"persistent": True, "ping_pong": False, "ring_stages": 1},
        {"persistent": True, "ahead": True},
        {"persistent": True, "ahead": True, "block_kv": 128, "ring_stages": 1},
        {"block_kv": 128},
        {"block_q": 64},
        {"block_q": 64, "block_kv": 128},
        {"block_q": 192, "block_kv": 64},
    ],
    ids=str,
)
def test_options(options):
    seq = 384 if options.get("block_q") == 192 else 256
    assert simulate(attention.causal(**{**SMALL, "seq": seq}), **options) < 2e-3


def _captured_vectors():
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=2).astype(np.float32)
    keys = rng.normal(size=256).astype(np.float32)
    rows = rng.normal(size=(2, 256)).astype(np.float32)
    segments = np.repeat(np.arange(4), 64).astype(np.int32)

    def score(s, b, h, q, kv):
        return s * rows[h, q] + slopes[h] * keys[kv]

    keep = np.arange(256) % 5 != 0

    def mask(b, h, q, kv):
        return (keep[kv] | (q == kv)) & (segments[q] >= segments[kv]) & (q >= kv)

    return attention.general(1, 2, 256, 256, 64, score_mod=score, mask_mod=mask)


def _captured_matrix():
    bias = np.random.default_rng(0).normal(size=(2, 256, 256)).astype(np.float32)
    return attention.general(1, 2, 256, 256, 64, score_mod=lambda s, b, h, q, kv: s + bias[h, q, kv])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("make", [_captured_vectors, _captured_matrix])
@pytest.mark.parametrize("persistent", [False, True])
def test_captured_tensors(make, persistent):
    assert simulate(make(), persistent=persistent) < 2e-3


@pytest.mark.nightly
def test_a_guard_that_asks_for_the_last_tile_keeps_the_order():
    """Documents that begin after the first tile: their rows are empty there, and the guard shows that in the last tile
    only."""
    half = torch.ones(1, 2, 256, 64, dtype=torch.float16)
    documents = torch.zeros(1, 256, dtype=torch.int32)
    function = patterns.document_mask
    operator = nl.from_torch(
        function, half, half, half, documents, draw=lambda rng: (*rng.standard_normal((3, 1, 2, 256, 64)), _ids())
    )
    assert simulate(operator) < 2e-3


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"ring_stages": 1}, {"persistent": True}], ids=str)
def test_products_of_the_same_tiles_share_a_ring(options):
    """Differential attention multiplies two softmaxes by the same values, which are copied to shared memory once."""
    q, k, v = (torch.ones(1, 1, 256, width, dtype=torch.float16) for width in (32, 32, 64))
    operator = nl.from_torch(patterns.differential, q, q, k, k, v)
    kernel = by_name.compile(operator, "rolling_update", code="gluon", block_q=128, block_kv=64)
    assert sorted(line.split(" = ")[0].strip() for line in kernel.source.splitlines() if "_ring = " in line) == [
        "k1_ring",
        "k2_ring",
        "v_ring",
    ]
    assert simulate(operator, **options) < 2e-3


@pytest.mark.nightly
@pytest.mark.parametrize("persistent", [False, True])
def test_several_outputs_have_buffers_of_their_own(persistent: bool):
    """The copy engine still reads the first output when the second is stored to shared memory."""

    def two(q, k, v):
        out = torch.softmax(q @ k.mT / 8, dim=-1) @ v
        return out, torch.relu(out)

    tensors = [torch.ones(1, 2, 256, 64, dtype=torch.float16)] * 3
    assert simulate(nl.from_torch(two, *tensors), persistent=persistent, multiprocessors=1) < 2e-3


@pytest.mark.nightly
def test_products_of_different_tiles_of_a_tensor_have_rings_of_their_own():
    def two_keys(q, k, v):
        scores = q[:, 0] @ k[:, 0].mT + q[:, 1] @ k[:, 1].mT
        return torch.softmax(scores / 8, dim=-1) @ v

    pairs, v = torch.ones(1, 2, 256, 64, dtype=torch.float16), torch.ones(1, 256, 64, dtype=torch.float16)
    assert simulate(nl.from_torch(two_keys, pairs, pairs, v)) < 2e-3


def _ids() -> np.ndarray:
    return np.arange(256, dtype=np.int32)[None] // 40


def test_a_chain_of_products():
    """Nothing special to attention: y = (a @ b) @ d has the form too."""
    operator = gemm_chain(batch=2, m=256, n=256, k=64, h=64)
    assert simulate(operator) < 2e-3


def test_the_copies_under_the_names_of_triton_3_9(monkeypatch):
    before = language.hopper

    def renamed() -> dict:
        found = before()
        old = vars(found["tma"])
        copies = {"async_load": old["async_copy_global_to_shared"], "async_store": old["async_copy_shared_to_global"]}
        return {**found, "tma": SimpleNamespace(store_wait=old["store_wait"], **copies)}

    monkeypatch.setattr(language, "hopper", renamed)
    assert simulate(attention.causal(**SMALL)) < 2e-3


# A fault is one wrong line; `_rest()` beside it lets everything happen first that may, so that chance hides nothing.
_LATE_COPIES = ("    _copy_in(rows", "    _rest()\n    _copy_in(rows")
FAULTS = {
    "no wait for a copy": (("mbarrier.wait(v_full.index(v_slot), v_phase)", "pass"), _LATE_COPIES),
    "no slot is given back": (("mbarrier.arrive(k_empty.index(k_slot), count=1)", "pass"),),
    "a slot is given back too early": (
        (
            "acc = warpgroup_mma_wait(0, [acc_pending])\n        mbarrier.arrive(v_empty.index(v_slot), count=1)",
            (
                "mbarrier.arrive(v_empty.index(v_slot), count=1)\n"
                "        _rest()\n        acc = warpgroup_mma_wait(0, [acc_pending])"
            ),
        ),
    ),
    "the other consumer is not let in": (("_arrive(15 - consumer)", "pass"),),
    "no repair": (("acc = repair[:, None] * acc", "pass"),),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_simulator_sees_faults(fault):
    operator = attention.causal(heads=1, seq=512, head_dim=64)
    kernel = nl.compile(
        operator, "rolling_update", block_q=128, block_kv=64, code=nl.CodeOptions(code="gluon", ring_stages=1)
    )
    source = kernel.source
    for right, wrong in FAULTS[fault]:
        assert right in source
        source = source.replace(right, wrong)
    inputs = operator.random_inputs(0)
    tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in inputs.values()]
    try:
        out = Simulator(source)(kernel.triton.entry, *tensors)
    except Deadlock:
        return
    wanted = operator.reference(*inputs.values())
    assert not np.linalg.norm(out.double().numpy() - wanted) <= 0.1 * np.linalg.norm(wanted)


@pytest.mark.nightly
@pytest.mark.parametrize(("layout", "persistent"), in_turn(LAYOUTS, [False, True], every=2))
def test_layouts(layout, persistent):
    operator = attention.gqa(batch=2, heads=4, kv_heads=2, seq=256, head_dim=64)
    drawn = [LAYOUTS[layout](torch.from_numpy(array)) for array in operator.random_inputs(0).values()]
    strides = {name: t.stride() for name, t in zip("qkv", drawn, strict=True)}
    strided = operator.with_strides(**strides, out=dense_strides(drawn[0].shape, drawn[0].stride()))
    kernel = by_name.compile(strided, "rolling_update", code="gluon", block_q=128, block_kv=64, persistent=persistent)
    assert "_producer" in kernel.source
    out = Simulator(kernel.source, 5)(kernel.triton.entry, *drawn)
    assert out.stride() == torch.empty_like(drawn[0]).stride()
    wanted = operator.reference(*(t.numpy() for t in drawn))
    assert np.linalg.norm(out.double().numpy() - wanted) / np.linalg.norm(wanted) < 2e-3
