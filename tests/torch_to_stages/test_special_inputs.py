"""Every operation at NaN, infinities, zeros and ties: its values and gradients are PyTorch's, but for a list."""

from __future__ import annotations

import pytest
import torch
from torch_to_stages.special_inputs import groups, unexpected

# Each group in float32, and at night in one of the others, in turn.
TURNS = [
    pytest.param(texts, dtype, marks=marks, id=f"{texts[0]}-{dtype}")
    for n, texts in enumerate(groups(3))
    for dtype, marks in ((torch.float32, ()), ((torch.bfloat16, torch.float64)[n % 2], pytest.mark.nightly))
]


@pytest.mark.one_in(282)
@pytest.mark.parametrize(("texts", "dtype"), TURNS)
def test_values_and_gradients_at_special_inputs_are_those_of_pytorch(texts: tuple[str, ...], dtype: torch.dtype):
    found = [(text, d) for text in texts for d in unexpected(text, dtype)]
    assert not found, "\n".join(f"{text}, {d.style}: {d.what} {d.shown}" for text, d in found)
