"""torch's own guards of tensors, those that torch.compile has for its graphs: one call of C tells whether tensors are
like others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# For each tensor, its sizes or strides; None: any.
Extents = Sequence[Sequence[int | None]]


def guards_of(tensors: Sequence[torch.Tensor], sizes: Extents, strides: Extents) -> Callable[..., bool] | None:
    """A function that tells whether other tensors are as these, and no two of them are one.

    It compares class, dtype, device, what torch dispatches by (sparse, negated or conjugated memory, transforms, modes,
    inference mode), requires_grad, the number of dimensions, and these sizes and strides.

    Returns:
        None if torch has no such guards, or two of the tensors are one.
    """
    import torch

    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards  # pyright: ignore[reportAttributeAccessIssue]
        made = guards(*tensors, dynamic_dims_sizes=[*map(list, sizes)], dynamic_dims_strides=[*map(list, strides)])
        tells: Callable[..., bool] = made.check
        return tells if tells(*tensors) is True else None
    except (AttributeError, RuntimeError, TypeError):  # another version of torch
        return None


def same_as(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """`guards_of` with all sizes and strides of the tensors; None also if one of them holds negated values.

    >>> import torch
    >>> tells = same_as([torch.zeros(2, 3), torch.zeros(4)])
    >>> tells(torch.ones(2, 3), torch.ones(4)), tells(torch.ones(3, 2).T, torch.ones(4)), tells(torch.ones(2, 3), None)
    (True, False, False)
    """
    if any(tensor.is_neg() for tensor in tensors):
        return None
    return guards_of(tensors, [[*t.shape] for t in tensors], [[*t.stride()] for t in tensors])


__all__ = ["guards_of", "same_as"]
