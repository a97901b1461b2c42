"""Definitions of operations that have no lowering here: ours, else torch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table as _MORE_OF_TORCH

from neptune_lab.torch_to_stages.definitions import DEFINITIONS
from neptune_lab.torch_to_stages.lowering import lowering_of
from neptune_lab.torch_to_stages.refusals import help_for


def decomposition(operation: Any) -> Callable[..., Any] | None:
    """The definition of an operation by others.

    Args:
        operation: an overload of an ATen operation, or anything else that a graph calls.

    Returns:
        A function that computes it; None if it has a lowering, is refused by its name, or there is none.
    """
    name = getattr(operation, "_opname", "")
    own = DEFINITIONS.get(f"{name}.{operation._overloadname}") if name else None
    if own is not None:
        return own
    if not name or help_for(name) is not None or lowering_of(f"{name}.{operation._overloadname}") is not None:
        return None
    return _table().get(operation) or (_MORE_OF_TORCH.get(operation) if name.startswith(_RESAMPLING) else None)


# Resizing of images, and reads at positions between pixels: torch.export keeps some of these operations whole.
_RESAMPLING = ("upsample_", "_upsample_nearest_exact", "grid_sampler_")


@cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    return dict(torch.export.default_decompositions().items())
