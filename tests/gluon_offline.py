"""Compiles emitted Gluon modules for Hopper, no GPU needed; prints JSON: what the assembler says of each kernel.

    python gluon_offline.py module.py ...

A process of its own, since Triton decides at import whether it interprets.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from modules_by_path import module_at
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

SHORT = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "int32": "i32",
    "bool": "i1",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
}
LAUNCH = re.compile(r"^    (\w+)\[\(.*\)\]\(\n((?:        .*\n)*)    \)", re.MULTILINE)
DESCRIPTOR = re.compile(r"TensorDescriptor\((\w+), \[.*?\], \[.*?\], (\[.*?\]), (\w+)\)")


def compiled(path: Path) -> dict[str, dict[str, object]]:
    """Facts of each Gluon kernel of a module."""
    text = path.read_text()
    module = module_at(path)
    dtypes = dict(re.findall(r"^        (\w+): (\w+)\[", text, re.MULTILINE))
    dtypes |= dict(re.findall(r"^    (\w+) = torch.empty\(.*dtype=torch\.(\w+)", text, re.MULTILINE))
    out: dict[str, dict[str, object]] = {}
    for name, arguments in LAUNCH.findall(text):
        function = getattr(module, name)
        if isinstance(function, GluonJITFunction):
            out[name] = facts(function, arguments.split(",\n"), dtypes, module)
    return out


def facts(function, arguments: list[str], dtypes: dict[str, str], module) -> dict[str, object]:
    """What the compiler makes of one kernel."""
    signature: dict[str, str] = {}
    for parameter, argument in zip(function.arg_names, arguments, strict=False):
        made = DESCRIPTOR.search(argument)
        if made is None:
            dtype = dtypes.get(argument.strip())  # (a size has none)
            signature[parameter] = "i32" if dtype is None else "*" + SHORT[dtype]
        else:
            tensor, block, layout = made.groups()
            signature[parameter] = f"tensordesc<{SHORT[dtypes[tensor]]}{block},{getattr(module, layout)!r}>"
    registers, warps = (
        next(int(a.strip().removeprefix(f"{name}=")) for a in arguments if name in a)
        for name in ("maxnreg", "num_warps")
    )
    done = triton.compile(
        GluonASTSource(function, signature, {}, {}),
        target=GPUTarget("cuda", 90, 32),
        options={
            "num_warps": warps,
            "maxnreg": registers,
            "enable_fp_fusion": not any("fusion=False" in a for a in arguments),
        },
    )
    ptx = done.asm["ptx"]
    said = assembler(ptx)
    return {
        "shared": done.metadata.shared,
        "spills": sum(int(n) for n in re.findall(r"(\d+) bytes spill", said)),
        "serialized": "serialized" in said,
        "products": ptx.count("wgmma.mma_async"),
        "copies in": ptx.count("cp.async.bulk.tensor.2d.shared::"),
        "copies out": ptx.count("cp.async.bulk.tensor.2d.global"),
        "meetings": len(re.findall(r"bar\.sync\s+0, 256", ptx)),
        "registers": [int(n) for n in re.findall(r"setmaxnreg\S*\s+(\d+)", ptx)],
    }


def assembler(ptx: str) -> str:
    """What the assembler prints."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "kernel.ptx"
        source.write_text(ptx)
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
        command = [str(tool), "-v", "--gpu-name=sm_90a", str(source), "-o", str(source.with_suffix(".o"))]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


if __name__ == "__main__":
    print(json.dumps({path: compiled(Path(path)) for path in sys.argv[1:]}))
