"""Measures the bytes that exported kernels move from and to HBM, and compares them with the predictions.

    python scripts/measure_traffic.py DIR [--only NAME] [--predictions scripts/predicted_traffic.json] [--json]

DIR is the folder that `scripts/predict_traffic.py --kernels DIR` wrote. Needs a GPU, torch, Triton and Nsight Compute
(`ncu`), not neptune_lab. Exit status 1 if a sum of bytes is not within 10% of its prediction.

Each kernel is profiled in a process of its own. The L2 cache is filled with clean data that is not the kernel's before
it starts, so bytes read are those of a cold cache. Bytes that the kernel has written but that the cache still holds at
its end reach HBM when other data takes their place: so another read of that data follows, and its writes count as the
kernel's.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
WITHIN = 0.1
# Several times what a second-level cache holds.
EVICTED_BYTES = 1 << 29
# Reads until the cache holds no data that is still to be written.
EVICTIONS = 4


def run_once(folder: Path, found: dict[str, Any]) -> None:
    """Calls one module under the profiler: the kernel, then the read that evicts its results."""
    import torch

    spec = importlib.util.spec_from_file_location("measured", folder / found["file"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry = getattr(module, found["entry"])
    torch.manual_seed(0)
    inputs = [made(torch, t["shape"], getattr(torch, t["dtype"])) for t in found["inputs"]]
    other = torch.zeros(EVICTED_BYTES // 8, dtype=torch.int64, device="cuda")
    kept = entry(*inputs)  # compiles
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(EVICTIONS):  # under the profiler too, which writes to memory itself when it starts
        other.max()
    again = entry(*inputs)
    other.max()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    del kept, again


def made(torch: Any, shape: list[int], dtype: Any) -> Any:
    """A tensor of ordinary numbers."""
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda").to(dtype)
    return torch.randint(0, 2, shape, device="cuda").to(dtype)


def profiled(folder: Path, name: str, kernels: list[str]) -> dict[str, int]:
    """Bytes read and written by one module, as `ncu` counts them."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu is not installed: it comes with the CUDA toolkit, in its bin folder")
    options = ["--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none", "--csv"]
    command = [ncu, *options, "--print-units", "base", "--metrics", ",".join(METRICS)]
    done = subprocess.run(
        [*command, sys.executable, __file__, str(folder), "--run", name], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if done.returncode or not rows:
        sys.exit(f"ncu failed on {name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    read = written = own = 0
    for row in rows:  # in launch order, a row per kernel and metric
        value = int(float(row["Metric Value"].replace(",", "")))
        ours = any(row["Kernel Name"].startswith(kernel) for kernel in kernels)
        if row["Metric Name"] == METRICS[1]:
            own += ours
            written += value if own else 0
        elif ours:
            read += value
    if own != len(kernels):
        sys.exit(f"{name} launched {own} of its {len(kernels)} kernels under ncu: {[r['Kernel Name'] for r in rows]}")
    return {"read": read, "written": written}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="measure one kernel, such as 'trial'")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--predictions", type=Path, default=Path(__file__).with_name("predicted_traffic.json"))
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON, behind the table")
    given = parser.parse_args()
    manifest = json.loads((given.folder / "manifest.json").read_text(encoding="utf-8"))
    if given.run:
        run_once(given.folder, manifest[given.run])
        return
    known = json.loads(given.predictions.read_text(encoding="utf-8"))
    predicted = {**known["kernels"], "trial": known["trial"]}
    names = [given.only] if given.only else list(known["kernels"])
    rows = {}
    print(f"{'kernel':<26}{'read MB':>20}{'written MB':>20}{'sum MB':>20}  departs by")
    for name in names:
        want, found = predicted[name], profiled(given.folder, name, manifest[name]["kernels"])
        total, wanted = sum(found.values()), want["read"] + want["written"]
        off = total / wanted - 1
        rows[name] = {"predicted": {"read": want["read"], "written": want["written"]}, "measured": found, "off": off}
        pairs = [(found["read"], want["read"]), (found["written"], want["written"]), (total, wanted)]
        cells = "".join(f"{f'{a / 1e6:.2f} ({b / 1e6:.2f})':>20}" for a, b in pairs)
        print(f"{name:<26}{cells}  {off:+.1%}{'' if abs(off) <= WITHIN else '  MORE THAN 10%'}", flush=True)
    print("Measured, and in brackets predicted.")
    if given.json:
        print(json.dumps(rows, indent=2))
    sys.exit(any(abs(row["off"]) > WITHIN for row in rows.values()))


if __name__ == "__main__":
    main()
