"""What is active in torch around a call: transforms, modes, a trace, the current GPU, each by one function of C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C

# The innermost transform of torch.func, or None.
transform: Callable[[], Any] = _C._functorch.peek_interpreter_stack
# The number of modes that see every operator.
modes: Callable[[], int] = _C._len_torch_dispatch_stack
# The state of torch.jit.trace, or None.
tracing: Callable[[], Any] = _C._get_tracing_state
# The index of the current GPU.
current_gpu: Callable[[], int] = getattr(_C, "_cuda_getDevice", torch.cuda.current_device)


def is_watched() -> bool:
    """Whether torch has to see each operator: for a mode, a transform, a trace, or tangents."""
    watched = modes() or transform() is not None or tracing() is not None
    return bool(watched) or forward_ad._current_level >= 0


def has_tangent(tensor: Any) -> bool:
    """Whether a tensor carries a tangent of torch.autograd.forward_ad.

    Dynamo, which traces our functions behind a graph break, would take it that none does.
    """
    if forward_ad._current_level < 0:
        return False
    dynamo: Any = sys.modules.get("torch._dynamo")
    return (_has_tangent if dynamo is None else dynamo.disable(_has_tangent))(tensor)


def _has_tangent(tensor: Any) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def is_plain(tensors: Sequence[Any], cotangents: Sequence[Any] | None = None) -> bool:
    """Whether these are tensors that a kernel can be launched on, and nothing but the kernel has to see the launch.

    Args:
        tensors: what the kernel takes.
        cotangents: those among them that may be batches of `is_grads_batched=True`, or None in their place; None: all.
    """
    for tensor in tensors:
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            return False
    for tensor in tensors if cotangents is None else cotangents:  # (no attribute of the type tells)
        if tensor is not None and _C._functorch.is_legacy_batchedtensor(tensor):
            return False
    return not is_watched()


__all__ = ["current_gpu", "has_tangent", "is_plain", "is_watched", "modes", "tracing", "transform"]
