"""An emitted module: its text, and the origin of each line."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile.nodes import FoundTiles
from neptune_lab.htile_to_triton.context import HostDescriptor


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of the module that computes.

    Args:
        kernel: name of the kernel function that the line belongs to, or that it launches or allocates for.
        number: line number in `EmittedModule.text`, from 1.
        text: the line.
        node_ids: the HTile nodes that the line belongs to; a shared index or base pointer names every user.
        origin: the loop-IR block of the first of these nodes.
    """

    kernel: str
    number: int
    text: str
    node_ids: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One `@triton.jit` or `@gluon.jit` kernel and how it is launched.

    Args:
        name: the function's name.
        text: the function's source, decorator included.
        grid: number of program instances along each axis.
        arguments: tensors in the order in which the launcher passes them.
        descriptors: tensor descriptors that the launcher makes and passes after them.
        num_warps, num_stages: launch options; None: Triton's defaults.
        language: "triton" or "gluon".
        fused: whether a product and a sum may become one instruction, which rounds once.
        sizes: sizes that are known at the launch, in the order in which the launcher passes them, after the rest;
            `grid` is that of the program's sample.
        counters: groups of programs whose last one does the work of the next HTile kernel (`last_program`); their
            counters are passed after the tensors.  0: the kernel is one HTile kernel, or `waits`.
        waits: the HTile kernels that this one is, whose programs wait for each other (`waiting`); (): one.
        registers: the most registers of a thread, a launch option; None: as many as the compiler takes.
        finds: all that the launch computes, by itself or with the others that have the same; None: other things.
    """

    name: str
    text: str
    grid: tuple[int, ...]
    arguments: tuple[str, ...]
    descriptors: tuple[HostDescriptor, ...]
    num_warps: int | None
    num_stages: int | None
    language: str = "triton"
    fused: bool = True
    sizes: tuple[str, ...] = ()
    counters: int = 0
    waits: tuple[str, ...] = ()
    registers: int | None = None
    finds: FoundTiles | None = None


@dataclass(frozen=True, slots=True)
class EmittedModule:
    """An emitted module of Triton and Gluon kernels; it needs torch and Triton only.

    Args:
        name: name of the program.
        entry: the plain Python function in it that takes the inputs and returns the outputs.
        text: the whole module.
        kernels: its kernels in launch order.
        lines: origin of every line that computes, in the order of the text.
        notes: deviations from the options, one sentence each.
    """

    name: str
    entry: str
    text: str
    kernels: tuple[KernelSource, ...]
    lines: tuple[SourceLine, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kernels = ", ".join(f"{k.name}{k.grid}" for k in self.kernels)
        return f"<EmittedModule {self.name}: {kernels}; print its text to see the code>"


class Writer:
    """The lines of a module; lines that compute are linked to their HTile nodes."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.lines: list[SourceLine] = []

    def plain(self, *texts: str) -> None:
        """Appends lines that do not compute; a text may have several."""
        self.text += [line for text in texts for line in text.split("\n")]

    def linked(self, kernel: str, text: str, nodes: tuple[str, ...], origin: str) -> None:
        """Appends a line that computes; the arguments are fields of `SourceLine`."""
        self.text.append(text)
        self.lines.append(SourceLine(kernel, len(self.text), text, nodes, origin))
