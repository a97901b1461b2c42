"""One kernel for all lengths of `nl.attention`."""

import random

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import flex_attention, lengths

pytestmark = pytest.mark.usefixtures("nothing_seen")

HEADS, KV_HEADS, WIDTH = 4, 2, 32


def drawn(q_len: int, kv_len: int, batch: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, HEADS, q_len, WIDTH), (batch, KV_HEADS, kv_len, WIDTH), (batch, KV_HEADS, kv_len, WIDTH)
    return tuple(torch.randn(shape, generator=generator).half() for shape in shapes)


def error(out, q, k, v, mask=None) -> float:
    """The largest distance from SDPA in float64; a query without keys gives 0."""
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask, enable_gqa=True)
    return float((out.double() - torch.nan_to_num(want)).abs().max())


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q >= kv) & (q - kv < 40)


def mask_of(mod, q_len: int, kv_len: int) -> torch.Tensor:
    return mod(0, 0, torch.arange(q_len)[:, None], torch.arange(kv_len)[None])


def kernels() -> int:
    """The number of kernels in use."""
    return len({id(known.kernel) for known in flex_attention._kernels.values()})


def made_for_all() -> int:
    """The number of kernels for all lengths."""
    every = [entry for family in lengths._families.values() for entry in family.entries.values()]
    return len([entry for entry in every if entry is not None])


def check_the_second_length(mod):
    for n in (40, 41, 64, 65, 17, 1, 130, 300):
        q, k, v = drawn(n, n)
        out = nl.attention(q, k, v, mask_mod=mod, enable_gqa=True)
        assert error(out, q, k, v, mask_of(mod, n, n)) < 2e-3, n
    assert kernels() == 2
    assert made_for_all() == 1


def test_the_second_length_gets_a_kernel_for_all():
    check_the_second_length(causal)


@pytest.mark.nightly
def test_the_second_length_gets_a_kernel_for_all_with_splits(splits):
    check_the_second_length(causal)


@pytest.mark.nightly
def test_the_second_length_of_a_window_gets_a_kernel_for_all():
    check_the_second_length(window)


@pytest.mark.nightly
def test_a_growing_cache_has_two_kernels(splits):
    for n in (1, 2, 3, 63, 64, 65, 127, 128, 129, 700):
        q, k, v = drawn(1, n)
        assert error(nl.attention(q, k, v, enable_gqa=True), q, k, v) < 2e-3, n
    assert kernels() == 2


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("masked", [False, True])
def test_the_token_after_a_prompt_gets_the_kernel_for_all(masked: bool):
    q, k, v = drawn(20, 20)
    nl.attention(q, k, v, mask_mod=causal, enable_gqa=True)
    for n in range(21, 25):
        q, k, v = drawn(1, n)
        table = torch.arange(n) % 3 != 1
        mod = (lambda b, h, i, j, table=table: table[j]) if masked else None
        out = nl.attention(q, k, v, mask_mod=mod, enable_gqa=True)
        assert error(out, q, k, v, table[None] if masked else None) < 2e-3, n
    assert (kernels(), made_for_all()) == (2, 1)


@pytest.mark.nightly
def test_a_full_window_keeps_its_own_kernel():
    nl.attention(*drawn(20, 20), mask_mod=causal, enable_gqa=True)
    for seed in range(3):
        q, k, v = drawn(1, 16, seed=seed)
        assert error(nl.attention(q, k, v, enable_gqa=True), q, k, v) < 2e-3
    assert (kernels(), made_for_all()) == (2, 0)


@pytest.mark.nightly
def test_slices_of_a_preallocated_cache_are_read_where_they_are():
    store = torch.randn(2, 2, KV_HEADS, 200, WIDTH, generator=torch.Generator().manual_seed(1)).half()
    for n in (10, 11, 64, 150):
        q, k, v = drawn(1, 1, batch=2)[0], store[0, :, :, :n], store[1, :, :, :n]
        assert error(nl.attention(q, k, v, enable_gqa=True), q, k, v) < 2e-3, n
    assert kernels() == 2
    assert made_for_all() == 1


def seen_through(n: int, batch: int, how: str) -> list[torch.Tensor]:
    """q, k and v of this length whose strides vary with it."""
    generator = torch.Generator().manual_seed(n)

    def made(*shape):
        return torch.randn(shape, generator=generator).half()

    if how == "packed":
        return [t.transpose(1, 2) for t in made(batch, n, 3 * HEADS, WIDTH).chunk(3, 2)]
    if how == "views":
        return [made(batch, n, heads, WIDTH).transpose(1, 2) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    cache = made(2, batch, KV_HEADS, 256, WIDTH)  # of which 32, 64 and 128 are divisors
    return [made(batch, n, HEADS, WIDTH).transpose(1, 2), cache[0][:, :, :n], cache[1][:, :, :n]]


OF_NIGHT = [pytest.param(how, marks=pytest.mark.nightly) for how in ("views", "cache")]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["packed", *OF_NIGHT])
def test_strides_that_vary_with_the_length_have_a_kernel_for_all(how: str, monkeypatch):
    attend, long_way = flex_attention._attend, []
    monkeypatch.setattr(flex_attention, "_attend", lambda *given: long_way.append(given) or attend(*given))
    for n in (32, 41, 64, 65, 17, 130):
        q, k, v = seen_through(n, 2, how)
        out = nl.attention(q, k, v, mask_mod=causal, enable_gqa=True)
        assert error(out, q, k, v, mask_of(causal, n, n)) < 2e-3, n
        assert out.stride() == torch.empty_like(q).stride()
    assert (kernels(), made_for_all()) == (2, 1)
    assert len(long_way) == 2  # lengths that the kernel takes are known calls


@pytest.mark.nightly
def test_negated_views_are_copied_with_the_strides_of_their_length():
    for n in (40, 41, 66):
        q, k, v = seen_through(n, 2, "packed")
        out = nl.attention(torch._neg_view(q), k, torch._neg_view(v), enable_gqa=True)
        assert error(out, -q, k, -v) < 2e-3, n
    assert made_for_all() == 1


def check_both_lengths(mod):
    for m, n in ((20, 50), (33, 70), (1, 90), (64, 200), (200, 64), (300, 17)):
        q, k, v = drawn(m, n)
        out = nl.attention(q, k, v, mask_mod=mod, enable_gqa=True)
        assert error(out, q, k, v, None if mod is None else mask_of(mod, m, n)) < 2e-3, (m, n)
    assert kernels() <= 3  # a single query is a family of its own


@pytest.mark.nightly
def test_both_lengths_vary(splits):
    check_both_lengths(None)


@pytest.mark.nightly
def test_both_lengths_vary_under_a_mask():
    check_both_lengths(causal)


@pytest.mark.nightly
def test_a_mask_tensor_varies_with_the_lengths():
    for m, n in ((20, 50), (33, 70), (64, 200)):
        q, k, v = drawn(m, n)
        table = torch.rand(m, n, generator=torch.Generator().manual_seed(m)) > 0.3
        out = nl.attention(q, k, v, mask_mod=lambda b, h, i, j, table=table: table[i, j], enable_gqa=True)
        assert error(out, q, k, v, table) < 2e-3, (m, n)
    assert made_for_all() == 1


@pytest.mark.nightly
def test_a_tensor_that_varies_without_a_length_has_kernels_of_its_own():
    """Its size is no length of the call, so that nothing says what it is at other lengths."""
    for n, rows in ((40, 5), (41, 6)):
        q, k, v = drawn(n, n)
        table = torch.arange(rows) % 2 == 0
        mod = lambda b, h, i, j, table=table: table[i % 5] | (i == j)  # noqa: E731
        assert error(nl.attention(q, k, v, mask_mod=mod, enable_gqa=True), q, k, v, mask_of(mod, n, n)) < 2e-3
    assert made_for_all() == 0
    assert kernels() == 2


def three_tiles(b, h, q, kv):
    return (q >= kv) & ((q - kv < 200) | (kv < 4))


def prefix_of_three_tiles(b, h, q, kv):
    return (q >= kv) | (kv < 200)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mod", [three_tiles, pytest.param(prefix_of_three_tiles, marks=pytest.mark.nightly)], ids=["window", "prefix"]
)
def test_a_window_of_more_than_two_tiles_has_a_kernel_for_all(mod):
    for n in (100, 197, 201, 400, 465, 617, 5, 264, 199):
        q, k, v = drawn(n, n)
        out = nl.attention(q, k, v, mask_mod=mod, enable_gqa=True)
        assert error(out, q, k, v, mask_of(mod, n, n)) < 2e-3, n
    # A length below the prefix, whose keys are all visible, has a kernel of its own.
    assert kernels() == (3 if mod is prefix_of_three_tiles else 2)


@pytest.mark.nightly
def test_options_of_the_kernel_hold_for_all_lengths():
    for n in (40, 57, 100, 33):
        q, k, v = drawn(n, n)
        out = nl.attention(q, k, v, mask_mod=causal, enable_gqa=True, kernel_options={"block_q": 32, "block_kv": 16})
        assert error(out, q, k, v, mask_of(causal, n, n)) < 2e-3, n
    assert kernels() == 2
    (entry,) = [entry for family in lengths._families.values() for entry in family.entries.values()]
    assert entry is not None
    assert "block_q" not in entry.spec.text
    assert "arange(0, 32)" in entry.spec.text


def test_options_that_such_a_kernel_does_not_have_are_not_ignored():
    for n in (40, 57):
        q, k, v = drawn(n, n)
        nl.attention(q, k, v, mask_mod=causal, enable_gqa=True, kernel_options={"loads": "descriptors"})
    assert made_for_all() == 0


def wide_window(b, h, q, kv):
    return (q >= kv) & (q - kv < 700)


@pytest.mark.nightly
def test_a_window_wider_than_the_samples_has_kernels_of_its_own():
    """The programs at lengths below its width do not have its edge."""
    for n in (40, 41, 800):
        q, k, v = drawn(n, n)
        out = nl.attention(q, k, v, mask_mod=wide_window, enable_gqa=True)
        assert error(out, q, k, v, mask_of(wide_window, n, n)) < 2e-3, n
    assert made_for_all() == 0
    assert "700" in lengths.refusals()[0]


@pytest.mark.nightly
def test_a_table_longer_than_the_samples_has_kernels_of_its_own():
    """A length above its extent reads past its end, which is refused."""
    table = torch.arange(900) % 3 == 0
    for n in (40, 41):
        q, k, v = drawn(n, n)
        mod = lambda b, h, i, j: table[j] | (i == j)  # noqa: E731
        assert error(nl.attention(q, k, v, mask_mod=mod, enable_gqa=True), q, k, v, mask_of(mod, n, n)) < 2e-3
    assert made_for_all() == 0


@pytest.mark.nightly
def test_dynamic_true_is_for_all_lengths_from_the_first_call_on():
    for n in (40, 77, 150):
        q, k, v = drawn(n, n)
        out = nl.attention(q, k, v, mask_mod=causal, enable_gqa=True, dynamic=True)
        assert error(out, q, k, v, mask_of(causal, n, n)) < 2e-3
    assert kernels() == 1


@pytest.mark.nightly
def test_caches_of_8_bits_have_a_kernel_for_all():
    for n in (16, 17, 18, 40):
        q, k, v = drawn(1, n)
        eights = [t.to(torch.float8_e4m3fn) for t in (k, v)]
        scale = torch.rand(KV_HEADS) + 0.5
        out = nl.attention(q, *eights, enable_gqa=True, k_scale=0.5, v_scale=scale)
        assert error(out, q * 0.5, eights[0], eights[1].double() * scale[:, None, None]) < 5e-3
    assert (kernels(), made_for_all()) == (2, 1)


@pytest.mark.nightly
def test_queries_of_8_bits_have_a_kernel_for_all():
    for n in (40, 41, 100):
        q, k, v = (t.to(torch.float8_e4m3fn) for t in drawn(n, n))
        of_q, of_k = torch.rand(1, HEADS) + 0.5, torch.rand(1, KV_HEADS) + 0.5
        out = nl.attention(q, k, v, mask_mod=causal, enable_gqa=True, q_scale=of_q, k_scale=of_k)
        scaled = q.double() * of_q[..., None, None], k.double() * of_k[..., None, None], v.double()
        assert error(out, *scaled, mask_of(causal, n, n)) < 2e-2
    assert (kernels(), made_for_all()) == (2, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("mod", [pytest.param(None, marks=pytest.mark.nightly), causal], ids=["full", "causal"])
def test_packed_sequences_have_a_kernel_for_all_totals(mod):
    for lengths_of in ((20, 20), (30, 11, 7), (3, 0, 90, 64)):
        cuts = torch.tensor([0, *lengths_of]).cumsum(0, dtype=torch.int32)
        n = int(cuts[-1])
        q, k, v = drawn(n, n)
        out = nl.attention(q, k, v, mask_mod=mod, enable_gqa=True, cu_seqlens_q=cuts)
        of = torch.searchsorted(cuts[1:], torch.arange(n), right=True)
        mask = of[:, None] == of
        assert error(out, q, k, v, mask if mod is None else mask & mask_of(mod, n, n)) < 2e-3, lengths_of
    assert (kernels(), made_for_all()) == (2, 1)


@pytest.mark.nightly
def test_packed_queries_and_keys_of_other_lengths_have_a_kernel_for_all_totals():
    for of_q, of_k in (((20, 9), (31, 5)), ((1, 40, 2), (64, 0, 30)), ((17, 17), (80, 90))):
        q_cuts, k_cuts = (torch.tensor([0, *of]).cumsum(0, dtype=torch.int32) for of in (of_q, of_k))
        m, n = int(q_cuts[-1]), int(k_cuts[-1])
        q, k, v = drawn(m, n)
        out = nl.attention(q, k, v, enable_gqa=True, cu_seqlens_q=q_cuts, cu_seqlens_k=k_cuts)
        rows = torch.searchsorted(q_cuts[1:], torch.arange(m), right=True)
        columns = torch.searchsorted(k_cuts[1:], torch.arange(n), right=True)
        assert error(out, q, k, v, rows[:, None] == columns) < 2e-3, (of_q, of_k)
    assert (kernels(), made_for_all()) == (2, 1)


def test_dynamic_false_has_a_kernel_a_length():
    for n in (40, 41, 42):
        q, k, v = drawn(n, n)
        assert error(nl.attention(q, k, v, enable_gqa=True, dynamic=False), q, k, v) < 2e-3
    assert kernels() == 3
    assert made_for_all() == 0


def test_dynamic_is_a_switch():
    with pytest.raises(LaunchError, match="dynamic=1"):
        nl.attention(*drawn(8, 8), enable_gqa=True, dynamic=1)


@pytest.mark.nightly
def test_return_lse_at_all_lengths():
    for n in (40, 41, 90):
        q, k, v = drawn(n, n)
        out, lse = nl.attention(q, k, v, enable_gqa=True, return_lse=True)
        scores = (q.double() / WIDTH**0.5) @ k.double().repeat_interleave(2, 1).transpose(-1, -2)
        assert error(out, q, k, v) < 2e-3
        assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=1e-3)
    assert made_for_all() == 1


@pytest.mark.nightly
def test_a_nan_stays_a_nan():
    for n in (40, 41):
        q, k, v = drawn(n, n)
        q[0, 0, 3] = float("nan")
        out = nl.attention(q, k, v, mask_mod=causal, enable_gqa=True)
        assert out[0, 0, 3].isnan().all()
        assert not out[0, 0, 4].isnan().any()
    assert made_for_all() == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("mod", "calls"), [(None, 50), (causal, 250), (window, 50)], ids=["full", "causal", "window"])
def test_hundreds_of_lengths_have_two_kernels_for_all(mod, calls: int):
    rng = random.Random(3)
    for turn in range(calls):
        m, n = (rng.randint(2, 700 if turn % 25 else 1500) for _ in range(2))
        q, k, v = (t[:, :2] for t in drawn(m, n, seed=turn))
        out = nl.attention(q, k[:, :1], v[:, :1], mask_mod=mod, enable_gqa=True, dynamic=True)
        assert error(out, q, k[:, :1], v[:, :1], None if mod is None else mask_of(mod, m, n)) < 2e-3, (m, n)
    assert kernels() <= 2


@pytest.mark.nightly
def test_positions_whose_cubes_need_64_bits_at_long_lengths_only():
    def cubes(b, h, q, kv):
        return kv * kv * kv % 7 < 3

    for n in (200, 1400):
        q, k, v = drawn(1, n)
        out = nl.attention(q, k, v, mask_mod=cubes, enable_gqa=True, dynamic=True)
        assert error(out, q, k, v, mask_of(cubes, 1, n)) < 2e-3, n


@pytest.mark.nightly
def test_a_layout_whose_axes_are_one_at_some_lengths_has_a_kernel_of_its_length():
    q, k, _ = (t[:1] for t in drawn(5, 70))
    v = (
        torch.randn(400, generator=torch.Generator().manual_seed(0))
        .half()
        .as_strided((1, KV_HEADS, 70, 40), (40, 0, 2, 1))
    )
    out = nl.attention(q, k, v, mask_mod=lambda b, h, q, kv: q + 65 >= kv, enable_gqa=True, dynamic=True)
    assert error(out, q, k, v, torch.ones(5, 70, dtype=torch.bool).tril(65)) < 2e-3
