"""HTile IR to Triton: `emit(program)` returns a module that needs torch and Triton only.

NaN: all operations propagate it.  For maxima and minima, an emitted module has functions of its own (helpers.py), since
`tl.max` and `tl.maximum` drop a NaN if the other operand is a number.
"""

from __future__ import annotations

from neptune_lab.htile_to_triton.module import emit
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.source import EmittedModule, KernelSource, SourceLine

__all__ = ["EmitOptions", "EmittedModule", "KernelSource", "SourceLine", "emit"]
