"""Guards of tensors that are alike but for a length, in one call of C: those that torch.compile has for its graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neptune_lab.runtime.tensor_guards import guards_of

_LENGTH = 2


def alike(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A function that tells whether other tensors are as these.

    It compares class, dtype, device, what torch dispatches by (sparse, negated or conjugated memory, transforms, modes,
    inference mode), requires_grad, the number of dimensions, each size but that of the length, and the strides of the
    last two dimensions.  It is false if two of the tensors are one.

    Returns:
        None if torch has no such guards, or if one of the tensors records gradients, in any mode, or holds negated
        values: no tensors that it tells do.

    >>> tells = alike([torch.zeros(1, 2, 8, 16)])
    >>> tells(torch.ones(1, 2, 5, 16)), tells(torch.ones(1, 3, 8, 16)), tells(torch.ones(1, 2, 8, 16, dtype=torch.half))
    (True, False, False)
    """
    if any(tensor.requires_grad or tensor.is_neg() or tensor.ndim != _LENGTH + 2 for tensor in tensors):
        return None
    sizes: list[list[int | None]] = [[*t.shape] for t in tensors]
    strides: list[list[int | None]] = [[*t.stride()] for t in tensors]
    for of_sizes, of_strides in zip(sizes, strides, strict=True):
        of_sizes[_LENGTH] = None
        of_strides[:_LENGTH] = [None] * _LENGTH
    return guards_of(tensors, sizes, strides)


__all__ = ["alike"]
