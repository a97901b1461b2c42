"""Compiles the Triton kernels of emitted modules for Hopper, no GPU needed; fails where Triton's compiler does.

    python triton_offline.py module.py ...

A process of its own, since Triton decides at import whether it interprets. Every pointer is taken to be float32 and
aligned, as torch's own tensors are.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction


def compile_all(path: Path) -> list[str]:
    """Compiles each kernel of a module; their names."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernels = {name: f for name, f in vars(module).items() if isinstance(f, JITFunction) and name.endswith("_kernel")}
    for function in kernels.values():
        signature = dict.fromkeys(function.arg_names, "*fp32")
        aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(signature))}
        source = ASTSource(function, signature, {}, aligned)
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return list(kernels)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(*compile_all(Path(argument)))
