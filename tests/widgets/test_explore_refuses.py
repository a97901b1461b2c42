"""What `nl.explore` cannot show is refused, with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import ScheduleError

ROW = torch.zeros(4, 16)
REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a tensor": (lambda: nl.explore(ROW), "this is Tensor", r"from_torch\(function"),  # type: ignore[call-overload]
    "a module and its input": (
        lambda: nl.explore(torch.nn.Softmax(-1), ROW),  # type: ignore[call-overload]
        "one thing, and 1 more is given",
        r"from_torch\(function",
    ),
    "attention": (lambda: nl.explore(nl.attention), "nl.attention takes tensors", r"operators\.attention\.causal\("),
    "torch's attention": (
        lambda: nl.explore(nl.scaled_dot_product_attention),
        "nl.scaled_dot_product_attention takes tensors",
        r"attention\.general\(",
    ),
    "paged attention": (lambda: nl.explore(nl.paged_attention), "nl.paged_attention takes tensors", "explore the op"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_to_write(case: str):
    explore, message, fix = REFUSED[case]
    with pytest.raises(ScheduleError, match=message) as refused:
        explore()
    assert refused.value.help is not None
    assert re.search(fix, refused.value.help)
