"""What tests of calls in graphs share: tensors, the reference on them, and the error of a result."""

from __future__ import annotations

from typing import Any

import torch
from attention_reference import DEVICE, reference, tensors

SHAPE = (1, 2, 16, 16)


def expected(inputs: Any, score_mod: Any = None, mask_mod: Any = None) -> Any:
    q, k, v = inputs
    return reference(q, k, v, score_mod, mask_mod)


def drawn(q: Any, kv: Any = None) -> Any:
    return tensors(q, kv)


def random(*shape):
    return torch.randn(*shape, device=DEVICE)


def error(one, other):
    return float((one.double() - other.double()).abs().max())
