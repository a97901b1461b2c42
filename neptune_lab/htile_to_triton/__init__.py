"""HTile IR to Triton: `emit(program)` returns a module that needs torch and Triton only.

NaN: sums, products and dots pass it on.  A max or min is plain `tl.max` or `tl.maximum`, which drop a NaN on a
GPU where the other operand is a number: the maximum only shifts the exponentials of a softmax, whose sum has the NaN
anyway, so passing it on would buy nothing there.  Where a max or min is itself an output, a NaN among its operands may
therefore be missing (a row of nothing else gives the start value, -inf or inf).
"""

from __future__ import annotations

from neptune_lab.htile_to_triton.module import emit
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.source import KernelSource, SourceLine, TritonSource

__all__ = ["EmitOptions", "KernelSource", "SourceLine", "TritonSource", "emit"]
