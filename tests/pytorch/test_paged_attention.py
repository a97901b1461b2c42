"""`nl.paged_attention` and the operator `attention.paged`, beside float64 over the keys that the pages hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attention_reference import DEVICE, causal
from by_turns import in_turn

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.operators import attention as operators

BATCH, HEADS, DIM, PAGES, PAGE, MOST = 3, 4, 16, 24, 8, 7


def problem(q_len: int, kv_heads: int = 2, dtype: torch.dtype = torch.float32, v_dim: int = 16, seed: int = 0) -> Any:
    """q, both caches, a page table and lengths; what does not count is NaN, and no page that there is."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(BATCH, HEADS, q_len, DIM, generator=generator)
    k, v = (torch.randn(PAGES, PAGE, kv_heads, n, generator=generator) for n in (DIM, v_dim))
    table = torch.randperm(PAGES, generator=generator)[: BATCH * MOST].reshape(BATCH, MOST).int()
    lengths = torch.tensor([MOST * PAGE, 21, q_len], dtype=torch.int32)
    held = torch.zeros(PAGES, PAGE, dtype=torch.bool)
    for sample, length in enumerate(lengths.tolist()):
        at = torch.arange(length)
        held[table[sample, at // PAGE].long(), at % PAGE] = True
        table[sample, -(-length // PAGE) :] = -7
    k[~held], v[~held] = torch.nan, torch.nan
    return [t.to(DEVICE) for t in (q.to(dtype), k.to(dtype), v.to(dtype), table, lengths)]


def reference(q: Any, k: Any, v: Any, table: Any, lengths: Any, score_mod: Any = None, mask_mod: Any = None) -> Any:
    """Output and lse in float64, one sample and head at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float64, device=q.device)
    for b, h in np.ndindex(*q.shape[:2]):
        length = int(lengths[b])
        at, head = torch.arange(length, device=q.device), h // (q.shape[1] // k.shape[2])
        pages = table[b, at // k.shape[1]].long()
        keys, values = (t[pages, at % t.shape[1], head].double() for t in (k, v))
        score = q[b, h].double() @ keys.T * q.shape[3] ** -0.5
        i = torch.arange(q.shape[2], device=q.device)[:, None] + length - q.shape[2]
        sample, own = torch.tensor(b, device=q.device), torch.tensor(h, device=q.device)
        if score_mod is not None:
            score = score_mod(score, sample, own, i, at[None])
        if mask_mod is not None:
            score = score.masked_fill(~mask_mod(sample, own, i, at[None]), -torch.inf)
        if length:
            out[b, h], lse[b, h] = (score.softmax(-1).nan_to_num(0.0) @ values), score.logsumexp(-1)
    return out, lse


SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.0], device=DEVICE)
MODS = {
    "none": (None, None),
    "causal": (None, causal),
    "window": (None, lambda b, h, q, kv: (q >= kv) & (q - kv < 9)),
    "alibi": (lambda s, b, h, q, kv: s - SLOPES[h] * (q - kv), causal),
    "by sample": (lambda s, b, h, q, kv: s * 0.5, lambda b, h, q, kv: (kv % 3 != b) | (q == kv)),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("q_len", "name"), in_turn([1, 5], MODS, every=2))
def test_the_keys_of_the_pages(name, q_len):
    given = problem(q_len)
    found, lse = nl.paged_attention(*given, *MODS[name], return_lse=True)
    expected, of_lse = reference(*given, *MODS[name])
    assert (found - expected).abs().max() < 1e-5
    assert (lse - of_lse).abs().nan_to_num(0.0).max() < 1e-5
    assert torch.equal(lse.isneginf(), of_lse.isneginf())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_templates_dtypes_and_widths(template, dtype):
    given = problem(3, kv_heads=1, dtype=dtype, v_dim=32)
    found = nl.paged_attention(*given, None, causal, kernel_options={"template": template})
    expected, _ = reference(*given, None, causal)
    assert found.dtype == dtype
    assert (found - expected).abs().max() < (2e-3 if dtype == torch.float16 else 2e-2)


@pytest.mark.nightly
def test_tables_and_lengths_are_read_at_each_call(all_compilations):
    for seed in range(6):
        q, k, v, table, lengths = problem(2, seed=seed)
        lengths[0], lengths[2] = 40 - 5 * seed, 1
        found = nl.paged_attention(q, k, v, table, lengths, None, causal)
        assert (found - reference(q, k, v, table, lengths, None, causal)[0]).abs().max() < 1e-5
    assert (found[2, :, 0] == 0).all()  # of two queries and one key, the first query is before the first key
    lengths[1] = 0
    assert (nl.paged_attention(q, k, v, table.long(), lengths.long())[1] == 0).all()
    assert len(all_compilations) == 2  # int64 is another problem


@pytest.mark.nightly
def test_a_table_that_grows_with_its_sequences_compiles_few_kernels(all_compilations):
    """A decoding loop adds a column per page: the columns are filled up to a power of two."""
    torch.manual_seed(0)
    caches, pages = torch.randn(2, 32, 4, 2, 16), torch.randperm(32).to(torch.int32).view(2, 16)
    k, v = (cache[pages.long()].flatten(1, 2).transpose(1, 2).repeat_interleave(2, 1).double() for cache in caches)
    for step in range(0, 48, 3):
        lengths = torch.tensor([9 + step, 2 + step], dtype=torch.int32)
        q, width = torch.randn(2, 4, 1, 16), -(-(9 + step) // 4)
        out = nl.paged_attention(q, *caches, pages[:, :width].contiguous(), lengths)
        mask = torch.arange(64) < lengths[:, None, None, None]
        want = torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, attn_mask=mask)
        assert (out - want).abs().max() < 1e-5
    assert len(all_compilations) == 4  # for tables of 3, 4, 8 and 16 pages


@pytest.mark.nightly
def test_columns_that_fill_a_table_up_do_not_reach_behind_what_a_mod_reads():
    """The bias has an element for each key of five pages, and a second table would be filled up to eight columns."""
    torch.manual_seed(0)
    q, caches, bias = torch.randn(1, 1, 1, 16), torch.randn(2, 5, 4, 1, 16), torch.randn(20)
    for columns in (3, 5):
        table, lengths = torch.arange(columns)[None], torch.tensor([4 * columns])
        found = nl.paged_attention(q, *caches, table, lengths, lambda s, b, h, q, kv: s + bias[kv])
        k, v = (cache[:columns].reshape(1, 1, -1, 16).double() for cache in caches)
        mask = bias[: 4 * columns].double()[None]
        want = torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, mask)
        assert (found - want).abs().max() < 1e-5


@pytest.mark.parametrize(("batch", "q_len", "columns"), [(0, 1, 3), (2, 0, 3), (2, 1, 0)])
def test_nothing_to_attend_gives_zeros(batch, q_len, columns):
    q, cache = torch.randn(batch, 2, q_len, 16, device=DEVICE), torch.randn(5, 4, 1, 8, device=DEVICE).to(torch.int8)
    table, lengths = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in ((batch, columns), (batch,)))
    found, lse = nl.paged_attention(q, torch.randn(5, 4, 1, 16, device=DEVICE), cache, table, lengths, return_lse=True)
    assert torch.equal(found, torch.zeros(batch, 2, q_len, 8, device=DEVICE))
    assert torch.equal(lse, torch.full((batch, 2, q_len), -torch.inf, device=DEVICE))


@pytest.mark.nightly
def test_it_breaks_a_graph_and_the_numbers_stay():
    torch._dynamo.reset()
    given = problem(1)
    found = torch.compile(lambda *given: nl.paged_attention(*given) * 2, backend="eager")(*given)
    assert (found / 2 - reference(*given)[0]).abs().max() < 1e-5
    torch._dynamo.reset()


def changed(at: int, change: Any) -> list[Any]:
    given = problem(1)
    given[at] = change(given[at])
    return given


REFUSED = {
    "another layout": (changed(1, lambda k: k.transpose(1, 2)), r"k_cache has strides .*; a copy of the cache"),
    "three axes": (changed(2, lambda v: v[0]), r"v_cache has shape \(8, 2, 16\); expected \(pages, page_size"),
    "other pages": (changed(2, lambda v: v[1:]), r"v_cache has shape .*; expected \(24, 8, 2\) and a head_dim"),
    "other heads": (changed(0, lambda q: q[:, :3]), r"k_cache has 2 heads; expected a divisor of 3"),
    "another width": (changed(0, lambda q: q[..., :8]), r"k_cache has head_dim 16; expected 8, which q has"),
    "no table": (
        changed(3, lambda t: t.tolist()),
        r"page_table is a list; expected a torch.Tensor of int32, \(batch, p",
    ),
    "another batch": (
        changed(3, lambda t: t[1:]),
        r"page_table has shape \(2, 7\); expected \(batch, pages of the longest sequence\), with batch 3",
    ),
    "floats": (
        changed(4, lambda n: n.float()),
        r"lengths has dtype torch.float32; expected torch.int32 or torch.int64",
    ),
    "dtypes": (changed(0, lambda q: q.half()), r"k_cache has dtype torch.float32; expected torch.float16"),
    "dtypes of the caches": (
        changed(2, lambda v: v.half()),
        r"v_cache has dtype torch.float16; expected torch.float32",
    ),
    "gradients": (changed(0, lambda q: q.requires_grad_()), r"argument q records gradients"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    given, match = REFUSED[name]
    with pytest.raises(LaunchError, match=match):
        nl.paged_attention(*given)


@pytest.mark.skipif(DEVICE != "cpu", reason="values on a GPU are not looked at")
def test_values_that_do_not_fit():
    q, k, v, table, lengths = problem(1)
    for values in ([57, 3, 1], [5, -1, 2]):
        with pytest.raises(LaunchError, match=r"lengths has values from .* to .*; expected 0 to 56"):
            nl.paged_attention(q, k, v, table, torch.tensor(values, dtype=torch.int32))
    lengths[1] = 25
    with pytest.raises(LaunchError, match="page_table has the page -7 for keys within lengths; expected 0 to 23"):
        nl.paged_attention(q, k, v, table, lengths)


# -- the operator -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("q_len", [1, 12])
@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_the_operator(q_len, template):
    rng = np.random.default_rng(0)
    table, lengths = rng.permutation(20)[:14].reshape(2, 7), np.array([50, 17])
    op = operators.paged(table, lengths, 4, 16, page_size=8, kv_heads=2, q_len=q_len, dtype="float32", pages=20)
    assert op.params["pages"] == 20
    assert [str(t) for t in op.inputs[1:]] == [
        "k: float32[20, 8, 2, 16]", "v: float32[20, 8, 2, 16]", "lengths: int32[2]", "page_table: int32[2, 7]",
    ]  # fmt: skip
    kernel = nl.compile(op, template, validate="full")
    assert kernel.relative_error() < 1e-5
    q, k, v = (torch.tensor(rng.standard_normal(t.shape), dtype=torch.float32, device=DEVICE) for t in op.inputs[:3])
    expected, _ = reference(q, k, v, torch.tensor(table, device=DEVICE), lengths, None, causal)
    assert (kernel(q, k, v) - expected).abs().max() < 1e-5
    ours = op.compute(*(t.double().cpu().numpy() for t in (q, k, v)), lengths, table)[0]
    assert np.abs(ours - expected.cpu().numpy()).max() < 1e-12


def test_one_loop_visits_the_pages_up_to_a_length():
    """Without a launch before it, though all heads of a sample share its length and its row of the table."""
    op = operators.paged(np.zeros((2, 40), int), np.array([50, 600]), 16, 16, page_size=16, kv_heads=8, pages=7)
    kernel = nl.compile(op, "rolling_update", block_kv=16, validate="none")
    assert len(kernel.htile.kernels) == 1
    assert "j0_last" in kernel.source


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: operators.paged(np.zeros(4, int), np.ones(1, int)), r"page_table has shape \(4,\) and lengths \(1,\)"),
        (lambda: operators.paged(np.zeros((2, 3), int), np.ones(3, int)), r"lengths \(3,\): expected \(batch, pages\)"),
        (lambda: operators.paged(np.zeros((1, 3), int), np.ones(1, int), kv_len=7), "takes the number of keys from"),
        (lambda: operators.general(1, 1, 8, 8, 4, pages=(2, 4)), r"pages=\(2, 4\), place=None: give both or none"),
    ],
)
def test_what_the_operator_refuses(make, match):
    with pytest.raises(DefinitionError, match=match):
        make()


E4 = torch.float8_e4m3fn
# Dtypes of q and of both caches.
EIGHTS = {
    "bf16, e4m3": (torch.bfloat16, E4),
    "bf16, int8": (torch.bfloat16, torch.int8),
    "fp16, e5m2": (torch.float16, torch.float8_e5m2),
    "fp32, int8": (torch.float32, torch.int8),
    "e4m3": (E4, E4),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("dtypes", "per_head", "q_len"), in_turn(EIGHTS, [False, True], [1, 5], every=3))
def test_caches_of_8_bits(dtypes, per_head, q_len):
    own, stored = EIGHTS[dtypes]
    q, k, v, table, lengths = problem(q_len)
    q = q.to(own)
    if stored == torch.int8:  # which has no NaN
        k, v = ((t.nan_to_num(4.0) * 30).clamp(-127, 127) for t in (k, v))
    k, v = k.to(stored), v.to(stored)
    unit = 1 / 30 if stored == torch.int8 else 1.0
    k_scale, v_scale = (unit * torch.tensor([a, b], device=DEVICE) for a, b in ((0.5, 1.5), (2.0, 0.25)))
    k_scale, v_scale = (k_scale, v_scale) if per_head else (k_scale[0], float(v_scale[1]))
    options = {"q_scale": 0.5} if own == E4 else {}
    found = nl.paged_attention(q, k, v, table, lengths, None, causal, k_scale=k_scale, v_scale=v_scale, **options)
    meant = q.double() * options.get("q_scale", 1.0)
    scales = (torch.as_tensor(s, device=DEVICE).double().reshape(-1, 1) for s in (k_scale, v_scale))
    keys, values = (t.double() * s for t, s in zip((k, v), scales, strict=True))
    expected, _ = reference(meant, keys, values, table, lengths, None, causal)
    assert found.dtype == (torch.bfloat16 if own == E4 else own)
    assert float((found.double() - expected).norm() / expected.norm()) < 5e-3


def test_scales_of_samples_are_refused_for_pages():
    q, k, v, table, lengths = problem(1)
    k8, v8 = k.nan_to_num(0.0).to(E4), v.nan_to_num(0.0).to(E4)
    with pytest.raises(LaunchError, match=r"argument k_scale has shape \(3, 2\); expected \(\), \(2,\) or \(1, 2\)"):
        nl.paged_attention(q, k8, v8, table, lengths, k_scale=torch.ones(BATCH, 2, device=DEVICE))
