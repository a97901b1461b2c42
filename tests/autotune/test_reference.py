"""The torch reference of a definition against the operator's own NumPy reference, whole and in small chunks."""

from __future__ import annotations

import numpy as np
import pytest

from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention, custom, find, gemm_chain, performer, softmax
from neptune_lab.records import definition_of
from neptune_lab.runtime import to_tensor
from neptune_lab.runtime.reference import reference

TABLE = np.random.default_rng(5).standard_normal(40).astype(np.float32)


def gathered():
    """Relative positions looked up in a captured table: an index of two variables."""
    return attention.general(
        1,
        2,
        16,
        16,
        8,
        score_mod=lambda score, b, h, q, kv: score + TABLE[q - kv + 16],
        mask_mod=lambda b, h, q, kv: q >= kv,
    )


OPERATORS = {
    "causal": lambda: attention.causal(batch=2, heads=4, kv_heads=2, seq=24, head_dim=8),
    "alibi": lambda: attention.alibi(heads=3, seq=20, head_dim=8),
    "window": lambda: attention.window(heads=4, kv_heads=2, seq=33, head_dim=8, window=7),
    "decode": lambda: attention.softcap(heads=2, q_len=1, kv_len=31, head_dim=8, cap=5.0, causal=False),
    "log-sum-exp": lambda: attention.causal(heads=2, seq=16, head_dim=8, return_lse=True, dtype="bfloat16"),
    "fully masked rows": lambda: attention.general(
        1, 1, 8, 8, 4, mask_mod=lambda b, h, q, kv: (kv > q) & (kv < 100), return_lse=True
    ),
    "captured table": gathered,
    "gemm_chain": lambda: gemm_chain.gemm_chain(batch=2, m=20, n=12, k=8, h=9),
    "performer": lambda: performer.performer(heads=2, seq=20, head_dim=8, features=16),
    "figure1": lambda: softmax.figure1(rows=3, cols=7),
    **{
        name: lambda name=name: find(name)(rows=5, cols=33)
        for name in (
            "norms.l2_norm",
            "norms.layer_norm",
            "norms.rms_norm_max",
            "norms.rms_norm_quantize",
            "rows.cross_entropy",
            "rows.softmax",
        )
    },
}


def compared(op, chunk):
    arrays = op.random_inputs(3)
    want = op.reference(*arrays.values())
    got = reference(definition_of(op.program), [to_tensor(a) for a in arrays.values()], chunk=chunk)
    for ours, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert tuple(ours.shape) == theirs.shape
        np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("chunk", [1 << 26, 70])
@pytest.mark.parametrize("name", OPERATORS)
def test_equals_the_numpy_reference(name, chunk):
    compared(OPERATORS[name](), chunk)


def test_every_reducer():
    """Reductions over several axes, over whole numbers, and of conditions, against the definition run natively."""
    from tvm import te, tirx

    x = te.placeholder((4, 3, 5), "float32", name="x")
    n = te.placeholder((4, 5), "int32", name="n")

    def over(name, size):
        return te.reduce_axis((0, size), name=name)

    product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
    j, k = over("j", 3), over("k", 5)
    total = te.compute((4,), lambda i: te.sum(x[i, j, k] * x[i, j, 0], axis=[j, k]), name="total")
    j1, k1, k2, k3 = over("j1", 3), over("k1", 5), over("k2", 5), over("k3", 5)
    least = te.compute((4,), lambda i: te.min(x[i, j1, k1], axis=[j1, k1]), name="least")
    most = te.compute((4,), lambda i: te.max(n[i, k2], axis=k2), name="most")
    times = te.compute((4,), lambda i: product(x[i, 0, k3], axis=k3), name="times")
    compared(custom("folds", [x, n], [total, least, most, times]), 10)


def test_memory_stays_within_the_chunk(monkeypatch):
    """No stage is larger than the chunk, although all scores together are 64 times as large."""
    import neptune_lab.runtime.reference as module

    op = attention.causal(heads=2, seq=128, head_dim=4)
    seen = []
    boxes = module._on_boxes

    def watched(stages, given, needed):
        seen.extend(int(np.prod([len(r) for r in box])) for name, box in needed.items() if name in stages)
        return boxes(stages, given, needed)

    monkeypatch.setattr(module, "_on_boxes", watched)
    compared(op, 512)
    assert max(seen) <= 512


def test_wrong_shapes_are_refused():
    op = gemm_chain.gemm_chain(m=4, n=4, k=4, h=4)
    arrays = [to_tensor(a) for a in op.random_inputs().values()]
    with pytest.raises(MeasureError, match=r"\(1, 4, 4\).*got"):
        reference(definition_of(op.program), arrays[:2])


def test_unknown_operations_are_named():
    definition = {
        "inputs": [{"name": "x", "shape": [2], "dtype": "float32"}],
        "outputs": ["y"],
        "stages": [
            {
                "writes": "y", "shape": [2], "dtype": "float32", "spatial": [["i", 2]], "reduce": [], "reducer": "",
                "value": ["gamma", ["load", "x", ["var", "i"]]],
            }
        ],
    }  # fmt: skip
    with pytest.raises(MeasureError, match="'gamma'"):
        reference(definition, [to_tensor(np.ones(2, np.float32))])
