"""Every operation at NaN, infinities, zeros and ties: its values and gradients are PyTorch's, but for a list."""

from __future__ import annotations

import pytest
import torch
from torch_to_stages.special_inputs import groups, unexpected

AT_NIGHT = [pytest.param(dtype, marks=pytest.mark.nightly) for dtype in (torch.bfloat16, torch.float64)]


@pytest.mark.one_in(47)
@pytest.mark.parametrize("dtype", [torch.float32, *AT_NIGHT], ids=str)
@pytest.mark.parametrize("texts", groups(6), ids=lambda texts: texts[0])
def test_values_and_gradients_at_special_inputs_are_those_of_pytorch(texts: tuple[str, ...], dtype: torch.dtype):
    found = [(text, d) for text in texts for d in unexpected(text, dtype)]
    assert not found, "\n".join(f"{text}, {d.style}: {d.what} {d.shown}" for text, d in found)
