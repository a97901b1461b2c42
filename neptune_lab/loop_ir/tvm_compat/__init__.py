"""All uses of TVM: loop-scalar IR to TensorIR and back, TVM's schedule, TVM's LLVM backend.

Only this package and the operators' tensor expressions name TVM's classes, so a new TVM version changes one place.
`to_tvm` and `from_tvm` are inverse on loop programs.  Facts that TensorIR cannot express (origins, roles, which buffers
have tags) are copied by name from the program that was converted.
"""

# ruff: noqa: E402
from neptune_lab.loop_ir.tvm_compat.loading import load_tvm

load_tvm()  # before the modules below import it

from neptune_lab.loop_ir.tvm_compat.backend import TvmRefusal, apply, run_native
from neptune_lab.loop_ir.tvm_compat.inward import from_te, from_tvm
from neptune_lab.loop_ir.tvm_compat.outward import to_tvm, tvmscript

__all__ = ["TvmRefusal", "apply", "from_te", "from_tvm", "run_native", "to_tvm", "tvmscript"]
