"""Mods over tensors without values, as torch's tracers have them: copies over zeros, by which kernels are compiled.

What a kernel is depends on the shapes and dtypes of captured tensors, not on their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import _disable_current_modes

from neptune_lab.operators.reach import Rebuild
from neptune_lab.pytorch.mods import Reading, read

_Mods = TypeVar("_Mods", bound=tuple[Any, ...])


def over_examples(mods: _Mods, reading: Reading) -> tuple[_Mods, Reading, Sequence[torch.Tensor]]:
    """The mods over zeros in place of tensors without values.

    Args:
        mods: of a call, None for one that is not there.
        reading: of them.

    Returns:
        The mods, their reading, and for each of its tensors the one that a kernel reads: the caller's.
    """
    if not any(isinstance(t, torch.Tensor) and is_fake(t) for t in reading.tensors):
        return mods, reading, reading.tensors
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
    over: Any = tuple(None if mod is None else rebuild.value("", mod) for mod in mods)
    own = read(*over)
    return over, own, tuple(given.get(id(t), t) for t in own.tensors)


__all__ = ["over_examples"]
