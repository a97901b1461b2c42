"""Whether there is a device to measure on."""

from __future__ import annotations

from neptune_lab.errors import MeasureError


def check_device(tiny: bool) -> None:
    """Raise MeasureError without a GPU, unless the sizes are tiny; those are interpreted."""
    from neptune_lab.runtime.device import ask_for_interpreter

    ask_for_interpreter()  # before the modules of the contestants import Triton
    from neptune_lab.bench.tensors import device_name

    if device_name() == "cpu" and not tiny:
        raise MeasureError(
            "no CUDA GPU was found: nothing can be timed",
            help="--tiny checks the numbers, --report draws the results of an H200",
        )
