"""HTile IR to Triton: `emit(program)` returns a module that needs torch and Triton only (design.md section 6)."""

from __future__ import annotations

from neptune_lab.htile_to_triton.module import emit
from neptune_lab.htile_to_triton.source import KernelSource, SourceLine, TritonSource

__all__ = ["KernelSource", "SourceLine", "TritonSource", "emit"]
