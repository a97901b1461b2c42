"""What an element-wise operation takes: tensors and numbers, and the dtype that they have together."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from neptune_lab.torch_to_stages.values import Value

Number: TypeAlias = float | int | bool
Operand: TypeAlias = Value | Number


def promoted(a: Operand, b: Operand) -> str:
    """The dtype that torch computes with for these operands, without "torch."."""
    return str(torch.result_type(_like(a), _like(b))).removeprefix("torch.")


def _like(x: Operand) -> Any:
    """A small tensor that promotes as `x` does, or the number."""
    return torch.empty((1,) * min(x.ndim, 1), dtype=getattr(torch, x.dtype)) if isinstance(x, Value) else x
