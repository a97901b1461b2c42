"""Levels of torch.func's transforms that a failed trace leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
_dual: Any = forward_ad


@contextmanager
def levels_restored() -> Iterator[None]:
    """Ends the levels of torch.func (vmap, jvp, grad) that were entered inside and not left, also after an error.

    The exporter writes `vmap` and `jvp` as operations that enter and leave a level.  If an operation between them
    raises an error while the graph is traced again, the level stays, and every tensor of the process is wrapped from
    then on.
    """
    depth, dual = _functorch.get_dynamic_layer_stack_depth(), _dual._current_level
    try:
        yield
    finally:
        while _dual._current_level > dual:
            forward_ad.exit_dual_level()
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def is_level_of_derivative(target: object) -> bool:
    """Whether a node's operation enters, leaves or unwraps a level of a derivative; those of `vmap` are taken apart."""
    name = getattr(target, "__name__", "")
    return getattr(target, "__module__", "") == "torch._functorch.predispatch" and any(
        part in name for part in ("grad", "jvp", "dual")
    )
