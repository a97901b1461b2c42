"""Loads and launches kernels, on a GPU or in Triton's interpreter; imports torch and Triton as late as possible."""

from __future__ import annotations

from neptune_lab.runtime.arrays import call_on_arrays, to_tensor
from neptune_lab.runtime.device import DeviceFacts, device_facts, interpreting
from neptune_lab.runtime.load import LoadedKernel, cache_directory, load
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.timing import Ceiling, Measured, Resources, has_gpu, measure, resources, time_loaded

__all__ = [
    "Ceiling",
    "DeviceFacts",
    "KernelSpec",
    "LoadedKernel",
    "Measured",
    "Resources",
    "cache_directory",
    "call_on_arrays",
    "device_facts",
    "has_gpu",
    "interpreting",
    "load",
    "measure",
    "resources",
    "time_loaded",
    "to_tensor",
]
