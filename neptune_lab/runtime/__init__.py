"""Loads and launches kernels, on a GPU or in Triton's interpreter; imports torch and Triton as late as it can."""

from __future__ import annotations

from neptune_lab.runtime.arrays import call_on_arrays
from neptune_lab.runtime.device import DeviceFacts, device_facts, interpreting
from neptune_lab.runtime.load import LoadedKernel, cache_directory, load
from neptune_lab.runtime.spec import KernelSpec, TensorSpec

__all__ = [
    "DeviceFacts",
    "KernelSpec",
    "LoadedKernel",
    "TensorSpec",
    "cache_directory",
    "call_on_arrays",
    "device_facts",
    "interpreting",
    "load",
]
