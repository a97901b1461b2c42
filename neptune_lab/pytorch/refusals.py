"""What calls refuse in graphs and outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.differentiable import is_transformed
from neptune_lab.runtime.subclasses import refuse_subclass
from neptune_lab.runtime.torch_state import has_tangent


def refuse_layout(name: str, tensor: torch.Tensor) -> None:
    """Raise LaunchError for a tensor whose elements are not at strides in memory: nested, sparse, of MKL-DNN, or of a
    class that holds other tensors (masked, distributed, quantised)."""
    if tensor.is_nested:
        raise LaunchError(
            f"{name} is a nested tensor; expected a tensor of one shape",
            help="pack the sequences (cu_seqlens_q of nl.attention), or pad them and hide the padding with a mask",
        )
    if tensor.layout != torch.strided:
        raise LaunchError(
            f"{name} has layout {tensor.layout}; expected torch.strided", help="convert it with .to_dense()"
        )
    refuse_subclass(name, tensor)


def refuse_captured_kinds(tensors: Sequence[Any], device: torch.device) -> None:
    """Raise LaunchError for a captured tensor that has no values to compile with."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            refuse_layout("a mod captures a tensor that", tensor)
            if tensor.is_meta and device.type != "meta":
                refuse_captured(tensor, device)


def refuse_captured(tensor: torch.Tensor, device: torch.device) -> None:
    """Raise LaunchError for a captured tensor that is on another device than q, or not at strides in memory."""
    refuse_layout("a mod captures a tensor that", tensor)
    if tensor.device != device and not (tensor.ndim == 0 and tensor.device.type == "cpu"):
        raise LaunchError(
            f"a mod captures a tensor of shape {tuple(tensor.shape)} on {tensor.device}; expected {device}, where q is",
            help=f"make it a torch tensor there, with .to({str(device)!r})",
        )


def refuse_recording(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise LaunchError, naming the first, if tensors of a node of a graph record gradients."""
    for name, tensor in tensors.items():
        if tensor.requires_grad and torch.is_grad_enabled():
            raise LaunchError(
                f"{name} records gradients, and attention inside of a graph of torch.compile has no backward",
                help="compile without fullgraph=True, which leaves the graph for this call; or torch.no_grad()",
            )


def refuse_symbols(*tensors: torch.Tensor) -> None:
    """Raise LaunchError for a size that is a symbol, where Dynamo does not trace the call."""
    for name, tensor in zip("qkv", tensors, strict=True):
        if any(isinstance(size, torch.SymInt) for size in tensor.shape):
            raise LaunchError(
                f"argument {name} has shape {tuple(tensor.shape)}, of symbols, outside of torch.compile",
                help="export with strict=True, or call attention inside of torch.compile",
            )


__all__ = ["refuse_captured", "refuse_captured_kinds", "refuse_layout", "refuse_recording", "refuse_symbols"]


def refuse_gradients(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise LaunchError for the first of these tensors of a call with a cache of pages that records gradients."""
    for name, tensor in tensors.items() if torch.is_grad_enabled() else ():
        if tensor.requires_grad:
            raise LaunchError(
                f"{name} records gradients, and attention on a cache of pages has no backward",
                help="call it under torch.no_grad(), or with the tensor's .detach()",
            )


def refuse_forward_gradients(tensors: Mapping[str, torch.Tensor], captured: Sequence[Any] = ()) -> None:
    """Raise LaunchError for the first tensor that carries a tangent of torch.autograd.forward_ad.

    Args:
        tensors: arguments by name.
        captured: what mods capture.
    """
    if forward_ad._current_level < 0:
        return
    named = {f"argument {name}": tensor for name, tensor in tensors.items()}
    for name, tensor in (named | captured_by_name(captured)).items():
        if has_tangent(tensor):
            raise LaunchError(
                f"{name} carries a forward gradient, and attention has no derivative",
                help="call it with the tensor's .detach()",
            )


def captured_by_name(tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
    """What mods capture, with a name for messages."""
    every = [t for t in tensors if isinstance(t, torch.Tensor)]
    return {f"captured tensor {n} of shape {tuple(t.shape)}": t for n, t in enumerate(every)}


def refuse_transforms(*given: Any) -> None:
    """Raise LaunchError if an argument is a tensor of torch.vmap, torch.func.grad and the like, which cannot transform
    a kernel."""
    if is_transformed(*given):
        raise LaunchError(
            "attention inside torch.vmap or a transform of torch.func: a kernel takes whole tensors",
            help="of torch.vmap, move the mapped axis into the batch: "
            "attention(q.flatten(0, 1), ...).unflatten(0, q.shape[:2]); of torch.func.grad and vjp, give inputs "
            "requires_grad, and call torch.autograd.grad",
        )
