"""The record of a kernel's machine code: every stage's text linked to Triton's lines, and the resources it needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from neptune_lab.errors import MachineCodeError
from neptune_lab.machine_code.counts import Counts
from neptune_lab.machine_code.occupancy import Occupancy
from neptune_lab.strict.console import shown

STAGES = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")


@dataclass(frozen=True, slots=True)
class Stage:
    """One form of a kernel.

    Args:
        name: one of `STAGES`.
        text: as the compiler wrote it, without its line information.
        lines: for each line of the text, the lines of the Triton module that it is from, innermost first: the line of
            a helper function, then the line that calls it.
    """

    name: str
    text: str = field(repr=False)
    lines: tuple[tuple[int, ...], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel needs.

    Args:
        registers: 32-bit registers per thread (AMD: vector registers).
        scalar_registers: per wave, AMD only; else 0.
        local_bytes: bytes of local memory per thread; the compiler uses it for what it spills.
        shared_bytes: shared memory per block.
        tensor_memory_columns: of Blackwell's tensor memory per block.
        warps: per block.
        threads: per block.
        occupancy: blocks that reside on one multiprocessor.
        counts: instructions of the last stage, each line of text counted once.
    """

    registers: int
    scalar_registers: int
    local_bytes: int
    shared_bytes: int
    tensor_memory_columns: int
    warps: int
    threads: int
    occupancy: Occupancy
    counts: Counts


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One compiled kernel function: its name, grid, stages in compile order, and resources."""

    name: str
    grid: tuple[int, ...]
    stages: tuple[Stage, ...]
    resources: KernelResources

    def stage(self, name: str) -> Stage:
        """The stage called `name`; MachineCodeError if the target has none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = ", ".join(s.name for s in self.stages)
        raise MachineCodeError(f"{self.name} has no stage {shown(name)}", help=f"its stages are {names}")


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of a stage: the kernel it belongs to, its number from 1, and its text."""

    kernel: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A module compiled for one architecture without a GPU.

    Args:
        target: the architecture, such as "sm_90".
        triton: version of Triton that compiled it.
        kernels: in launch order.
    """

    target: str
    triton: str
    kernels: tuple[KernelCode, ...]

    def __repr__(self) -> str:
        stages = ", ".join(dict.fromkeys(s.name for kernel in self.kernels for s in kernel.stages))
        kernels = ", ".join(kernel.name for kernel in self.kernels)
        return f"<MachineCode of {kernels} for {self.target}, by Triton {self.triton}: {stages}; print one to see it>"

    def kernel(self, name: str) -> KernelCode:
        """The kernel called `name`; MachineCodeError if there is none."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        names = ", ".join(k.name for k in self.kernels)
        raise MachineCodeError(f"no kernel is called {shown(name)}", help=f"the kernels are {names}")

    def text(self, stage: str) -> str:
        """The text of a stage, one kernel after the other; MachineCodeError if no kernel has it."""
        if not any(s.name == stage for kernel in self.kernels for s in kernel.stages):
            names = ", ".join(dict.fromkeys(s.name for kernel in self.kernels for s in kernel.stages))
            raise MachineCodeError(f"{self.target} has no stage {shown(stage)}", help=f"its stages are {names}")
        return "\n".join(s.text for kernel in self.kernels for s in kernel.stages if s.name == stage)

    @property
    def ttir(self) -> str:
        """Triton IR; Gluon kernels have none."""
        return self.text("ttir")

    @property
    def ttgir(self) -> str:
        """Triton GPU IR, with layouts."""
        return self.text("ttgir")

    @property
    def llir(self) -> str:
        """LLVM IR."""
        return self.text("llir")

    @property
    def ptx(self) -> str:
        """PTX, of NVIDIA's architectures."""
        return self.text("ptx")

    @property
    def sass(self) -> str:
        """Machine code of NVIDIA's architectures, disassembled."""
        return self.text("sass")

    @property
    def amdgcn(self) -> str:
        """Assembly of AMD's architectures."""
        return self.text("amdgcn")

    @property
    def last(self) -> str:
        """The stage that the GPU runs: "sass" or "amdgcn"."""
        return "sass" if self.target.startswith("sm_") else "amdgcn"

    def lines_of(self, line: int, stage: str | None = None) -> tuple[CodeLine, ...]:
        """The lines of a stage that come from one line of the Triton module.

        Args:
            line: of the module (`kernel.source`), from 1.
            stage: one of `STAGES`; None: the machine code itself.

        Returns:
            The lines, in order; empty if the line computes nothing that is left in the stage.

        Raises:
            MachineCodeError: no kernel has this stage.
        """
        stage = stage or self.last
        self.text(stage)
        return tuple(
            CodeLine(kernel.name, number, text)
            for kernel in self.kernels
            for s in kernel.stages
            if s.name == stage
            for number, (text, frames) in enumerate(zip(s.text.splitlines(), s.lines, strict=True), 1)
            if line in frames
        )

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)
