"""When the queries of a group of heads are rows of one product, and with which tiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from layouts import LAYOUTS

import neptune_lab as nl
from neptune_lab.autotune import packed_groups
from neptune_lab.operators import attention
from neptune_lab.pipeline import tuned
from neptune_lab.pytorch import compiled
from neptune_lab.target import Target, as_target

H200 = as_target("h200")


def causal(queries: int, keys: int):
    return lambda b, h, q, kv: q + keys - queries >= kv


def chunk(batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, values: int = 0, **more):
    given = {"mask_mod": causal(queries, keys), "kv_heads": kv_heads, "v_head_dim": values or width, **more}
    return attention.general(batch, heads, queries, keys, width, **given)


# The measured ones, and tiles as (template, rows, splits).
PACKED = {
    "widths of 192 and 128": ((16, 16, 2, 30, 3012, 192, 128), ("split_k_update", 128, 2)),
    "136 rows": ((4, 32, 4, 17, 8000, 128), ("split_k_update", 64, 5)),
    "many heads": ((16, 64, 8, 40, 1500, 64), ("rolling_update", 64, None)),
    "width of 256": ((8, 8, 1, 24, 2500, 256), ("split_k_update", 64, 5)),
    "80 rows": ((4, 64, 16, 20, 900, 96), ("split_k_update", 128, 2)),
    "four queries": ((8, 32, 4, 4, 8000, 128), ("split_k_update", 64, 8)),
    "wide rows": ((4, 32, 4, 40, 4000, 192, 128), ("split_k_update", 128, 2)),
}
APART = {
    "little to save": (8, 16, 4, 33, 1200, 192, 128),
    "no groups": (16, 16, 16, 30, 3012, 192, 128),
    "whole tiles of queries": (1, 64, 8, 64, 16000, 128),
    "one query": (16, 16, 2, 1, 3012, 192, 128),
    "as many rows": (2, 64, 8, 55, 11168, 192, 128),
    "wide rows that do not fill 128": (2, 64, 16, 47, 18679, 192, 128),
    "few keys": (16, 16, 2, 30, 128, 192, 128),
}


@pytest.mark.parametrize("name", PACKED)
def test_what_is_packed(name: str):
    sizes, (template, rows, splits) = PACKED[name]
    assert packed_groups.suits(chunk(*sizes))
    found = packed_groups.choice(chunk(*sizes, pack_groups=True), H200)
    assert (found.template, found.sizes.block_q, found.splits) == (template, rows, splits)


@pytest.mark.parametrize("name", APART)
def test_what_is_not(name: str):
    assert not packed_groups.suits(chunk(*APART[name]))


def test_what_a_mod_captures_is_of_the_rows_or_the_columns():
    sizes, slopes = PACKED["136 rows"][0], np.ones(32, np.float32)
    assert packed_groups.suits(chunk(*sizes, score_mod=lambda s, b, h, q, kv: s + slopes[h] * (kv - q)))
    bias, documents = np.ones((17, 8000), np.float32), np.zeros(8000, np.int32)
    assert not packed_groups.suits(chunk(*sizes, score_mod=lambda s, b, h, q, kv: s + bias[q, kv]))
    assert not packed_groups.suits(chunk(*sizes, mask_mod=lambda b, h, q, kv: documents[q + 7983] == documents[kv]))


def test_hidden_keys_do_not_count():
    def window(b, h, q, kv):
        return (q + 2982 >= kv) & (q + 2982 - kv < 100)

    assert not packed_groups.suits(chunk(16, 16, 2, 30, 3012, 192, 128, mask_mod=window))


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch):
    """Groups of heads are packed however little that saves."""
    monkeypatch.setattr(packed_groups, "WORTH", 0.0)
    compiled.forget()
    yield
    compiled.forget()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_call_packs_groups(packs, monkeypatch: pytest.MonkeyPatch, tmp_path, layout: str):
    """In every layout, and with the strides of the output that it has otherwise."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 70, 16), torch.randn(2, 2, 70, 16)
    q, k, v = (LAYOUTS[layout](t) for t in (q, k, v))
    made: list[bool] = []
    suits = packed_groups.suits
    monkeypatch.setattr(packed_groups, "suits", lambda op: made.append(suits(op)) or made[-1])
    out = nl.attention(q, k, v, mask_mod=causal(5, 70), enable_gqa=True)
    assert made == [True]
    mask = torch.arange(70) <= torch.arange(65, 70)[:, None]
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(packed_groups, "suits", lambda op: False)
    compiled.forget()
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path / "other"))
    assert nl.attention(q, k, v, mask_mod=causal(5, 70), enable_gqa=True).stride() == out.stride()


@pytest.mark.nightly
def test_what_a_call_asks_for_is_not_packed(packs):
    q, k = torch.randn(1, 8, 5, 16, dtype=torch.float16), torch.randn(1, 2, 70, 16, dtype=torch.float16)
    out, lse = nl.attention(q, k, k, enable_gqa=True, return_lse=True)
    assert (out.shape, lse.shape) == ((1, 8, 5, 16), (1, 8, 5))
    nl.attention(q, k, k, enable_gqa=True, kernel_options={"block_q": 16})


@pytest.mark.nightly
def test_the_choice_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Target, "current", classmethod(lambda cls, otherwise=None: H200))
    monkeypatch.setattr(tuned, "has_gpu", lambda: True)
    monkeypatch.setattr(tuned, "_device", lambda target: "NVIDIA H200")
    kernel = nl.compile(chunk(*PACKED["136 rows"][0], pack_groups=True), validate="none")
    assert [axis.extent for axis in kernel.htile.kernels[0].grid] == [5, 3, 16]
    assert kernel.chosen.startswith("tiles of the queries of a group of heads")
