"""Calls kernels with NumPy arrays, for checks and for callers without torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.runtime.load import LoadedKernel
from neptune_lab.runtime.strided import copy_with

if TYPE_CHECKING:
    import torch


def to_tensor(array: np.ndarray, device: Any = "cpu") -> torch.Tensor:
    """A torch tensor of the array's values and dtype (those of ml_dtypes too) on `device`."""
    import torch

    own = np.ascontiguousarray(array).reshape(np.shape(array))  # it gives a number a dimension
    bits = {"bfloat16": np.int16, "float8_e4m3fn": np.int8, "float8_e5m2": np.int8}.get(own.dtype.name)
    if bits is not None:  # torch does not support NumPy's extension dtypes; the bits are the same
        return torch.from_numpy(own.view(bits)).view(getattr(torch, own.dtype.name)).to(device)
    return torch.from_numpy(own).to(device)


def inputs_of(kernel: LoadedKernel, arrays: Sequence[np.ndarray], device: Any) -> list[torch.Tensor]:
    """The arrays as tensors on `device`, with the strides that the kernel takes."""
    specs = kernel.spec.inputs
    tensors = [to_tensor(a, device) for a in arrays]
    if any(spec.strides is not None for spec in specs):
        return [copy_with(t, spec.strides) for t, spec in zip(tensors, specs, strict=True)]
    return tensors


def call_on_arrays(kernel: LoadedKernel, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Copies the inputs to the GPU (or leaves them on the CPU, for the interpreter), launches, and copies back.

    Args:
        arrays: one per input, in order, in the kernel's shapes and dtypes.

    Returns:
        The outputs in float64.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    outputs = kernel(*inputs_of(kernel, arrays, device))
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(o.double().cpu().numpy() for o in several)
