"""Which integers of an input a function takes as positions or labels, and the check of those that a call gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neptune_lab.errors import LaunchError


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The range of the integers of an input.

    Args:
        place: of the input among the operator's.
        name: of the input.
        low, high: the smallest and the largest.
        besides: one more integer, a label that is ignored; None: there is none.
        line: the user's line that takes them, for messages; "" if it is not known.
    """

    place: int
    name: str
    low: int
    high: int
    besides: int | None = None
    line: str = ""


def check_indices(limits: Sequence[IndexLimits], tensors: Sequence[Any]) -> None:
    """Raise LaunchError for an integer that is out of range, if it is in the memory of the CPU.

    On a GPU, a check would wait for the kernels before it; the kernel reads 0 there.

    Args:
        limits: of an operator whose sizes are numbers.
        tensors: its inputs, in order; what is no tensor is not looked at.
    """
    for limit in limits:
        tensor: Any = tensors[limit.place] if limit.place < len(tensors) else None
        if getattr(getattr(tensor, "device", None), "type", "") != "cpu" or not tensor.numel():
            continue
        wrong = (tensor < limit.low) | (tensor > limit.high)
        if limit.besides is not None:
            wrong &= tensor != limit.besides
        if wrong.any():
            also = "" if limit.besides is None else f", or {limit.besides}"
            raise LaunchError(
                f"argument {limit.name} holds {tensor[wrong][0].item()}; expected integers from {limit.low} to "
                f"{limit.high}{also}" + (f", in {limit.line}" if limit.line else ""),
                help="PyTorch refuses such an index too; on a GPU, where nothing is checked, the kernel reads 0 there",
            )


__all__ = ["IndexLimits", "check_indices"]
