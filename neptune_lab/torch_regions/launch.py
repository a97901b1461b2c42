"""A region's kernel as a torch operator, which runs the region's own operations if the kernel cannot be launched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from neptune_lab.errors import LaunchError
from neptune_lab.runtime import interpreting
from neptune_lab.runtime.load import LoadedKernel, load
from neptune_lab.runtime.torch_op import torch_op
from neptune_lab.torch_regions.record import Region
from neptune_lab.torch_regions.sizes import sized_operator

NO_KERNELS = (
    "kernels run on a CUDA GPU, or for tensors on the CPU in Triton's interpreter: start Python with TRITON_INTERPRET=1"
)
_log = logging.getLogger(__name__)


def can_launch(values: Iterable[Any]) -> bool:
    """Whether kernels can run on the device of these tensors; what is no tensor does not count."""
    kinds = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    if "cuda" in kinds:
        return True
    try:
        return kinds <= {"cpu"} and interpreting()
    except LaunchError:  # Triton was imported without its interpreter
        return False


class RegionLaunch:
    """Launches a region's kernel; after a LaunchError, such as too little shared memory, it runs the region's graph.

    Args:
        kernel: the loaded kernel.
        module: the region as a graph of ATen operations.
    """

    def __init__(self, kernel: LoadedKernel, module: torch.fx.GraphModule) -> None:
        self.kernel, self.module = kernel, module
        self.refusal = ""

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The region's results, new and contiguous: a tuple if there are several."""
        if not self.refusal:
            specs = self.kernel.spec.inputs
            try:
                return self.kernel(*(t.contiguous().view(s.shape) for t, s in zip(tensors, specs, strict=True)))
            except LaunchError as error:
                self.refusal = str(error)
                _log.warning("a region runs in torch: %s", self.refusal)
        made = [t.clone(memory_format=torch.contiguous_format) for t in self.module(*tensors)]
        return tuple(made) if len(made) > 1 else made[0]


def operator_of(region: Region) -> Callable[..., Any]:
    """The torch operator of a region; equal regions have the same one.

    Args:
        region: compiled.

    Returns:
        A function from contiguous inputs to contiguous results, without a graph break and without a backward pass; of a
        region with `sizes` from a list of them, and a list of their values, to a list.
    """
    if region.sizes is not None:
        return sized_operator(region.sizes)
    kernel = load(region.kernel.spec)
    name = f"region_{region.extract.key[:16]}_{region.operator.name}"
    return torch_op(kernel, name, RegionLaunch(kernel, region.extract.module))
