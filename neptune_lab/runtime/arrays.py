"""Kernels called with NumPy arrays, for checks and for people without torch at hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neptune_lab.runtime.load import LoadedKernel


def call_on_arrays(kernel: LoadedKernel, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Copies the inputs to the GPU (or leaves them on the CPU, for the interpreter), launches, and copies back.

    Args:
        arrays: one a input, in order, in the kernel's shapes and dtypes.

    Returns:
        the outputs in float64.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    outputs = kernel(*(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays))
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(o.double().cpu().numpy() for o in several)
