"""Predicts the bytes that six kernels move from and to HBM on an H200, and writes the kernels to measure them.

    python scripts/predict_traffic.py -o scripts/predicted_traffic.json    # the predictions
    python scripts/predict_traffic.py --kernels DIR                        # kernels, for scripts/measure_traffic.py

No GPU is needed. Blocks per multiprocessor, which the model of the L2 cache takes, are those of the machine code for
sm_90.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import neptune_lab as nl
from neptune_lab.files import write_text
from neptune_lab.operators import find
from neptune_lab.pipeline import versions

TARGET = "h200"
# Name of the kernel: the operator or preset, and its arguments.
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal prefill": ("causal_pf", {"seq": 2048}),
    "decode split-k": ("causal_dc", {"seq": 8192}),
    "GQA decode": ("gqa_dc", {"seq": 32768}),
    "RMSNorm and quantisation": ("norms.rms_norm_quantize", {"rows": 2048, "cols": 16384, "dtype": "float16"}),
    "softmax": ("rows.softmax", {"rows": 4096, "cols": 8192, "dtype": "float16"}),
    "chain of products": ("g12", {"batch": 32}),
}
# Not one of the six: to try the measurement.
TRIAL = {"trial": ("rows.log_sum_exp", {"rows": 2048, "cols": 8192, "dtype": "float16"})}


def compiled(operator: str, arguments: dict[str, Any]) -> nl.Kernel:
    """A kernel as nl.compile chooses it for the H200."""
    return nl.compile(find(operator)(**arguments), target=TARGET, validate="none")


def prediction(operator: str, arguments: dict[str, Any], kernel: nl.Kernel) -> dict[str, Any]:
    """What the model says of one kernel."""
    made = kernel.traffic(TARGET)
    found = made.kernel
    return {
        "operator": operator,
        "arguments": arguments,
        "module": hashlib.sha256(kernel.source.encode()).hexdigest(),
        "blocks_per_multiprocessor": made.blocks,
        "read": found.read,
        "written": found.written,
        "tensors": {t.name: {"read": t.read, "written": t.written, "loaded": t.loaded} for t in found.tensors},
        "operations": found.operations,
        "exact": found.exact,
    }


def manifest(kernel: nl.Kernel, file: str) -> dict[str, Any]:
    """What the measurement needs to call a module."""
    return {
        "file": file,
        "entry": kernel.spec.entry,
        "kernels": [k.name for k in kernel.triton.kernels],
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in kernel.spec.inputs],
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the predictions to this JSON file")
    parser.add_argument("--kernels", type=Path, help="write the kernels and a manifest to this folder")
    given = parser.parse_args()
    predicted, modules = {}, {}
    for n, (name, (operator, arguments)) in enumerate({**KERNELS, **TRIAL}.items()):
        print(f"{name} ...", file=sys.stderr)
        kernel = compiled(operator, arguments)
        predicted[name] = prediction(operator, arguments, kernel)
        print(f"  {predicted[name]['read'] / 1e6:.2f} MB read, {predicted[name]['written'] / 1e6:.2f} MB written")
        if given.kernels is not None:
            file = f"kernel_{n}.py"
            write_text(given.kernels / file, kernel.source, parents=True)
            modules[name] = manifest(kernel, file)
    if given.kernels is not None:
        write_text(given.kernels / "manifest.json", json.dumps(modules, indent=2) + "\n")
    if given.output is not None:
        kept = {
            "command": "python scripts/predict_traffic.py -o scripts/predicted_traffic.json",
            "target": TARGET,
            "versions": {k: v for k, v in versions().items() if k in ("triton", "neptune-lab")},
            "kernels": {name: predicted[name] for name in KERNELS},
            "trial": predicted["trial"],
        }
        write_text(given.output, json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
