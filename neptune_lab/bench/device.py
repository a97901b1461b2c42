"""The machine of a run: names, versions, clocks under load, and measured rates."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from neptune_lab.runtime import device_facts
from neptune_lab.runtime.ceilings import measure_ceilings
from neptune_lab.runtime.timing import measure

# Our names of the fields that nvidia-smi is queried for.  Nothing is set.
_LOAD = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "celsius": "temperature.gpu",
    "watts": "power.draw",
}


def describe() -> dict[str, Any]:
    """Facts about the device and its driver; `gpu` is false if kernels are interpreted."""
    facts = device_facts()
    return {**asdict(facts), "gpu": not facts.interpreter, "driver": _smi("driver_version")}


def used_versions() -> dict[str, str]:
    """Versions of Python and the packages that the benchmark uses."""
    numbers: dict[str, Any] = {"Python": platform.python_version()}
    for package in ("neptune-lab", "torch", "triton", "apache-tvm", "numpy"):
        with suppress(PackageNotFoundError):
            numbers[package] = version(package)
    numbers["torch"] = torch.__version__  # the distribution's number may lack the CUDA version
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    numbers |= {"CUDA": torch.version.cuda, "cuDNN": cudnn}
    return {name: str(number) for name, number in numbers.items() if number is not None}


def rates() -> dict[str, float]:
    """The ceilings of the device (`measure_ceilings`), and the overhead of an empty event pair.

    Empty without a GPU.
    """
    if not torch.cuda.is_available():
        return {}
    ceiling = measure_ceilings(torch.cuda.current_device())
    empty = measure(lambda: None, repetitions=30, flush_l2=True).us
    return {"copy_gbps": ceiling.gbps, "matmul_tflops": ceiling.tflops, "empty_us": empty}


def under_load(launch: Callable[[], Any], us: float) -> Mapping[str, Any]:
    """Clocks, power and temperature while `launch`, of so many microseconds, keeps the GPU busy; empty without one."""
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        return {}
    for _ in range(max(1, min(5000, int(2e5 / us)))):
        launch()
    answers = dict(zip(_LOAD, _smi(",".join(_LOAD.values())).split(", "), strict=False))
    torch.cuda.synchronize()
    return {name: _number(value) for name, value in answers.items()}


def _smi(query: str) -> str:
    """nvidia-smi's answer for the current device; empty if there is none."""
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        return ""
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    command = [
        "nvidia-smi",
        f"--id=GPU-{str(uuid).removeprefix('GPU-')}",
        f"--query-gpu={query}",
        "--format=csv,noheader,nounits",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else ""


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
