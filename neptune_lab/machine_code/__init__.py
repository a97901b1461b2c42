"""Machine code without a GPU: every stage from Triton IR to SASS or AMDGCN, linked to Triton's lines, and resources."""

from __future__ import annotations

from neptune_lab.machine_code.architectures import ARCHITECTURES, Architecture, architecture_of
from neptune_lab.machine_code.code import (
    STAGES,
    CodeLine,
    KernelCode,
    KernelResources,
    MachineCode,
    Stage,
)
from neptune_lab.machine_code.compile import asked_by, cancel, machine_code
from neptune_lab.machine_code.counts import Counts, MatrixInstruction, MemoryInstruction, kinds
from neptune_lab.machine_code.occupancy import Occupancy, occupancy
from neptune_lab.machine_code.report import to_text

__all__ = [
    "ARCHITECTURES",
    "STAGES",
    "Architecture",
    "CodeLine",
    "Counts",
    "KernelCode",
    "KernelResources",
    "MachineCode",
    "MatrixInstruction",
    "MemoryInstruction",
    "Occupancy",
    "Stage",
    "architecture_of",
    "asked_by",
    "cancel",
    "kinds",
    "machine_code",
    "occupancy",
    "to_text",
]
