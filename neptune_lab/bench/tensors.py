"""The inputs of a setup, created in each process; the same for every contestant."""

from __future__ import annotations

import torch

from neptune_lab.errors import MeasureError
from neptune_lab.operators import Operator

SEED = 0


def device_name() -> str:
    """The device of tensors: "cuda", or "cpu" without a GPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_memory() -> int:
    """Bytes of memory for all tensors; 8 GiB without a GPU."""
    if not torch.cuda.is_available():
        return 8 << 30
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


def make_tensors(op: Operator) -> tuple[torch.Tensor, ...]:
    """Standard normal inputs in the operator's dtypes, from a fixed seed.

    Raises:
        MeasureError: an input that is not floating point, or one that a mod captured.
    """
    device = device_name()
    generator = torch.Generator(device).manual_seed(SEED)
    made = []
    for spec in op.inputs:
        dtype = getattr(torch, spec.dtype)
        if not dtype.is_floating_point or spec.name in op.captured:
            raise MeasureError(
                f"{op.name} takes {spec}: the benchmark makes normal floating-point inputs only",
                help="leave this operator out of the benchmark, or time it with nl.tune",
            )
        made.append(torch.randn(spec.shape, dtype=dtype, device=device, generator=generator))
    return tuple(made)
