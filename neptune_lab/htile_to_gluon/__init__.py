"""HTile IR to Gluon, for Hopper: warps that copy and warps that compute.

`emit(program)` returns a module that needs torch and Triton only.  A kernel becomes a producer, one warp that brings
tiles into rings in shared memory, and consumers, four warps and 64 rows each, that multiply and compute.
"""

from __future__ import annotations

from neptune_lab.htile_to_gluon.module import emit, why_unsupported
from neptune_lab.htile_to_gluon.options import GluonOptions

__all__ = ["GluonOptions", "emit", "why_unsupported"]
