"""Compiles the Triton kernels of emitted modules for Hopper, no GPU needed; fails where Triton's compiler does.

    python triton_offline.py [--dtype fp16] module.py ...

A process of its own, since Triton decides at import whether it interprets. Every pointer is taken to be of that type
(float32) and aligned, as torch's own tensors are. It prints a line per kernel: its name, and how many of its matrix
descriptors begin at one address with rows of unlike widths.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import triton
from modules_by_path import module_at
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction


def compile_all(path: Path, dtype: str) -> dict[str, str]:
    """Compiles each kernel of a module; the PTX of each by name."""
    module = module_at(path)
    kernels = {name: f for name, f in vars(module).items() if isinstance(f, JITFunction) and name.endswith("_kernel")}
    found = {}
    for name, function in kernels.items():
        signature = dict.fromkeys(function.arg_names, f"*{dtype}")
        aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(signature))}
        source = ASTSource(function, signature, {}, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        found[name] = compiled.asm["ptx"]
    return found


def shared_by_unlike_rows(ptx: str) -> int:
    """Addresses from which descriptors of unlike rows are made: the upper half of a descriptor holds their width."""
    halves: dict[str, set[int]] = defaultdict(set)
    for base, constant in re.findall(r"(?:or\.b64|add\.s64)\s+%rd\d+, (%rd\d+), (-?\d{10,});", ptx):
        halves[base].add(int(constant) >> 32)
    return sum(len(upper) > 1 for upper in halves.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("modules", nargs="+", type=Path)
    given = parser.parse_args()
    for module in given.modules:
        for name, ptx in compile_all(module, given.dtype).items():
            print(name, shared_by_unlike_rows(ptx))
