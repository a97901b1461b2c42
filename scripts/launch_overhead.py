"""The host's time per launch: `python scripts/launch_overhead.py [module.py ...]`.

Times the Python side of calling a generated module, in microseconds per call.  Without a GPU, a substitute replaces
Triton's driver: kernels are compiled for an H200, and everything but the launch itself is done.  On a GPU the launches
are real, and the host does not wait for them.

    plain       the module's function with Triton's own launches
    checked     LoadedKernel.__call__: arguments checked, kernels launched as compiled
    unchecked   LoadedKernel.launch
    as an op    kernel.as_torch_op()
    no launch   the module's function with launches that do nothing: mostly allocations
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from neptune_lab.runtime import KernelSpec, load
from neptune_lab.runtime.torch_op import torch_op
from neptune_lab.target import Target
from neptune_lab.tensor_spec import TensorSpec

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
H200 = Target("h200")
PROPERTIES = {"max_shared_mem": H200.shared_memory, "multiprocessor_count": H200.sm_count}


class NoDriver:
    """A substitute for Triton's driver on a machine without a GPU."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=lambda name, binary, shared, device: ("module", name, 64, 0, 1024),
            get_device_properties=lambda device: PROPERTIES,
        )
        self.launcher_cls = lambda source, metadata: lambda *arguments: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def spec_of(path: Path) -> KernelSpec:
    """The spec of an exported module, from the docstring of its function."""
    text = path.read_text(encoding="utf-8")
    function = next(n for n in reversed(ast.parse(text).body) if isinstance(n, ast.FunctionDef))
    given, _, made = (ast.get_docstring(function) or "").partition("Returns:")

    def tensors(part: str) -> tuple[TensorSpec, ...]:
        found = re.findall(r"(\w+): (\w+)\[([\d, ]*)\]", part)
        return tuple(TensorSpec(n, tuple(map(int, s.split(","))), t) for n, t, s in found)

    return KernelSpec(function.name, function.name, text, tensors(given), tensors(made))


def microseconds(run: Callable[[], Any], *, chunks: int = 100, calls: int = 100) -> float:
    """Microseconds per call in the fastest of some chunks of calls: disturbances only make a chunk slower."""
    times = []
    run()
    for _ in range(chunks):
        started = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - started) / calls * 1e6)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return min(times)


def without_launches(function: FunctionType, module: Any) -> Callable[..., Any]:
    """The function with launches that do nothing."""

    class Nothing:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *arguments, **options: None

    jit = triton.runtime.jit.JITFunction
    names = {n: Nothing() for n in function.__code__.co_names if isinstance(getattr(module, n, None), jit)}
    return FunctionType(function.__code__, {**function.__globals__, **names})


def main(paths: list[Path]) -> None:
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        triton.runtime.driver.set_active(NoDriver())  # type: ignore[arg-type]
        sys.modules["neptune_lab.runtime.load"].interpreting = lambda: False  # type: ignore[attr-defined]
        torch.cuda.current_device = lambda: None
    device = "cuda" if on_gpu else "cpu"
    print(f"torch {torch.__version__}, Triton {triton.__version__}, {'GPU' if on_gpu else 'no GPU'}")
    print(f"{'module':30} {'plain':>9} {'checked':>9} {'unchecked':>9} {'as an op':>9} {'no launch':>9}")
    for path in paths:
        kernel = load(spec_of(path))
        kernel._device_type = device
        tensors = [torch.zeros(t.shape, dtype=getattr(torch, t.dtype), device=device) for t in kernel.spec.inputs]
        plain = getattr(kernel.module, kernel.spec.entry)
        bare = without_launches(plain, kernel.module)
        op = torch_op(kernel)
        runs = (plain, kernel, kernel.launch, op, bare)
        figures = [microseconds(partial(run, *tensors)) for run in runs]
        print(f"{path.name.split('.')[0]:30} " + " ".join(f"{figure:9.2f}" for figure in figures))


if __name__ == "__main__":
    given = [Path(a) for a in sys.argv[1:]]
    main(given or [GOLDEN / "attention_causal.triton.py", GOLDEN / "attention_decode.triton.py"])
