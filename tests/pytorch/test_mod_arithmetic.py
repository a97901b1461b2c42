"""A mod computes as PyTorch does: dtypes that wrap around, quotients of negative numbers, indices from the end, NaN."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from attention_reference import DEVICE, flex, tensors
from torch.nn.attention.flex_attention import and_masks, or_masks

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

N = 18
G = torch.Generator().manual_seed(3)
TINY = torch.randint(-100, 100, (N,), generator=G, dtype=torch.int8).to(DEVICE)
BYTES = torch.randint(0, 256, (N,), generator=G, dtype=torch.uint8).to(DEVICE)
SHORT = torch.randint(-30000, 30000, (N,), generator=G, dtype=torch.int16).to(DEVICE)
PAGES = torch.randint(-N, N, (N,), generator=G).to(DEVICE)
POOL = torch.randn(N, generator=G).to(DEVICE)
ODD = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.5, -2.5] * 3, device=DEVICE)
STARTS = torch.tensor([0, 5, 11, N], device=DEVICE)
DOCUMENT = torch.bucketize(torch.arange(N, device=DEVICE), STARTS[1:], right=True)
WINDOWS = torch.tensor([3, 9], dtype=torch.int32, device=DEVICE)


def same(score_mod=None, mask_mod=None) -> None:
    """The call, with FlexAttention's result on the CPU asserted, NaN included."""
    q, k, v = tensors((1, 2, N, 8))
    found = nl.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod)
    expected = flex(q, k, v, score_mod, mask_mod)
    assert torch.equal(found.isnan(), expected.isnan())
    assert (found - expected).nan_to_num().abs().max() < 2e-5


@pytest.mark.one_in(36)
@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q, kv: ((q * 73856093) ^ 83492791) % 5 < 3,
        lambda b, h, q, kv: (q * 1000003) * (kv * 999983) % 7 < 4,
        lambda b, h, q, kv: TINY[kv] * 3 > TINY[q],
        lambda b, h, q, kv: TINY[q] * TINY[kv] * TINY[kv] * TINY[kv] > 0,
        lambda b, h, q, kv: BYTES[kv] - BYTES[q] > kv,
        lambda b, h, q, kv: (TINY[kv] + BYTES[q]) * 100 + SHORT[kv] >= 0,
        lambda b, h, q, kv: -TINY[kv] + q > 3,
        lambda b, h, q, kv: ((TINY[kv] & 127) > 60) ^ ((TINY[q] & -128) == 0),
        lambda b, h, q, kv: ((TINY[kv] >> 7) == 0) ^ ((SHORT[q] >> 20) == 0) ^ (BYTES[kv] >> 8 == q),
        lambda b, h, q, kv: ((BYTES[kv] & 255) > 128) ^ ((SHORT[q] & 0x7FFF) > 16000),
        lambda b, h, q, kv: (q >= kv) + (kv < 3),
        lambda b, h, q, kv: (q >= kv) * (kv >= 3),
        lambda b, h, q, kv: torch.fmod(kv - q, 5) >= -1,
        lambda b, h, q, kv: torch.div(q - kv, 4, rounding_mode="trunc") == 0,
        lambda b, h, q, kv: torch.div(q - kv, 4, rounding_mode="floor") == 0,
        lambda b, h, q, kv: (q - kv) // -3 < (kv - q) % -4 + 2,
        lambda b, h, q, kv: DOCUMENT[kv - 1] == DOCUMENT[q],
        lambda b, h, q, kv: PAGES[PAGES[kv]] >= PAGES[-q - 1],
        lambda b, h, q, kv: torch.isfinite(ODD[kv]) | torch.isneginf(ODD[q]),
        lambda b, h, q, kv: torch.ones_like(q, dtype=torch.bool) & (q >= kv),
        lambda b, h, q, kv: (q - kv < 2**40) & (q * 2**33 >= kv * 2**33),
    ],
)
def test_masks(mask_mod):
    same(mask_mod=mask_mod)


@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: s + (q * kv * 30000000) * 1e-10,
        lambda s, b, h, q, kv: s + POOL[PAGES[kv]] + POOL[kv - q],
        lambda s, b, h, q, kv: s + (q * kv * 30000000 % 11) * 0.1 + POOL[kv - q],
        lambda s, b, h, q, kv: s + (kv * 0.37) // 0.1 * 0.01 + (q * 0.3 - 2) % -0.1,
        lambda s, b, h, q, kv: torch.fmax(s, ODD[kv]) + torch.fmin(ODD[kv], s),
        lambda s, b, h, q, kv: s + torch.sign(ODD[kv]) + torch.sign(q - kv),
        lambda s, b, h, q, kv: torch.nan_to_num(s + ODD[kv], 0.5, 2.0, -3.0),
        lambda s, b, h, q, kv: s.masked_fill(q < kv, -math.inf),
        lambda s, b, h, q, kv: s - torch.log1p((q - kv).abs()) + torch.log1p(s * 1e-12) * 1e12,
        lambda s, b, h, q, kv: torch.expm1(s) + torch.expm1(s * 1e-12) * 1e12,
        lambda s, b, h, q, kv: F.softplus(s * 30) + F.elu(s) + F.logsigmoid(s * 30),
        lambda s, b, h, q, kv: F.hardtanh(s) + F.relu6(s) + torch.frac(POOL[kv]) + torch.log10(q + 1.0),
        lambda s, b, h, q, kv: torch.add(s, POOL[kv], alpha=0.5) + torch.lerp(s, POOL[q], 0.3),
        lambda s, b, h, q, kv: torch.rsub(s, POOL[kv], alpha=0.5),
        lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.full_like(s, -math.inf)),
        lambda s, b, h, q, kv: torch.ops.aten.tanh.default(s),
    ],
)
def test_scores(score_mod):
    same(score_mod)


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: s + POOL[(h.to(torch.int64) * 0)] * kv,
        lambda s, b, h, q, kv: s + kv * (torch.ones_like(h) + 1),
        lambda s, b, h, q, kv: s + kv * (torch.full_like(h, 3, dtype=torch.int64) * 2) * 0.1,
        lambda s, b, h, q, kv: (
            s * (torch.ones_like(s) * 2).sqrt() + (torch.ones_like(q) * 2.5).to(torch.int32) * kv * 0.1
        ),
        lambda s, b, h, q, kv: s - (~torch.ones_like(q, dtype=torch.bool)).to(torch.float32) * kv,
        lambda s, b, h, q, kv: torch.where(torch.zeros_like(h) > 1, s * 2, s),
        # 250 + 10 is 4 in uint8, and 120 + 10 is -126 in int8.
        lambda s, b, h, q, kv: (
            s + kv * (torch.full_like(h, 250, dtype=torch.uint8) + torch.full_like(h, 10, dtype=torch.uint8))
        ),
        lambda s, b, h, q, kv: (
            s + kv * 1e-3 * (torch.full_like(h, 120, dtype=torch.int8) + torch.full_like(h, 10, dtype=torch.int8))
        ),
    ],
)
def test_operations_on_constants_alone(score_mod):
    same(score_mod)


def test_a_constant_of_a_dtype_that_mods_do_not_have_is_refused():
    q, k, v = tensors((1, 2, N, 8))
    with pytest.raises(DefinitionError, match="a mod converts a value to uint32"):
        nl.attention(q, k, v, score_mod=lambda s, b, h, q, kv: s + torch.full_like(h, 3, dtype=torch.uint32))


WIDE = torch.tensor([math.nan, math.inf, -math.inf] + [0.5] * (N - 3), dtype=torch.float64, device=DEVICE)


@pytest.mark.nightly
def test_the_largest_number_is_that_of_64_bits_where_a_mod_computes_in_them():
    """It is an infinity as a score in float32, so that rows with it are NaN."""
    same(lambda s, b, h, q, kv: torch.nan_to_num(s + WIDE[q], 0.5).float())
    same(lambda s, b, h, q, kv: torch.nan_to_num(s * ODD[q], 0.5))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("score_mod", [lambda s, b, h, q, kv: s * 1e20, lambda s, b, h, q, kv: s / -1e-9])
def test_weights_of_large_scores_fit_float16(score_mod):
    """Small whole numbers, so that no score is rounded: the largest one of a row takes all."""
    q, k, v = (torch.randint(-3, 4, (1, 2, N, 8), generator=G).half().to(DEVICE) for _ in range(3))
    found, expected = nl.attention(q, k, v, score_mod=score_mod), flex(q, k, v, score_mod)
    assert (found - expected).abs().max() < 2e-3


def test_a_score_that_is_a_large_number_of_the_mod():
    """Its products with log2(e) are rounded, as validation knows (docs/concepts/numbers.md, "Large common offsets")."""
    q, k, v = tensors((1, 2, N, 8))
    mod = lambda s, b, h, q, kv: torch.where((kv * 5 + q) % 3 == 3, s, -1e4) + torch.ceil(kv / 3)  # noqa: E731
    assert (nl.attention(q, k, v, score_mod=mod) - flex(q, k, v, mod)).abs().max() < 1e-2


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q, kv: (kv - q) * 0.7 < 3,
        lambda b, h, q, kv: (kv - q).abs() <= 5,
        lambda b, h, q, kv: torch.where(q % 7 > 2, (q >= kv) == (kv > 3), kv < 9),
    ],
)
def test_an_index_from_the_end_beside_a_mask(mask_mod):
    same(lambda s, b, h, q, kv: s + TABLE[kv - q] + POOL[-q - 1], lambda b, h, q, kv: mask_mod(b, h, q, kv) | (q == kv))


TABLE = torch.randn(2 * N, generator=G).to(DEVICE)


class Neighbourhood:
    """A mask whose sizes are an object's, on a canvas of `width` columns."""

    def __init__(self, width: int, reach: int) -> None:
        self.width, self.reach = width, reach

    def mask(self, b, h, q, kv):
        near = (self.row(q) - self.row(kv)).abs() <= self.reach
        return near & ((q % self.width - kv % self.width).abs() <= self.reach)

    def row(self, index):
        return index // self.width


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv, size):
    return q - kv < size


def prefix(b, h, q, kv):
    return kv < 5


SETTINGS = SimpleNamespace(cap=3.0, slopes=torch.tensor([0.5, 0.25], device=DEVICE))


@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod"),
    [
        (None, or_masks(prefix, causal)),
        (None, and_masks(causal, functools.partial(window, size=6))),
        (None, and_masks(causal, lambda b, h, q, kv: DOCUMENT[q] == DOCUMENT[kv])),
        (None, lambda b, h, q, kv: (STARTS[DOCUMENT[q]] <= kv) & (kv <= q)),
        (None, lambda b, h, q, kv: (q - STARTS[DOCUMENT[q]]) >= (kv - STARTS[DOCUMENT[kv]])),
        (None, lambda b, h, q, kv: (q >= kv) & (q - kv < WINDOWS[h])),
        (None, lambda b, h, q, kv: ((q - kv) % 3 == 0) & ((q - kv).abs() <= 9)),
        (None, Neighbourhood(6, 1).mask),
        (None, lambda b, h, q, kv: ((q // 6).clamp(1, 1) - kv // 6).abs() <= 1),
        (lambda s, b, h, q, kv: s + SETTINGS.slopes[h] * (kv - q), causal),
        (lambda s, b, h, q, kv: SETTINGS.cap * torch.tanh(s / SETTINGS.cap), causal),
        (lambda s, b, h, q, kv: s + POOL[(q - kv).clamp(0, 8)], causal),
        (lambda s, b, h, q, kv: torch.where(DOCUMENT[q] == DOCUMENT[kv], s, -math.inf), None),
    ],
)
def test_mods_as_the_documentation_of_flex_attention_has_them(score_mod, mask_mod):
    same(score_mod, mask_mod)


def test_a_power_writes_nothing_to_the_console(capfd):
    """TVM warns of every constant exponent of 3 and more that its own function gets."""
    x = torch.rand(4, 24) + 0.5
    out = nl.compile(nl.from_torch(lambda x: (x**5.5 + x**70).sum(-1), x))(x)
    expected = (x.double() ** 5.5 + x.double() ** 70).sum(-1)
    assert float(((out - expected) / expected).abs().max()) < 1e-5
    assert "pow" not in capfd.readouterr().err
