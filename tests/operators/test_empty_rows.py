"""Queries that see no key: `out` is NaN or 0, as the operator says, and `lse` is -inf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as flex_module

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.htile.walk import stores
from neptune_lab.loop_ir.run import run
from neptune_lab.operators import attention
from neptune_lab.operators.base import Operator

DOCUMENTS = torch.arange(40) // 12
REAL = torch.arange(40) < 25


def causal_from_the_start(b, h, q, kv):
    return kv + 17 <= q


def padded(b, h, q, kv):
    return REAL[q] & REAL[kv]


def later_in_its_document(b, h, q, kv):
    """The last query of each document sees nothing."""
    return (DOCUMENTS[q] == DOCUMENTS[kv]) & (q < kv)


def minus_infinity_by_score(score, b, h, q, kv):
    return torch.where(kv < q - 20, score, -float("inf"))


MODS = {
    "causal": (None, causal_from_the_start),
    "padding": (None, padded),
    "documents": (None, later_in_its_document),
    "score": (minus_infinity_by_score, None),
    "everything": (None, lambda b, h, q, kv: q < 0),
}


def operator(name: str, dtype: str = "float32", **options) -> Operator:
    score_mod, mask_mod = MODS[name]
    return attention.general(1, 2, 40, 40, 16, score_mod, mask_mod, dtype, return_lse=True, **options)


def flex(op: Operator, name: str) -> np.ndarray:
    """What FlexAttention gives on the operator's inputs, without a graph; its mask as a score of -inf."""
    score_mod, mask_mod = MODS[name]

    def masked(score, b, h, q, kv):
        return torch.where(mask_mod(b, h, q, kv), score, -float("inf"))

    q, k, v = (torch.from_numpy(a) for a in list(op.random_inputs().values())[:3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        return flex_module.flex_attention(q, k, v, score_mod=score_mod or masked).numpy()


@pytest.mark.parametrize("name", MODS)
def test_zero_is_what_flexattention_gives(name: str) -> None:
    op = operator(name, empty_rows="zero")
    out, lse = op.reference(*op.random_inputs().values())
    expected = flex(op, name)
    assert (expected == 0).all(-1).any()
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.isneginf(lse), (out == 0).all(-1))
    plain, plain_lse = operator(name).reference(*op.random_inputs().values())
    np.testing.assert_array_equal(lse, plain_lse)
    np.testing.assert_array_equal(np.isnan(plain).all(-1), np.isneginf(lse))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MODS)
def test_the_definition_says_the_same(name: str) -> None:
    op = operator(name, empty_rows="zero")
    inputs = op.random_inputs()
    found = run(op.program, inputs)
    for output, expected in zip(("out", "lse"), op.reference(*inputs.values()), strict=True):
        np.testing.assert_allclose(found[output], expected, rtol=1e-4, atol=1e-5)


# By day each mod has each template and each value once; at night every combination, and bfloat16 too.
KINDS = [
    pytest.param(*case, marks=() if n % 2 == m and dtype == "float16" else pytest.mark.nightly)
    for n, name in enumerate(MODS)
    for dtype in ("float16", "bfloat16")
    for m, pairs in enumerate(
        [
            (("rolling_update", "zero"), ("split_k_update", "nan")),
            (("rolling_update", "nan"), ("split_k_update", "zero")),
        ]
    )
    for case in ((name, dtype, *pair) for pair in pairs)
]


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("name", "dtype", "template", "empty_rows"), KINDS)
def test_kernels_of_both_kinds(name: str, dtype: str, template: str, empty_rows: str) -> None:
    """Some rows are in tiles that are never visited, others in tiles that show other rows something."""
    op = operator(name, dtype, empty_rows=empty_rows)
    kernel = nl.compile(op, template, block_q=16, block_kv=16)
    assert kernel.relative_error() < {"float16": 1e-3, "bfloat16": 8e-3}[dtype]


@pytest.mark.nightly
def test_only_the_epilogue_differs() -> None:
    """Loops, the tiles they visit and all that they store are those of the plain definition; so nothing is slower."""
    sizes: dict[str, Any] = {"heads": 2, "q_len": 64, "kv_len": 32, "head_dim": 16}
    plain, zero = (
        nl.compile(attention.causal(**sizes, empty_rows=e), block_q=16, block_kv=16) for e in ("nan", "zero")
    )
    (one,), (other,) = plain.htile.kernels, zero.htile.kernels
    pairs = list(zip(stores(one.body), stores(other.body), strict=True))
    assert [a.target.tensor for a, b in pairs if a != b] == ["out"]
    loops = [[line for line in k.source.splitlines() if "for " in line] for k in (plain, zero)]
    assert loops[0] == loops[1]
    assert len(loops[0]) == 2


def test_it_is_recorded_where_it_says_something() -> None:
    assert "empty_rows" not in attention.causal(seq=4, empty_rows="nan").params
    assert attention.causal(seq=4, empty_rows="zero").params["empty_rows"] == "zero"


def test_other_values_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"empty_rows=0: expected one of 'nan', 'zero'"):
        attention.causal(seq=4, empty_rows=0)  # type: ignore[arg-type]
