"""Measures the best rates of the local GPU: copying memory, and multiplying matrices."""

from __future__ import annotations

from functools import cache

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.timing import Ceiling, has_gpu, measure

# Far more than a second-level cache holds, and so long that the launch overhead does not count.
COPIED_BYTES = 1 << 30
MATRIX_SIDE = 8192


@cache
def measure_ceilings(device: int | None = None) -> Ceiling:
    """Copy rate (bytes read plus bytes written) and the rate of a float16 matrix product (cuBLAS), by medians.

    Takes about a second, the first time in a process.

    Args:
        device: index of the GPU; None: the current one.

    Raises:
        MeasureError: there is no GPU here.
    """
    if not has_gpu():
        raise MeasureError(
            "no GPU here: its ceilings cannot be measured", help='Target("h200").ceiling has those of a data sheet'
        )
    import torch

    with torch.cuda.device(torch.cuda.current_device() if device is None else device):
        source = torch.zeros(COPIED_BYTES, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        copied = measure(lambda: target.copy_(source), repetitions=20, flush_l2=False)
        a, b = (torch.randn(MATRIX_SIDE, MATRIX_SIDE, dtype=torch.float16, device="cuda") for _ in range(2))
        out = torch.empty_like(a)
        multiplied = measure(lambda: torch.mm(a, b, out=out), repetitions=20, flush_l2=False)
    assumed = f"measured: a copy of {COPIED_BYTES >> 20} MiB, a float16 product of {MATRIX_SIDE} x {MATRIX_SIDE}"
    return Ceiling(copied.device, multiplied.tflops(2 * MATRIX_SIDE**3), copied.gbps(2 * COPIED_BYTES), assumed)
