"""`nl.attention` beside FlexAttention's own arithmetic: quotients that are cut, powers, NaN and infinities."""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import DEVICE, causal, flex, reference, tensors
from by_turns import in_turn

import neptune_lab as nl

W = 7


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-5) -> None:
    """NaN at the same places, and close elsewhere."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert (found - expected).nan_to_num().abs().max() < tolerance


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: s + torch.ceil(kv / 7),
        lambda s, b, h, q, kv: s + torch.floor((q - kv) / 7),
        lambda s, b, h, q, kv: s + torch.floor(kv / W) * 0.25,
        lambda s, b, h, q, kv: s + (kv * 0.1 * 10 // 3) * 0.5,
        lambda s, b, h, q, kv: torch.where((kv / 3) * 3 == kv, s, s * 2),
        lambda s, b, h, q, kv: s + torch.floor(torch.sqrt(kv + 0.0)),
    ],
)
def test_quotients_that_are_cut_are_those_of_ieee_arithmetic(score_mod):
    q, k, v = tensors((1, 1, 24, 16), (1, 1, 57, 16))
    same(nl.attention(q, k, v, score_mod=score_mod), flex(q, k, v, score_mod))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q, kv: kv / 7.0 == kv // 7,
        lambda b, h, q, kv: (q / W - kv / W < 1.0) & (kv / W - q / W <= 1.0),
        lambda b, h, q, kv: (q / 5 - kv / 5) * 5 == q - kv,
    ],
)
def test_masks_made_of_quotients(mask_mod):
    q, k, v = tensors((1, 1, 24, 16), (1, 1, 57, 16))
    same(nl.attention(q, k, v, mask_mod=mask_mod), flex(q, k, v, None, mask_mod))


BY_NIGHT = (3, 4, 6, 2.0, -5)  # beside others of their kind


@pytest.mark.nightly
@pytest.mark.parametrize(
    "exponent",
    [
        *(0, 1, 2, 5, 7, 0.5, 1.5, 5.0, -1, -2, -0.5),
        *(pytest.param(exponent, marks=pytest.mark.nightly) for exponent in BY_NIGHT),
    ],
)
def test_powers_of_scores(exponent):
    q, k, v = tensors((1, 1, 16, 16))
    mod = lambda s, b, h, q, kv: (s * 0.5) ** exponent  # noqa: E731
    same(nl.attention(q, k, v, score_mod=mod), flex(q, k, v, mod), 1e-3 if exponent < 0 else 2e-5)


@pytest.mark.nightly
def test_powers_of_positions():
    q, k, v = tensors((1, 1, 16, 16))
    for mod in (
        lambda s, b, h, q, kv: s + 0.9 ** (q - kv),
        lambda s, b, h, q, kv: s * (kv - 8.0) ** torch.floor(q / 4),
    ):
        same(nl.attention(q, k, v, score_mod=mod), flex(q, k, v, mod), 1e-4)
    signs = lambda s, b, h, q, kv: s + (-0.5) ** kv  # noqa: E731
    # FlexAttention 2.11 takes this for -(0.5 ** kv).
    same(nl.attention(q, k, v, score_mod=signs).double(), reference(q, k, v, signs))


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("value", "name", "mask_mod"),
    in_turn(
        [math.nan, math.inf, -math.inf],
        ["q", "k", "bias"],
        [None, causal, lambda b, h, q, kv: (q // 8 == kv // 8) & (kv != 3)],
        every=3,
    ),
)
def test_special_values_stay_in_the_rows_that_see_them(value, name, mask_mod):
    """A row of NaN scores is NaN, not 0; behind a mask nothing of q, k or a bias is seen."""
    q, k, v = tensors((1, 2, 32, 16))
    bias = torch.zeros(32, 32, device=DEVICE)
    if name == "q":
        q[0, 0, 3] = value
        q[0, 1, 5, 2] = value
    elif name == "k":
        k[0, 1, 17, 3] = value
        k[0, 0, 3] = value
    else:
        bias[3] = value
        bias[9, 5] = value
    mod = lambda s, b, h, q, kv: s + bias[q, kv]  # noqa: E731
    same(nl.attention(q, k, v, score_mod=mod, mask_mod=mask_mod), flex(q, k, v, mod, mask_mod))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_special_values_in_v(value):
    """Each query that sees the key gets the value's class; one that does not gets NaN, 0 times the value, as in the
    definition, or the rest of its row, where the key's tile is skipped: never another number."""
    q, k, v = tensors((1, 1, 128, 16))
    v[0, 0, 17, 3] = value
    same(nl.attention(q, k, v), flex(q, k, v))
    found, expected = nl.attention(q, k, v, mask_mod=causal), flex(q, k, v, None, causal)
    without = flex(q, k, v.nan_to_num(0, 0, 0), None, causal)
    same(found[:, :, 17:], expected[:, :, 17:])
    same(found[..., 4:], expected[..., 4:])
    hidden = found[0, 0, :17, 3]
    assert (hidden.isnan() | ((hidden - without[0, 0, :17, 3]).abs() < 2e-5)).all()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, kv: torch.maximum(s, s * 2),
        lambda s, b, h, q, kv: torch.minimum(s * 2, s),
        lambda s, b, h, q, kv: torch.where(s > 0, s, 0.0),
        lambda s, b, h, q, kv: torch.tanh(s) * 3,
    ],
)
def test_nan_goes_through_functions_as_in_torch(mod):
    q, k, v = tensors((1, 1, 16, 16))
    q[0, 0, 3], q[0, 0, 5, 0] = math.nan, math.inf
    same(nl.attention(q, k, v, score_mod=mod), flex(q, k, v, mod))


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: s**33 * 1e-3,
        lambda s, b, h, q, kv: s * 7e37 * 0.25,
        lambda s, b, h, q, kv: s / 1e-20 / 1e-17,
        lambda s, b, h, q, kv: torch.tanh(s * 1e20) * 3e38,
        lambda s, b, h, q, kv: torch.where(q >= kv, s * 1e16, -3e38) * 1e-3,
        lambda s, b, h, q, kv: s - (q.float() - 7) * 5e36,
        lambda s, b, h, q, kv: s + kv * 5e36,
    ],
)
def test_scores_up_to_the_largest_float_stay_finite(score_mod):
    q, k, v = tensors((1, 1, 16, 16), (1, 1, 40, 16))
    expected = flex(q, k, v, score_mod)
    assert expected.isfinite().all()
    same(nl.attention(q, k, v, score_mod=score_mod), expected)


CONDITIONS = (
    lambda b, h, q, kv: (kv / 16 == kv // 16) & (q.float() * 0.7 > kv - 3),
    lambda b, h, q, kv: ((q // 7 == kv // 7) & (kv < q + 3)) & ~(kv / 3 == kv // 3 + 1),
    lambda b, h, q, kv: (q / 3 < 2.5) | (kv / 2 < 1.5),
    lambda b, h, q, kv: (h / 3 < 2.5) & (b / 2 < 1.5) & (kv / 2 < 7.0),
    lambda b, h, q, kv: torch.where(q % 7 > 0, kv / 16 == kv // 16, (q // 7 - kv // 7).abs() <= 1) & (q < 4),
)


# By day each condition at half of the pairs of lengths, in turn, and at 5 by 7.
@pytest.mark.one_in(15)
@pytest.mark.parametrize(
    ("mask_mod", "q_len", "kv_len"),
    [
        pytest.param(mask_mod, *lengths, marks=() if (n + m) % 2 == 0 or lengths == (5, 7) else pytest.mark.nightly)
        for n, mask_mod in enumerate(CONDITIONS)
        for m, lengths in enumerate([(1, 1), (2, 1), (1, 5), (5, 1), (5, 7)])
    ],
)
def test_conditions_of_floats_with_and_without_axes_combine(mask_mod, q_len, kv_len):
    q, k, v = tensors((1, 1, q_len, 16), (1, 1, kv_len, 16))
    same(nl.attention(q, k, v, mask_mod=mask_mod), flex(q, k, v, None, mask_mod))


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: (s * 1e25 * 1e25 * 1e-25).clamp(-3e38, 3e38),
        lambda s, b, h, q, kv: s / 1e-30 / 1e30,
        lambda s, b, h, q, kv: s * 1e-40 * 1e40,  # the one rounds to a denormal, the other to infinity
        lambda s, b, h, q, kv: (s + 1e30) - 1e30,
        lambda s, b, h, q, kv: torch.exp((s + 1e6) - 1e6),
        lambda s, b, h, q, kv: s - s,
        lambda s, b, h, q, kv: torch.where(torch.isnan(s), 1.0, s),
        lambda s, b, h, q, kv: torch.where(~(s < 1), s, -torch.inf),
        lambda s, b, h, q, kv: torch.where(s == s, s * 1e-30, 0.0),
        lambda s, b, h, q, kv: 0 / s,
    ],
)
def test_scores_are_computed_operation_by_operation(score_mod):
    """Each of these is another function over the reals."""
    q, k, v = tensors((1, 1, 9, 16))
    for row, size in enumerate((1e-25, 1e-12, 1e12, 1e25, 1e38, 0.0, math.inf, math.nan)):
        q[:, :, row] *= size
    same(nl.attention(q, k, v, score_mod=score_mod), flex(q, k, v, score_mod))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bias", [False, True])
def test_products_that_overflow_stay_lost(bias):
    """A score of +inf makes its row NaN, also where a later factor would bring the product back into range."""
    q, k, v = tensors((1, 1, 8, 16))
    table = torch.randn(8, 8, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    mod = lambda s, b, h, i, j: s * 1e-20 + table[i, j] * bias  # noqa: E731
    q[:, :, 2:6] = torch.tensor([1e20, -1e20, 1e20, 1e20], device=DEVICE)[:, None]
    k[0, 0, 4, 5] = 1e30
    expected = flex(q, k, v, mod)
    assert expected[0, 0, [2, 4, 5]].isnan().all()
    assert expected[0, 0, 3].isfinite().all()
    same(nl.attention(q, k, v, score_mod=mod), expected)


@pytest.mark.nightly
def test_a_scale_of_nothing_under_a_mask():
    """Whether a score is finite is a comparison with infinity, which no index analysis takes for its own."""
    q, k, v = tensors((1, 1, 9, 16))
    least = torch.finfo(torch.float32).min
    mod = lambda s, b, h, q, kv: s * 0 + least  # noqa: E731
    mask = lambda b, h, q, kv: kv <= q  # noqa: E731
    same(nl.attention(q, k, v, score_mod=mod, mask_mod=mask), flex(q, k, v, mod, mask))
    same(nl.attention(q, k, v, mask_mod=mask, scale=0.0), flex(q, k, v, mask_mod=mask, scale=0.0))
