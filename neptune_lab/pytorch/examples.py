"""Mods over tensors without values, as torch's tracers have them: copies over zeros, by which kernels are compiled.

What a kernel is depends on the shapes and dtypes of captured tensors, not on their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import _disable_current_modes

from neptune_lab.operators.reach import Rebuild
from neptune_lab.pytorch.mods import Reading, read


def over_examples(
    score_mod: Any, mask_mod: Any, reading: Reading
) -> tuple[tuple[Any, Any], Reading, Sequence[torch.Tensor]]:
    """The mods over zeros in place of tensors without values.

    Args:
        score_mod, mask_mod: of a call.
        reading: of them.

    Returns:
        The mods, their reading, and for each of its tensors the one that a kernel reads: the caller's.
    """
    if not any(isinstance(t, torch.Tensor) and is_fake(t) for t in reading.tensors):
        return (score_mod, mask_mod), reading, reading.tensors
    made: dict[int, Any] = {}
    given: dict[int, Any] = {}

    def example(_: str, tensor: Any) -> Any:
        if not (isinstance(tensor, torch.Tensor) and is_fake(tensor)):
            return tensor
        if id(tensor) not in made:
            with _disable_current_modes():
                made[id(tensor)] = torch.zeros(tuple(map(int, tensor.shape)), dtype=tensor.dtype)
            given[id(made[id(tensor)])] = tensor
        return made[id(tensor)]

    rebuild = Rebuild(example)
    mods = tuple(None if mod is None else rebuild.value("", mod) for mod in (score_mod, mask_mod))
    own = read(*mods)
    return (mods[0], mods[1]), own, tuple(given.get(id(t), t) for t in own.tensors)


__all__ = ["over_examples"]
