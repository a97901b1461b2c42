"""Backward passes like an earlier one, which go to the kernel's direct launcher after one look at their tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad

from neptune_lab.runtime.direct import unnegated
from neptune_lab.runtime.load import LoadedKernel
from neptune_lab.runtime.tensor_guards import same_as

# From the saved tensors and the cotangents to the gradients, behind None; None: the pass is another one.
Known = Callable[[Sequence[torch.Tensor], Sequence["torch.Tensor | None"]], "tuple[torch.Tensor | None, ...] | None"]


def known_backward(
    kernel: LoadedKernel,
    sources: Sequence[tuple[int, int]],
    places: Sequence[int | None],
    given: tuple[torch.Tensor, ...],
    saved: int,
) -> Known | None:
    """A function for passes like one that was launched, in less of the host's time.

    It gives the gradients only of tensors that have class, dtype, device, sizes and strides of `given`, outside of all
    modes and transforms that the earlier pass was outside of.

    Args:
        kernel: the backward kernel.
        sources: for each of its inputs, the index of the saved tensor, and -1 or the index of a cotangent.
        places: for each gradient, which of the kernel's results it is, or None.
        given: the kernel's inputs in that pass.
        saved: the number of saved tensors.

    Returns:
        None if the kernel has no direct launcher yet, is for many sizes, or does not take `given` as they are.
    """
    launch = kernel.direct_on(given[0].device)
    if launch is None or kernel.spec.ranges or len(given) < 2 or not kernel.fits(given):
        return None
    tells = same_as(given)
    if tells is None:
        return _never
    launch = unnegated(launch)
    pick = itemgetter(*(tensor if cotangent < 0 else saved + cotangent for tensor, cotangent in sources))
    results = len(kernel.spec.outputs)
    in_order = results > 1 and [*places] == [*range(results)]

    def call(saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> Any:
        tensors = pick((*saved, *grads))
        if not tells(*tensors) or forward_ad._current_level >= 0:
            return None
        found = launch(*tensors)
        if in_order:
            return (None, *found)
        every = found if results > 1 else (found,)
        return (None, *[None if place is None else every[place] for place in places])

    return call


def _never(saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
    """For tensors that torch has no guards of, such as one tensor in two places."""


__all__ = ["Known", "known_backward"]
