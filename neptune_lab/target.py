"""GPUs that code is emitted and planned for: every figure of a GPU, and every question about what one can do.

No other module has a constant of a GPU or compares compute capabilities, except `machine_code`, which has the limits of
a multiprocessor by architecture.  torch and Triton are asked about the GPU here by `Target.current` only, and imported
then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from neptune_lab.errors import EmitError
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_integer, check_number, is_integer

if TYPE_CHECKING:
    from neptune_lab.runtime import Ceiling, DeviceFacts


class _Sheet(NamedTuple):
    """Figures of one GPU; the fields are those of `Target`."""

    kind: str
    capability: tuple[int, int] | None
    sm_count: int
    shared_memory: int
    tflops: float | None = None
    gbps: float | None = None


# Sources.  Rates: the vendor's data sheet of the GPU, float16 products without sparsity.  Shared memory of NVIDIA's:
# CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", maximum per thread block.
_GPUS: Mapping[str, _Sheet] = MappingProxyType(
    {
        # "NVIDIA A100 Tensor Core GPU Architecture", table 1; data sheet of the A100 80GB SXM.
        "a100": _Sheet("cuda", (8, 0), 108, 163 * 1024, 312.0, 2039.0),
        # "NVIDIA H100 Tensor Core GPU Architecture", table 3; data sheet of the H100 SXM.
        "h100": _Sheet("cuda", (9, 0), 132, 227 * 1024, 989.0, 3350.0),
        # "NVIDIA H200 Tensor Core GPU" data sheet, H200 SXM: the H100's chip with other memory.
        "h200": _Sheet("cuda", (9, 0), 132, 227 * 1024, 989.0, 4800.0),
        # "NVIDIA DGX B200" data sheet, an eighth of it; it does not say how many multiprocessors, the driver says 148.
        "b200": _Sheet("cuda", (10, 0), 148, 227 * 1024, 2250.0, 8000.0),
        # "NVIDIA L40S" data sheet: 18,176 cores, 128 for each multiprocessor.
        "l40s": _Sheet("cuda", (8, 9), 142, 99 * 1024, 362.0, 864.0),
        # "NVIDIA Ada GPU Architecture", table 2.
        "rtx 4090": _Sheet("cuda", (8, 9), 128, 99 * 1024, 165.0, 1008.0),
        # "NVIDIA RTX Blackwell GPU Architecture", table 2.
        "rtx 5090": _Sheet("cuda", (12, 0), 170, 99 * 1024, 209.5, 1792.0),
        # "AMD Instinct MI300X Accelerator" data sheet; "AMD CDNA 3 Architecture": 64 KiB of local data share.
        "mi300x": _Sheet("hip", None, 304, 64 * 1024, 1307.4, 5300.0),
        # "AMD Radeon RX 7900 XTX" specifications; "RDNA 3 Instruction Set Architecture": 64 KiB of local data share per
        # work group.
        "rx 7900 xtx": _Sheet("hip", None, 96, 64 * 1024, 122.8, 960.0),
    }
)
# Other names of GPUs, and of architectures by a GPU that has it.
_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "rtx4090": "rtx 4090",
        "rtx5090": "rtx 5090",
        "rx7900": "rx 7900 xtx",
        "rx7900xtx": "rx 7900 xtx",
        "gfx942": "mi300x",
        "gfx1100": "rx 7900 xtx",
    }
)
# GPUs of which only the kind is known, and for NVIDIA's the capability.  Plans assume the default GPU's
# multiprocessors, and 96 KiB of shared memory, which Volta and all later GPUs of NVIDIA for data centres have, except
# the T4.
_KINDS: Mapping[str, _Sheet] = MappingProxyType(
    {
        "any": _Sheet("any", None, _GPUS["h200"].sm_count, 96 * 1024),
        "cuda": _Sheet("cuda", None, _GPUS["h200"].sm_count, 96 * 1024),
        "hip": _Sheet("hip", None, _GPUS["h200"].sm_count, _GPUS["mi300x"].shared_memory),
    }
)
_SHEETS: Mapping[str, _Sheet] = MappingProxyType({**_GPUS, **_KINDS})
# Names of the known GPUs.
GPUS = tuple(_GPUS)
_HELP = (
    f"names are {', '.join(map(repr, _SHEETS))}; target='sm_90' or Target('cuda', (9, 0)) is any GPU of compute "
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


class _Memory(NamedTuple):
    """Figures of memory beyond those of `_Sheet`: bytes, MHz, 10**9 bytes a second."""

    registers: int
    clock_mhz: int
    l2: int | None
    capacity: int
    l2_gbps: float | None = None


# Registers of 4 bytes that the programs of a multiprocessor of NVIDIA's share (CUDA C++ Programming Guide, same table).
NVIDIA_REGISTERS = 1 << 16
# Sources.  Registers of NVIDIA's: the constant above.
# Clocks: at these the multiprocessors reach the sheet's rate of products.  L2 of the H200 and the B200: as the driver
# says.  The H200's rate of L2 was measured: a kernel that reads 32 MB again and again, past the first-level cache.
_MEMORIES: Mapping[str, _Memory] = MappingProxyType(
    {
        "a100": _Memory(4 * NVIDIA_REGISTERS, 1410, 40 << 20, 80 * 10**9),
        "h100": _Memory(4 * NVIDIA_REGISTERS, 1830, 50 << 20, 80 * 10**9),
        "h200": _Memory(4 * NVIDIA_REGISTERS, 1830, 60 << 20, 141 * 10**9, 8700.0),
        "b200": _Memory(4 * NVIDIA_REGISTERS, 1856, 126 << 20, 180 * 10**9),
        "l40s": _Memory(4 * NVIDIA_REGISTERS, 2520, None, 48 * 10**9),
        "rtx 4090": _Memory(4 * NVIDIA_REGISTERS, 2520, 72 << 20, 24 * 10**9),
        # "AMD CDNA 3 Architecture": 512 KiB of vector registers per compute unit, 4 MiB of L2 on each of 8 dies.
        "mi300x": _Memory(512 * 1024, 2100, 32 << 20, 192 * 10**9),
        "rtx 5090": _Memory(4 * NVIDIA_REGISTERS, 2407, 96 << 20, 32 * 10**9),
        # "RDNA 3 Instruction Set Architecture": 192 KiB of vector registers per SIMD, two SIMDs per compute unit.
        "rx 7900 xtx": _Memory(384 * 1024, 2500, 6 << 20, 24 * 10**9),
    }
)


class _Rates(NamedTuple):
    """Products in 10**12 operations per second without sparsity: of 8 bits an element, and of float32 as it is."""

    eights: float
    float32: float


# Sources: those of `_GPUS`.  Sums are in float32.  NVIDIA multiplies float32 outside its matrix units (their TF32 has
# fewer bits); the MI300X has matrix instructions for it.  The A100 and the RX 7900 XTX have none of 8 bits that are
# floating point: products are of float16 then.  The B200's float32: "NVIDIA HGX Platform", an eighth of HGX B200.
_RATES: Mapping[str, _Rates] = MappingProxyType(
    {
        "a100": _Rates(312.0, 19.5),
        "h100": _Rates(1979.0, 67.0),
        "h200": _Rates(1979.0, 67.0),
        "b200": _Rates(4500.0, 75.0),
        "l40s": _Rates(733.0, 91.6),
        "rtx 4090": _Rates(330.3, 82.6),
        "rtx 5090": _Rates(419.0, 104.8),
        "mi300x": _Rates(2614.9, 163.4),
        "rx 7900 xtx": _Rates(122.8, 61.4),
    }
)
# The instructions for products of tiles: of NVIDIA's by the first number of the capability, of AMD's by GPU.
_UNITS: Mapping[int | str, str] = MappingProxyType(
    {8: "mma", 9: "wgmma", 10: "tcgen05", 12: "mma", "mi300x": "mfma", "rx 7900 xtx": "wmma"}
)
MATRIX_UNITS = ("mma", "wgmma", "tcgen05", "mfma", "wmma")
# What shared memory delivers per multiprocessor and clock: 32 banks of 4 bytes (CUDA C++ Programming Guide; "AMD CDNA 3
# Architecture" likewise).
_SHARED_BYTES_PER_CLOCK = 128

# The most shared memory of one block on any known GPU: tiles that need more fit nowhere.
MOST_SHARED_MEMORY = max(gpu.shared_memory for gpu in _GPUS.values())
# All multiprocessors of the Hopper chip ("NVIDIA H100 Tensor Core GPU Architecture", table 3); no product has all
# enabled.
MOST_HOPPER_SMS = 144


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
        sheet = _SHEETS.get(self.name) if isinstance(self.name, str) else None
        if sheet is None:
            raise EmitError(f"name={shown(self.name)}: expected the name of a known GPU, or a kind", help=_HELP)
        if self.capability is not None:
            _check_capability(self.name, self.capability, sheet)
            alike = (gpu for gpu in _GPUS.values() if gpu.capability == self.capability)
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
        return next((cls(name) for name in _GPUS if re.search(rf"\b{name}\b", words)), None)

    @property
    def kind(self) -> str:
        """The kind of GPU: "cuda", "hip", or "any"."""
        return _SHEETS[self.name].kind

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
        memory = _MEMORIES.get(self.name)
        if memory is None:
            return ()
        shared_gbps = _SHARED_BYTES_PER_CLOCK * self.sm_count * memory.clock_mhz / 1e3
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
        return _UNITS.get(self.name if self.capability is None else self.capability[0])

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
        rates = _RATES.get(self.name)
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


def _check_capability(name: str, value: Any, sheet: _Sheet) -> None:
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
        name = _ALIASES.get(value, value)
        if name in _SHEETS:
            return Target(name)
        # (The last digit is the minor version: "sm_120" is 12.0.)
        if found := re.fullmatch(r"sm_([1-9]\d?)(\d)", name, re.ASCII):
            return Target("cuda", (int(found[1]), int(found[2])))
    raise EmitError(
        f"target={shown(value)}: expected a Target, the name of a known GPU or architecture, or None", help=_HELP
    )


ANY = Target()
# Default code is planned for this GPU, so that its text is the same everywhere; it is also the target of code for one
# kind of GPU (descriptors, Gluon) on a machine without a GPU.
DEFAULT = Target("h200")
