"""The device that kernels run on: a GPU, or Triton's interpreter."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neptune_lab.errors import LaunchError
from neptune_lab.strict.typed import Count, Line

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The local device, and the versions that compile for it.

    Args:
        name: the GPU's name, or "Triton's interpreter on <processor>".
        interpreter: whether kernels run in Triton's interpreter.
        capability: CUDA compute capability, such as (9, 0); None without a GPU.
        sm_count: number of streaming multiprocessors; None without a GPU.
        memory_bytes: memory of the GPU; None without one.
        torch, triton: versions.
        cuda: CUDA version that torch was built with; None for a CPU build.
        shared_memory: bytes of shared memory that one block can have (opted in to); None if not known.
        l2_bytes: bytes of the second-level cache; None likewise.
        registers: 32-bit registers of a multiprocessor; None likewise.
        warp_size: threads of a warp.
    """

    name: Line
    interpreter: bool
    capability: tuple[Count, Count] | None
    sm_count: Count | None
    memory_bytes: Count | None
    torch: Line
    triton: Line
    cuda: Line | None
    shared_memory: Count | None = None
    l2_bytes: Count | None = None
    registers: Count | None = None
    warp_size: Count = 32


def ask_for_interpreter() -> bool:
    """Whether there is a CUDA GPU; without one, Triton's interpreter is switched on.

    That has an effect only before Triton is imported, since its own functions are decorated then. Call this before
    importing parts of torch that import Triton.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if not has_gpu and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    return has_gpu


def interpreting() -> bool:
    """Whether Triton interprets kernels in this process; without a GPU, this switches the interpreter on.

    Raises:
        LaunchError: there is no GPU, and Triton was imported without its interpreter.
    """
    has_gpu = ask_for_interpreter()
    import triton.language as tl
    from triton import knobs
    from triton.runtime.interpreter import InterpretedFunction

    # Triton's library was decorated when it was imported, a kernel is when its module is: both must agree.
    library, kernels = isinstance(tl.sum, InterpretedFunction), bool(knobs.runtime.interpret)
    if library != kernels or not (library or has_gpu):
        where = "with" if library else "without"
        wanted = "TRITON_INTERPRET=1" if kernels or not has_gpu else "no TRITON_INTERPRET"
        raise LaunchError(
            f"Triton was imported {where} its interpreter, and "
            f"{'there is no CUDA GPU here' if not has_gpu else 'TRITON_INTERPRET was changed after that'}",
            help=f"start the process (in Jupyter: restart the kernel) with {wanted}, set before triton is imported",
        )
    return library


def device_facts() -> DeviceFacts:
    """Facts about the device that a kernel launched now would run on."""
    import torch

    interpreter = interpreting()
    import triton

    cuda = getattr(torch.version, "cuda", None)
    if interpreter or not torch.cuda.is_available():
        name = f"Triton's interpreter on {platform.processor() or platform.machine()}"
        return DeviceFacts(name, interpreter, None, None, None, torch.__version__, triton.__version__, cuda)
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        facts.name,
        False,
        (facts.major, facts.minor),
        facts.multi_processor_count,
        facts.total_memory,
        torch.__version__,
        triton.__version__,
        cuda,
        # A build for AMD's GPUs does not have all of these.
        getattr(facts, "shared_memory_per_block_optin", None),
        getattr(facts, "L2_cache_size", None),
        getattr(facts, "regs_per_multiprocessor", None),
        getattr(facts, "warp_size", 32),
    )


def check_device(name: str, tensor: torch.Tensor, interpreter: bool) -> None:
    """Raise LaunchError if kernels cannot run on the device of the argument `name`."""
    if tensor.is_cuda or (interpreter and not tensor.is_meta):
        return
    raise refused_device(name, tensor.device, interpreter)


def refused_device(name: str, device: torch.device, interpreter: bool) -> LaunchError:
    """The error for an argument on a device where kernels cannot run.

    Args:
        name: of the argument.
        device: where it is.
        interpreter: whether kernels are interpreted, on the CPU.

    Returns:
        The error, to be raised.
    """
    if device.type == "meta":
        return LaunchError(
            f"argument {name} is on meta, where tensors have no values",
            help="make it on the device of the kernel: torch.randn(..., device='cpu')",
        )
    if interpreter:
        return LaunchError(
            f"argument {name} is on {device}; expected the CPU, where kernels are interpreted here",
            help=f"move it with {name}.cpu()",
        )
    return LaunchError(
        f"argument {name} is on {device}; expected a CUDA device, since kernels run on the GPU here",
        help=f"move it with {name}.cuda(), or start with TRITON_INTERPRET=1 to interpret kernels on the CPU",
    )
