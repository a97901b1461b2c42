"""Multi-head latent attention: what absorbing the weights leaves, and latents that are loaded once."""

from __future__ import annotations

import re

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.operators.mla import mla

TINY = {"batch": 2, "heads": 3, "latent": 32, "rope": 16, "nope": 24}


def attention_of_heads(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    """MLA that is not absorbed, causal, one head at a time: keys (W_uk c, r), values W_uv c."""
    b, h, n, width = q_nope.shape
    out = np.empty((b, h, n, w_uv.shape[1]))
    for s in range(b):
        for head in range(h):
            keys = np.concatenate([latent[s] @ w_uk[head].T, k_rope[s]], axis=-1)
            queries = np.concatenate([q_nope[s, head], q_rope[s, head]], axis=-1)
            score = queries @ keys.T * (width + q_rope.shape[-1]) ** -0.5
            for i in range(n):
                seen = score[i, : len(keys) - n + i + 1]
                weights = np.exp(seen - seen.max())
                out[s, head, i] = weights @ (latent[s] @ w_uv[head].T)[: len(seen)] / weights.sum()
    return out


def test_it_is_what_absorbing_the_weights_leaves():
    rng = np.random.default_rng(3)
    b, h, n, m, c, r, d = 2, 3, 4, 9, 32, 16, 24
    q_nope, q_rope = rng.standard_normal((b, h, n, d)), rng.standard_normal((b, h, n, r))
    latent, k_rope = rng.standard_normal((b, m, c)), rng.standard_normal((b, m, r))
    w_uk, w_uv = rng.standard_normal((h, d, c)) / 5, rng.standard_normal((h, 20, c)) / 5
    absorbed = np.concatenate([np.einsum("bhnd,hdc->bhnc", q_nope, w_uk), q_rope], axis=-1)
    op = mla(b, h, n, m, latent=c, rope=r, nope=d)
    (out,) = op.compute(absorbed, np.concatenate([latent, k_rope], axis=-1))
    found = np.einsum("bhnc,hvc->bhnv", out, w_uv)
    np.testing.assert_allclose(found, attention_of_heads(q_nope, q_rope, latent, k_rope, w_uk, w_uv), rtol=1e-10)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("sizes", "dtype", "within"),
    [
        ({"q_len": 1, "kv_len": 150}, "float16", 1e-3),
        ({"q_len": 3, "kv_len": 70}, "bfloat16", 8e-3),
        ({"q_len": 1, "kv_len": 1}, "float16", 1e-3),
        ({"q_len": 5, "kv_len": 33, "causal": False}, "float32", 1e-5),
    ],
)
def test_numbers(sizes, dtype, within):
    assert nl.compile(mla(**TINY, **sizes, dtype=dtype)).relative_error() < within


@pytest.mark.nightly
def test_splits():
    kernel = nl.compile(mla(**TINY, kv_len=200), template="split_k_update", config=nl.SplitKConfig(splits=3))
    assert len(kernel.triton.kernels) == 2
    assert kernel.relative_error() < 1e-3


@pytest.mark.nightly
def test_a_latent_is_loaded_once():
    """For 16 samples of 8192 positions, split among the multiprocessors: one tile is keys and values."""
    kernel = nl.compile(mla(batch=16, kv_len=8192), target="h200", tuned=False, validate="none")
    local, _ = kernel.triton.kernels
    assert local.grid[0] > 1
    loads = re.findall(r"(\w+) = tl\.load\(\s*kv_base .*", local.text)
    assert len(loads) == 2, "latents and rotated keys"
    assert f"tl.trans({loads[0]})" in local.text
    assert re.search(rf"acc_local_chip = tl\.dot\(s_exp\.to\(tl\.float16\), {loads[0]}, ", local.text)
    assert all(k.resources.local_bytes == 0 for k in kernel.machine_code("sm_90").kernels)


def test_refusals():
    with pytest.raises(DefinitionError, match="q_len=4 with kv_len=3: expected at most as many queries as positions"):
        mla(q_len=4, kv_len=3)
    with pytest.raises(DefinitionError, match="nope=0"):
        mla(nope=0)
    with pytest.raises(DefinitionError, match="scale='x'"):
        mla(scale="x")  # type: ignore[arg-type]


@pytest.mark.nightly
def test_from_pytorch():
    """The absorbed form as it is written in PyTorch: one kernel between the two products with weights, in splits, that
    loads each latent once."""
    torch = pytest.importorskip("torch")

    def absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
        q_latent = torch.einsum("bhnd,hdc->bhnc", q_nope, w_uk)
        score = torch.einsum("bhnc,bmc->bhnm", q_latent, latent) + torch.einsum("bhnr,bmr->bhnm", q_rope, k_rope)
        weights = torch.softmax(score.float() * 0.1, dim=-1).to(latent.dtype)
        return torch.einsum("bhnc,hvc->bhnv", torch.einsum("bhnm,bmc->bhnc", weights, latent), w_uv)

    def drawn(b, h, m, d, c, r, v):
        shapes = (b, h, 1, d), (b, h, 1, r), (b, m, c), (b, m, r), (h, d, c), (h, v, c)
        made = [torch.randn(shape, dtype=torch.float16, generator=torch.Generator().manual_seed(4)) for shape in shapes]
        return (*made[:4], made[4] / 5, made[5] / 5)

    tiny = drawn(2, 4, 40, 24, 32, 16, 20)
    kernel = nl.compile(nl.from_torch(absorbed, *tiny))
    assert len(kernel.triton.kernels) == 3
    wanted = absorbed(*(t.float() for t in tiny)).double()
    assert float((kernel(*tiny).double() - wanted).norm() / wanted.norm()) < 4e-3
    published = nl.compile(
        nl.from_torch(absorbed, *drawn(16, 16, 1024, 128, 512, 64, 128)), target="h200", tuned=False, validate="none"
    )
    local = next(k for k in published.triton.kernels if k.name.endswith("_local"))
    assert local.grid[0] > 1
    assert len(re.findall(r"= tl\.load\(\s*latent_base", local.text)) == 1
