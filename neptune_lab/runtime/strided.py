"""Torch tensors with strides of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neptune_lab.tensor_spec import Strides, TensorSpec, span

if TYPE_CHECKING:
    import torch

    from neptune_lab.runtime.load import LoadedKernel


def fits_strides(tensor: torch.Tensor, strides: Strides | None) -> bool:
    """Whether a tensor has these strides (None: is contiguous), apart from its dimensions of size 1."""
    if strides is None:
        return tensor.is_contiguous()
    every = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(size == 1 or own == stride for size, own, stride in every)


def copy_with(tensor: torch.Tensor, strides: Strides | None) -> torch.Tensor:
    """A copy of a tensor with these strides; of a dimension of stride 0, the first index counts."""
    import torch

    if strides is None:
        return tensor.clone(memory_format=torch.contiguous_format)
    memory = torch.empty(span(tensor.shape, strides), dtype=tensor.dtype, device=tensor.device)
    first = tensor
    for dim, stride in enumerate(strides):
        if stride == 0 and tensor.shape[dim] > 1:
            first = first.narrow(dim, 0, 1)
    memory.as_strided(first.shape, strides).copy_(first)
    return memory.as_strided(tensor.shape, strides)


def of_any_strides(kernel: LoadedKernel) -> Callable[..., Any]:
    """A kernel for tensors of any strides: it copies those that it would refuse.

    torch may hand an operator other strides than those that it was traced with.
    """
    import torch

    def taken(tensor: Any, spec: TensorSpec) -> Any:
        """A tensor as the kernel takes it; the kernel says what is wrong with what cannot be copied."""
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout is not torch.strided:
            return tensor
        if tensor.dim() != len(spec.shape):
            return tensor
        strides = spec.strides_at(tensor.shape)
        return tensor if fits_strides(tensor, strides) else copy_with(tensor, strides)

    def launch(*tensors: torch.Tensor) -> Any:
        if kernel.fits(tensors):
            return kernel.launch(*tensors)
        expected = kernel.spec.inputs
        return kernel(*(map(taken, tensors, expected) if len(tensors) == len(expected) else tensors))

    return launch


def drawn(spec: TensorSpec, draw: Any) -> torch.Tensor:
    """An input that `draw` makes: a function from a shape to a contiguous tensor."""
    if spec.strides is None:
        return draw(spec.shape)
    return draw((span(spec.shape, spec.strides),)).as_strided(spec.shape, spec.strides)


__all__ = ["copy_with", "drawn", "fits_strides", "of_any_strides"]
