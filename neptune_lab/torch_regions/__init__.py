"""Regions of PyTorch graphs: `partition` carves out chains of reductions and compiles them; a reason for all others."""

from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the imports below, since torch's tracer imports Triton

from neptune_lab.torch_regions.holdings import Holding  # noqa: E402
from neptune_lab.torch_regions.partition import all_apart, partition  # noqa: E402
from neptune_lab.torch_regions.record import Apart, Partition, Region  # noqa: E402

__all__ = ["Apart", "Holding", "Partition", "Region", "all_apart", "partition"]
