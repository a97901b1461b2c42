"""A region's kernel as a torch operator, which runs the region's own operations if the kernel cannot be launched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from neptune_lab.errors import LaunchError
from neptune_lab.runtime import interpreting
from neptune_lab.runtime.early import begun
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
        wait: returns when the kernel is compiled, which was begun before; None: the first launch compiles it.
        check_indices: raises LaunchError for positions and labels that the region does not have; a call with such runs
            the graph, whose operations raise PyTorch's own error.
    """

    def __init__(
        self,
        kernel: LoadedKernel,
        module: torch.fx.GraphModule,
        wait: Callable[[], None] | None = None,
        check_indices: Callable[[Sequence[torch.Tensor]], None] = lambda tensors: None,
    ) -> None:
        self.kernel, self.module = kernel, module
        self.wait, self.check_indices = wait, check_indices
        self.refusal = ""

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The region's results, new and contiguous: a tuple if there are several."""
        if self.wait is not None:
            self.wait()
            self.wait = None
        if not self.refusal and self._fit(tensors):
            specs = self.kernel.spec.inputs
            try:
                return self.kernel(*(t.contiguous().view(s.shape) for t, s in zip(tensors, specs, strict=True)))
            except LaunchError as error:
                self.refusal = str(error)
                _log.warning("a region runs in torch: %s", self.refusal)
        made = [t.clone(memory_format=torch.contiguous_format) for t in self.module(*tensors)]
        return tuple(made) if len(made) > 1 else made[0]

    def _fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the kernel reads what the region's operations would."""
        try:
            self.check_indices(tensors)
        except LaunchError:
            return False
        return True


def operators_of(regions: Iterable[Region], values: Iterable[Any]) -> dict[Region, Callable[..., Any]]:
    """The torch operators of regions, whose kernels are compiled side by side until they are launched.

    Args:
        regions: compiled.
        values: the inputs of their graph.
    """
    device = next((v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"), None)
    found: dict[Region, Callable[..., Any]] = {}
    waits: dict[int, Callable[[], None]] = {}  # by kernel, which equal regions share
    for region in regions:
        if device is not None and region.sizes is None and id(region.kernel) not in waits:
            with unset_fake_temporarily():
                waits[id(region.kernel)] = begun(region.kernel.spec, device)
        found[region] = operator_of(region, waits.get(id(region.kernel)))
    return found


def operator_of(region: Region, wait: Callable[[], None] | None = None) -> Callable[..., Any]:
    """The torch operator of a region; equal regions have the same one.

    Args:
        region: compiled.
        wait: returns when its kernel is compiled, which was begun before; None: the first launch compiles it.

    Returns:
        A function from contiguous inputs to contiguous results, without a graph break and without a backward pass; of a
        region with `sizes` from a list of them, and a list of their values, to a list.
    """
    if region.sizes is not None:
        return sized_operator(region.sizes)
    kernel = load(region.kernel.spec)
    name = f"region_{region.extract.key[:16]}_{region.operator.name}"
    return torch_op(kernel, name, RegionLaunch(kernel, region.extract.module, wait, region.kernel.check_indices))
