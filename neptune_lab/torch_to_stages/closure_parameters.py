"""Parameters that a traced function reads from outside, in place of what torch's exporter takes of them.

The exporter takes the `.data` of a parameter that belongs to no module that it exports: another tensor of the same
memory, which records no gradients.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch


def with_parameters(function: Callable[..., Any], held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that a function holds, with the parameters themselves in place of other tensors of their memory.

    Args:
        function: that was traced.
        held: what it holds, by name.
    """
    if all(tensor.requires_grad for tensor in held.values()):
        return dict(held)
    known = {_memory(parameter): parameter for parameter in _parameters(function)}
    return {name: known.get(_memory(tensor), tensor) for name, tensor in held.items()}


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors that are kept are one, or views of the same elements."""
    return _memory(one) == _memory(other)


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type == "meta" or not tensor.numel():
        return (id(tensor),)  # it has no memory, or another class knows where it is
    return tensor.data_ptr(), tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride()


def _parameters(function: Callable[..., Any]) -> Iterator[torch.Tensor]:
    """Those among the closure and globals of a function, and of modules there."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType):
        return
    found = inspect.getclosurevars(plain)
    for value in (*found.nonlocals.values(), *found.globals.values()):
        if isinstance(value, torch.nn.Parameter):
            yield value
        elif isinstance(value, torch.nn.Module):
            yield from value.parameters()


__all__ = ["same_memory", "with_parameters"]
