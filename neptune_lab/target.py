"""GPUs that code is emitted and planned for: every question about what one can do.

No other module compares compute capabilities, except `machine_code`; figures are in `gpu_figures`.  torch and Triton
are asked about the GPU here by `Target.current` only, and imported then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from neptune_lab.errors import EmitError
from neptune_lab.gpu_figures import (
    ALIASES,
    GPU_SHEETS,
    MATRIX_UNITS,
    MEMORIES,
    MOST_HOPPER_SMS,
    MOST_SHARED_MEMORY,
    NVIDIA_REGISTERS,
    RATES,
    SHARED_BYTES_PER_CLOCK,
    SHEETS,
    UNITS,
    Sheet,
)
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_integer, check_number, is_integer

if TYPE_CHECKING:
    from neptune_lab.runtime import Ceiling, DeviceFacts

# The most stages of Triton's software pipeline. Each holds a tile in shared memory; no GPU has enough for more.
MOST_STAGES = 16
# The stages of a loop that runs once: with more, tiles of a second iteration would have memory too.
STAGES_OF_ONCE = 2
# Registers of a thread beside rows of two tensors that a program holds, with which Triton's code spills none: measured
# for gradients of a softmax with 2 x 24 to 2 x 64 elements per lane.
BESIDE_TWO_ROWS = 16


# Names of the known GPUs.
GPUS = tuple(GPU_SHEETS)
_HELP = (
    f"names are {', '.join(map(repr, SHEETS))}; target='sm_90' or Target('cuda', (9, 0)) is any GPU of compute "
    "capability 9.0, target='gfx942' or 'gfx1100' one of AMD's; without a target, code is for the GPU here"
)


class MemoryLevel(NamedTuple):
    """One level of a GPU's memory.

    Args:
        name: "registers", "shared memory", "L2 cache" or "global memory".
        shared: whether the whole GPU shares it; False: each multiprocessor has its own.
        bytes: its size; None if it is not published. Of shared memory, what one block can have.
        gbps: its rate on the whole GPU, in 10**9 bytes a second; None if it is neither published nor measured.
    """

    name: str
    shared: bool
    bytes: int | None
    gbps: float | None


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU that code is emitted for.

    >>> Target("h200").capability, Target("h200").sm_count, Target("cuda", (8, 0)).descriptors
    ((9, 0), 132, False)

    Args:
        name: a known GPU (one of `GPUS`), such as "h200"; or a kind of GPU: "cuda", "hip" (AMD), or "any", for code
            that runs on all of them and in Triton's interpreter.
        capability: CUDA compute capability, such as (9, 0); only with "cuda".
        sm_count: streaming multiprocessors (AMD: compute units); 0: from the data sheet, an H200's for a kind.
        shared_memory: bytes of shared memory that one block can have (opted in to); 0: from the data sheet, for a kind
            those of a known GPU of the capability, else 96 KiB (AMD: 64 KiB).
        tflops: float16 products without sparsity, in 10**12 operations per second; None: from the data sheet, not known
            for a kind.
        gbps: rate of the memory, in 10**9 bytes per second; None: likewise.

    Raises:
        EmitError: no such name, or an invalid figure.
    """

    name: str = "any"
    capability: tuple[int, int] | None = None
    sm_count: int = 0
    shared_memory: int = 0
    tflops: float | None = None
    gbps: float | None = None

    def __post_init__(self) -> None:
        sheet = SHEETS.get(self.name) if isinstance(self.name, str) else None
        if sheet is None:
            raise EmitError(f"name={shown(self.name)}: expected the name of a known GPU, or a kind", help=_HELP)
        if self.capability is not None:
            _check_capability(self.name, self.capability, sheet)
            alike = (gpu for gpu in GPU_SHEETS.values() if gpu.capability == self.capability)
            sheet = sheet._replace(shared_memory=next(alike, sheet).shared_memory) if self.name == "cuda" else sheet
        for name in ("sm_count", "shared_memory"):
            check_integer(name, getattr(self, name), 0, 1 << 30, EmitError)
        for name in ("tflops", "gbps"):
            check_number(name, getattr(self, name), EmitError, optional=True, positive=True)
        for name in sheet._fields[1:]:
            if not getattr(self, name):
                object.__setattr__(self, name, getattr(sheet, name))

    @classmethod
    def current(cls, otherwise: Target | None = None) -> Target:
        """The GPU that kernels run on in this process.

        Args:
            otherwise: the result without a GPU, or if kernels are interpreted; None: `DEFAULT`.

        Returns:
            The target.
        """
        from neptune_lab.runtime import device_facts, has_gpu

        facts = device_facts() if has_gpu() else None
        return (otherwise or DEFAULT) if facts is None or facts.interpreter else cls.of(facts)

    @classmethod
    def of(cls, facts: DeviceFacts) -> Target:
        """The target that `facts` describe; `ANY` if they are those of Triton's interpreter.

        A known GPU is found by its name; values in `facts` take precedence over its data sheet.

        Args:
            facts: of the device, as `runtime.device_facts` returns them.

        Returns:
            The target.
        """
        if facts.capability is None:
            return ANY
        sheet = cls.known(facts.name)
        kind = cls("cuda", facts.capability) if facts.cuda else cls("hip")
        name = sheet.name if sheet and (sheet.kind, sheet.capability) == (kind.kind, kind.capability) else kind.name
        return cls(name, kind.capability, facts.sm_count or 0, facts.shared_memory or 0)

    @classmethod
    def known(cls, device: str) -> Target | None:
        """A known GPU by torch's name for it.

        Args:
            device: such as "NVIDIA H200".

        Returns:
            The target, or None if the GPU is not known.
        """
        words = device.lower()
        return next((cls(name) for name in GPU_SHEETS if re.search(rf"\b{name}\b", words)), None)

    @property
    def kind(self) -> str:
        """The kind of GPU: "cuda", "hip", or "any"."""
        return SHEETS[self.name].kind

    @property
    def ceiling(self) -> Ceiling | None:
        """The rates of the data sheet, to compare times with; None if they are not known."""
        from neptune_lab.runtime import Ceiling

        if self.tflops is None or self.gbps is None:
            return None
        return Ceiling(self.name.upper(), self.tflops, self.gbps, "the vendor's datasheet, dense fp16, no sparsity")

    @property
    def memory_levels(self) -> tuple[MemoryLevel, ...]:
        """The GPU's memories, from the fastest to the largest; empty if only the kind of GPU is known.

        >>> [level.name for level in Target("h200").memory_levels]
        ['registers', 'shared memory', 'L2 cache', 'global memory']
        """
        memory = MEMORIES.get(self.name)
        if memory is None:
            return ()
        shared_gbps = SHARED_BYTES_PER_CLOCK * self.sm_count * memory.clock_mhz / 1e3
        return (
            MemoryLevel("registers", False, memory.registers, None),
            MemoryLevel("shared memory", False, self.shared_memory, shared_gbps),
            MemoryLevel("L2 cache", True, memory.l2, memory.l2_gbps),
            MemoryLevel("global memory", True, memory.capacity, self.gbps),
        )

    @property
    def descriptors(self) -> bool:
        """Whether a copy engine serves tensor descriptors (Hopper and later); elsewhere Triton emits pointers."""
        return self._at_least(9)

    @property
    def asynchronous_copies(self) -> bool:
        """Whether threads can ask for elements in shared memory and go on before these are there (Ampere and later)."""
        return self._at_least(8)

    @property
    def warpgroup_products(self) -> bool:
        """Whether it has matrix products by groups of four warps (only Hopper)."""
        return self.capability is not None and self.capability[0] == 9

    @property
    def matrix_unit(self) -> str | None:
        """The instructions for products of tiles, one of `MATRIX_UNITS`; None if the kind of GPU does not say.

        >>> [Target(name).matrix_unit for name in ("a100", "h200", "b200", "mi300x", "rx 7900 xtx", "hip")]
        ['mma', 'wgmma', 'tcgen05', 'mfma', 'wmma', None]
        """
        return UNITS.get(self.name if self.capability is None else self.capability[0])

    @property
    def tensor_memory(self) -> bool:
        """Whether sums of products are in a memory of their own (data-center Blackwell)."""
        return self.matrix_unit == "tcgen05"

    @property
    def lanes(self) -> int:
        """Threads of a warp (AMD: of a wave)."""
        return 64 if self.matrix_unit == "mfma" else 32

    def product_tflops(self, dtype: str) -> float | None:
        """The rate of products whose factors have a dtype, in 10**12 operations per second; None if it is not known.

        Args:
            dtype: of the factors, such as "bfloat16".

        Returns:
            The rate without sparsity, with sums in float32.

        >>> Target("h200").product_tflops("float32"), Target("mi300x").product_tflops("float8_e4m3fn")
        (67.0, 2614.9)
        """
        rates = RATES.get(self.name)
        if self.tflops is None or rates is None:
            return self.tflops
        return rates.eights if dtype.startswith("float8") else rates.float32 if dtype == "float32" else self.tflops

    @property
    def hardware_tanh(self) -> bool:
        """Whether it has an instruction for tanh, with a relative error of about 2**-11."""
        return self._at_least(7, 5)

    @property
    def e4m3(self) -> bool:
        """Whether Triton converts float8_e4m3fn there (Ada, Hopper and later, CDNA 3); assumed of a GPU of which the
        kind alone is known."""
        if self.matrix_unit == "wmma":
            return False  # RDNA 3 has no such instruction; LLVM does not finish what Triton writes in its stead.
        return self.capability is None or self._at_least(8, 9)

    @property
    def dependent_launch(self) -> bool:
        """Whether a kernel can start while the one before it ends."""
        return self._at_least(9)

    def _at_least(self, major: int, minor: int = 0) -> bool:
        return self.capability is not None and self.capability >= (major, minor)

    def __str__(self) -> str:
        known = self.name != "cuda" or self.capability is None
        return self.name if known else f"cuda {'.'.join(map(str, self.capability or ()))}"


def _check_capability(name: str, value: Any, sheet: Sheet) -> None:
    """Raise EmitError unless `found` is a compute capability that the GPU or kind `name` may have."""
    pair = isinstance(value, tuple) and len(value) == 2 and all(is_integer(n) and 0 <= n < 100 for n in value)
    if pair and (name == "cuda" or value == sheet.capability):
        return
    raise EmitError(
        f"capability={shown(value)} of name={name!r}: expected two integers with name='cuda', else None",
        help="for example Target('cuda', (9, 0)) for Hopper",
    )


def as_target(value: Any) -> Target:
    """`value` as a Target, if it is one, the name of one or of an architecture; EmitError otherwise.

    >>> str(as_target("sm_89")), str(as_target("gfx942"))
    ('cuda 8.9', 'mi300x')
    """
    if isinstance(value, Target):
        return value
    if isinstance(value, str):
        name = ALIASES.get(value, value)
        if name in SHEETS:
            return Target(name)
        # (The last digit is the minor version: "sm_120" is 12.0.)
        if found := re.fullmatch(r"sm_([1-9]\d?)(\d)", name, re.ASCII):
            return Target("cuda", (int(found[1]), int(found[2])))
    raise EmitError(
        f"target={shown(value)}: expected a Target, the name of a known GPU or architecture, or None", help=_HELP
    )


def registers_of_thread(warps: int, programs: int) -> int:
    """The most registers of a thread with which a multiprocessor of NVIDIA's runs so many programs.

    A thread gets eight at a time.

    >>> registers_of_thread(8, 3), registers_of_thread(16, 2)
    (80, 64)
    """
    return NVIDIA_REGISTERS // (32 * warps * programs) // 8 * 8


ANY = Target()
# Default code is planned for this GPU, so that its text is the same everywhere; it is also the target of code for one
# kind of GPU (descriptors, Gluon) on a machine without a GPU.
DEFAULT = Target("h200")

__all__ = [
    "ANY",
    "BESIDE_TWO_ROWS",
    "DEFAULT",
    "GPUS",
    "MATRIX_UNITS",
    "MOST_HOPPER_SMS",
    "MOST_SHARED_MEMORY",
    "MOST_STAGES",
    "NVIDIA_REGISTERS",
    "STAGES_OF_ONCE",
    "MemoryLevel",
    "Target",
    "as_target",
    "registers_of_thread",
]
