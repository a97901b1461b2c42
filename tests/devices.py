"""GPUs as torch describes them, for tests that need one and have none: known GPUs, with CUDA 13.0."""

from __future__ import annotations

from neptune_lab.runtime import DeviceFacts
from neptune_lab.target import Target


def facts_of(target: Target, name: str) -> DeviceFacts:
    """What `runtime.device_facts` would say of `target`, which torch calls `name`; torch and Triton have no version."""
    return DeviceFacts(
        name,
        False,
        target.capability,
        target.sm_count,
        80 << 30,
        "",
        "",
        "13.0",
        target.shared_memory,
        50 << 20,
        65_536,
    )


H200 = facts_of(Target("h200"), "NVIDIA H200")
A100 = facts_of(Target("a100"), "NVIDIA A100")
