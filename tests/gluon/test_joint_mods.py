"""One kernel of both nests of a backward pass under mods of all kinds, simulated and compared with the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_turns import half

import neptune_lab as nl
from neptune_lab.errors import EmitError
from neptune_lab.operators import attention, training
from neptune_lab.pipeline.joint import QUERIES
from neptune_lab.pipeline.validate.at_sizes import wrong_at

BATCH, HEADS, LENGTH = 2, 2, 300
SLOPES, PAIRS, CAPS = torch.tensor([0.5, 0.125]), torch.tensor([[0.5, 0.25], [-0.5, 0.125]]), torch.tensor([2.0, 3.0])
NUMBER, HALVES = torch.tensor(0.7), torch.tensor([0.5, 0.25], dtype=torch.float16)
OF_PLACES = torch.linspace(-1, 1, LENGTH)
OF_HEADS = torch.stack([OF_PLACES, OF_PLACES.flip(0)])
LENGTHS = torch.tensor([100, 250])


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


MODS: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "slopes": (lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q), causal),
    "slopes of 16 bits": (lambda s, b, h, q, kv: s - HALVES[h] * (q - kv), causal),
    "slopes of samples and heads": (lambda s, b, h, q, kv: s + PAIRS[b, h] * (q - kv), causal),
    "a temperature": (lambda s, b, h, q, kv: s * NUMBER, causal),
    "soft caps": (lambda s, b, h, q, kv: CAPS[h] * torch.tanh(s / CAPS[h]), causal),
    "a bias of keys": (lambda s, b, h, q, kv: s + OF_PLACES[kv], causal),
    "a bias of keys and heads": (lambda s, b, h, q, kv: s + OF_HEADS[h, kv], None),
    "a bias of queries": (lambda s, b, h, q, kv: s + OF_PLACES[q], causal),
    "a scale of queries and heads": (lambda s, b, h, q, kv: s * OF_HEADS[h, q], None),
    "a logarithm of the distance": (lambda s, b, h, q, kv: s - torch.log(1.0 + (q - kv).abs()), causal),
    "lengths": (None, lambda b, h, q, kv: kv < LENGTHS[b]),
    "lengths, causal": (None, lambda b, h, q, kv: (kv < LENGTHS[b]) & (q >= kv)),
    "a window for each head": (None, lambda b, h, q, kv: (q >= kv) & (q - kv < 64 * (h + 1))),
    "stripes": (None, lambda b, h, q, kv: (q // 16) % 2 == (kv // 16) % 2),
    "a prefix": (None, lambda b, h, q, kv: (q >= kv) | (kv < 70)),
    "a band": (None, lambda b, h, q, kv: (q - kv < 100) & (kv - q < 50)),
    "later keys": (None, lambda b, h, q, kv: q <= kv),
    "every third key": (None, lambda b, h, q, kv: (q >= kv) & ((q - kv) % 3 == 0)),
    "a window and sinks": (None, lambda b, h, q, kv: (q >= kv) & ((q - kv < 60) | (kv < 20))),
}
# (the tiles of the nest over keys are other ones there, and which pairs the mask hides differs from head to head)
REFUSED = {("a window for each head", 128)}


@pytest.mark.one_in(64)
@pytest.mark.parametrize(("name", "width", "deterministic"), half(MODS, [64, 128], [True, False]))
def test_mods(name: str, width: int, deterministic: bool):
    op = attention.general(BATCH, HEADS, LENGTH, LENGTH, width, *MODS[name])
    passes = training(op, ("q", "k", "v")).backward
    options: dict[str, Any] = {
        "template": "rolling_update",
        "config": nl.TileConfig(block_q=128, block_kv=QUERIES[width]),
        "code": nl.CodeOptions(code="gluon", joint=True, deterministic=deterministic),
        "target": "h100",
        "validate": "none",
    }
    if (name, width) in REFUSED:
        with pytest.raises(EmitError, match="does not visit all pairs"):
            nl.compile(passes, **options)
    else:
        assert wrong_at(nl.compile(passes, **options).triton, passes) is None
