"""Compiles a module's kernels with Triton, in a process of its own and without a GPU.

`compiled` calls the module's launcher with tensors that have no memory (torch's "meta" device), and compiles each
launch instead of doing it: so Triton sees the arguments, options and alignments of a real launch.  Triton decides at
import whether it interprets kernels, so the process must have started with TRITON_INTERPRET=0.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from neptune_lab.files import write_bytes, write_text
from neptune_lab.machine_code.line_maps import MODULE, numbered
from neptune_lab.target import DEFAULT


@dataclass(frozen=True)
class Launch:
    """A compiled launch: texts by stage, the disassembler's text, and what Triton and the assembler say of it.

    Args:
        kernel: name of the kernel function.
        grid: program instances along each axis.
        texts: by stage, as Triton keeps them; "sass" as the disassembler prints it.
        usage: the resource usage that `cuobjdump` prints; "" for AMD's.
        shared: bytes of shared memory per block.
        warps: per block.
        tensor_memory: columns of tensor memory per block, of NVIDIA's data-center Blackwell.
    """

    kernel: str
    grid: tuple[int, ...]
    texts: dict[str, str]
    usage: str
    shared: int
    warps: int
    tensor_memory: int


DISK = "the disk"


@dataclass(frozen=True)
class Failure:
    """Why a kernel could not be compiled: `tool` is "Triton", "ptxas", or the disassembler that failed; `DISK` if
    Triton's cache cannot be written."""

    tool: str
    kernel: str
    reason: str


@dataclass
class _Launches:
    made: list[Launch] = field(default_factory=list)
    running: str = ""


def compiled(
    text: str, entry: str, inputs: tuple[tuple[tuple[int, ...], str], ...], architecture: str, lanes: int
) -> tuple[Launch, ...] | Failure:
    """Compiles every kernel that a module launches.

    Args:
        text: the module.
        entry: its function that takes the inputs and launches the kernels.
        inputs: shape and torch dtype of each.
        architecture: such as "sm_90" or "gfx942".
        lanes: threads per warp.

    Returns:
        A launch per kernel, in launch order; or the first failure.
    """
    import torch
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler.errors import CompilationError
    from triton.runtime import driver
    from triton.runtime.errors import PTXASError

    cuda = architecture.startswith("sm_")
    target = GPUTarget("cuda", int(architecture[3:]), lanes) if cuda else GPUTarget("hip", architecture, lanes)
    driver.set_active(_NoGPU(target))  # type: ignore[arg-type]
    setattr(knobs.runtime, "add_stages_inspection_hook", _number_lines)  # noqa: B010 - its declared type is wrong
    launches = _Launches()
    with tempfile.TemporaryDirectory() as folder:
        module = _import(Path(folder) / MODULE, text)
        launcher = _recording(getattr(module, entry), module, launches)
        try:
            launcher(*(torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in inputs))
        except PTXASError as error:
            return Failure("ptxas", launches.running, str(error))
        except CompilationError as error:  # its last line says what is wrong, the others show where
            return Failure("Triton", launches.running, str(error).strip().splitlines()[-1])
        except (RuntimeError, ValueError, KeyError, NotImplementedError, AssertionError) as error:
            return Failure("Triton", launches.running, f"{type(error).__name__}: {error}")
        except subprocess.CalledProcessError as error:
            tool = Path(error.cmd[0]).name
            return Failure(tool, launches.running, error.stderr or f"ended with status {error.returncode}")
        except FileNotFoundError as error:  # of a tool
            return Failure("Triton", launches.running, str(error))
        except OSError as error:
            return Failure(DISK, launches.running, error.strerror or str(error))
    return tuple(launches.made)


class _NoGPU:
    """What Triton asks a driver before it compiles."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


def _number_lines(*given: Any) -> tuple[str, str] | None:
    """Triton's hook: gives the assembler `numbered` PTX; without arguments, what this adds to Triton's cache key."""
    if not given:
        return "numbered", "numbered"
    stages = given[1]
    assemble: Callable[..., Any] | None = stages.get("cubin")
    if assemble is not None:
        stages["cubin"] = lambda ptx, metadata: assemble(numbered(ptx)[0], metadata)
    return None


def _import(path: Path, text: str) -> ModuleType:
    write_text(path, text)
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _recording(function: FunctionType, module: ModuleType, launches: _Launches) -> Callable[..., Any]:
    """`function` of a generated module with its kernels replaced by `_Kernel`, and `DEFAULT`'s multiprocessors, whose
    number only grids depend on."""
    from triton.runtime.jit import JITFunction

    names = {name: getattr(module, name, None) for name in function.__code__.co_names}
    kernels = {name: _Kernel(value, launches) for name, value in names.items() if isinstance(value, JITFunction)}
    replaced = {**kernels, "_multiprocessors": lambda device: DEFAULT.sm_count}
    return FunctionType(function.__code__, {**function.__globals__, **replaced}, function.__name__)


class _Kernel:
    """Compiles and records where a JIT function would launch."""

    def __init__(self, jit: Any, launches: _Launches) -> None:
        self._jit = jit
        self._launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            name = self._jit.__name__
            self._launches.running = name
            done = self._jit.run(*arguments, grid=grid, warmup=True, **options)
            if all(name != other.kernel for other in self._launches.made):
                self._launches.made.append(_launch(name, grid, done))

        return launch


def _launch(name: str, grid: tuple[int, ...], done: Any) -> Launch:
    texts = {stage: text for stage, text in done.asm.items() if isinstance(text, str)}
    usage = ""
    if "cubin" in done.asm:
        texts["sass"], usage = _disassembled(done.asm["cubin"])
    told = done.metadata
    return Launch(
        name,
        tuple(grid),
        texts,
        usage,
        int(told.shared or 0),
        int(told.num_warps),
        int(getattr(told, "tmem_size", None) or 0),
    )


def _disassembled(cubin: bytes) -> tuple[str, str]:
    """The SASS with its line numbers, and the resource usage."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        write_bytes(path, cubin)
        said = []
        for tool, options in ((knobs.nvidia.nvdisasm, ["-g", "-c"]), (knobs.nvidia.cuobjdump, ["-res-usage"])):
            done = subprocess.run([tool.path, *options, str(path)], capture_output=True, text=True, check=True)
            said.append(re.sub(re.escape(folder), "", done.stdout))
        return said[0], said[1]
