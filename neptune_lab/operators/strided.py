"""Arrays with strides of their own: what a tensor's memory holds."""

from __future__ import annotations

import numpy as np

from neptune_lab.tensor_spec import Strides, span


def with_strides(array: np.ndarray, strides: Strides) -> tuple[np.ndarray, np.ndarray]:
    """A copy of an array whose dimensions after the first have these strides, and its memory.

    Args:
        array: the first dimension counts tensors, each with memory of its own.
        strides: of each tensor, in elements.

    Returns:
        The copy, in which elements that share memory have one value; and the memory, (tensors, elements), with NaN (of
        integers 0) between the elements.
    """
    blank = np.nan if array.dtype.kind == "f" else 0
    memory = np.full((len(array), span(array.shape[1:], strides)), blank, array.dtype)
    steps = (memory.strides[0], *(stride * memory.itemsize for stride in strides))
    made = np.lib.stride_tricks.as_strided(memory, array.shape, steps)
    made[...] = array
    return made, memory


def sharing(array: np.ndarray, strides: Strides | None) -> np.ndarray:
    """The array, contiguous, with one value for all elements that share memory under these strides."""
    return array if strides is None else np.ascontiguousarray(with_strides(array[None], strides)[0][0])


__all__ = ["sharing", "with_strides"]
