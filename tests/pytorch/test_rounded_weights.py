"""What rounding the softmax's weights to e4m3 costs: the error that docs/concepts/numbers.md states, by calculation."""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import DEVICE

import neptune_lab as nl

E4 = torch.float8_e4m3fn
TYPICAL = 1 / math.sqrt(2048 * math.log(2))


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.float().to(E4).double()


def weights(deviation: float, rows: int = 64, keys: int = 4096) -> torch.Tensor:
    """Log-normal weights, the largest of each row 256, as in a kernel."""
    scores = torch.randn(rows, keys, dtype=torch.double, generator=torch.Generator().manual_seed(0)) * deviation
    return (scores - scores.amax(1, keepdim=True)).exp() * 256


def error(got: torch.Tensor, w: torch.Tensor) -> float:
    """The relative error of a result, if values are independent and have mean 0."""
    return float((got - w).norm() / w.norm())


def test_the_typical_error():
    mean = math.fsum(1 / m**2 for m in (2 ** ((n + 0.5) / 4096) for n in range(4096))) / 4096
    assert math.isclose(math.sqrt(mean / 12) / 8, TYPICAL, rel_tol=1e-6)
    assert 2.6e-2 < TYPICAL < 2.7e-2
    for deviation in (0.25, 0.5, 0.75):
        w = weights(deviation)
        assert error(rounded(w), w) == pytest.approx(TYPICAL, rel=0.02)
    w = weights(3)  # few weights dominate
    assert error(rounded(w), w) < 0.9 * TYPICAL


def test_a_weight_departs_by_at_most_a_seventeenth():
    w = torch.linspace(2.0**-6, 448, 100_001, dtype=torch.double)
    relative = (rounded(w) - w).abs() / w
    assert float(relative.max()) <= 1 / 17
    assert float(relative.max()) > 1 / 17.01


def test_what_does_not_help():
    w = weights(1)
    factors = [2 ** (-n / 8) for n in range(8)]
    scaled = torch.stack([(rounded(w * f) / f - w).square().sum(1) for f in factors]).amin(0)
    assert math.sqrt(float(scaled.sum() / w.square().sum())) > 2.4e-2
    for deviation, least, most in ((0.5, 1.1e-2, 1.4e-2), (1.5, 2.1e-2, 2.6e-2)):
        w = weights(deviation)
        mean = w.reshape(64, -1, 256).mean(2).repeat_interleave(256, 1)
        assert least < error(rounded(w - mean) + mean, w) < most


def test_what_would_help():
    """What is left of every other weight, in a second product."""
    w = weights(0.5)
    got = rounded(w)
    got[:, ::2] += rounded((w - got)[:, ::2])
    assert error(got, w) == pytest.approx(TYPICAL / math.sqrt(2), rel=0.02)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weight", [None, 17 / 32 - 1e-4])
def test_a_result_departs_by_at_most_a_seventeenth(weight: float | None):
    """Random scores; and rows in which all weights but one are the worst to round, whose errors do not cancel."""
    q, k, v = (torch.randn(1, 1, n, 16, device=DEVICE) for n in (16, 96, 96))
    q8, k8, v8 = (t.to(E4) for t in (q * (weight is None), k, v))
    least = math.log(weight or 1)

    def score_mod(score, b, h, i, j):
        return torch.where(j == 0, score, score + least)

    out = nl.attention(q8, k8, v8, score_mod=score_mod, weights_dtype=E4)[0, 0].double()
    scores = q8[0, 0].double() @ k8[0, 0].double().mT / 4
    scores[:, 1:] += least
    p, values = scores.softmax(1), v8[0, 0].double()
    off = (out - p @ values).abs()
    assert bool((off <= (1 / 17 + 1e-3) * (p @ values.abs()) + 2**-8 * out.abs()).all())
    if weight is not None:
        assert bool((off > 0.05 * (p @ values).abs()).any())
