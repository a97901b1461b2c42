"""TVM's spelling, all of it: loop-scalar IR to TensorIR and back, TVM's schedule, TVM's LLVM backend.

Nothing outside this package (and the operators' tensor expressions) names a TVM class, so a new TVM changes one place.
`to_tvm` and `from_tvm` are inverse on what the loop-scalar IR can say.  What TVM has no word for (origins, roles,
which buffers carry tags) does not travel: `from_tvm` takes it over by name from the program that went out.
"""

from neptune_lab.loop_ir.tvm_compat.backend import TvmRefusal, apply, run_native
from neptune_lab.loop_ir.tvm_compat.inward import from_te, from_tvm
from neptune_lab.loop_ir.tvm_compat.outward import to_tvm, tvmscript

__all__ = ["TvmRefusal", "apply", "from_te", "from_tvm", "run_native", "to_tvm", "tvmscript"]
