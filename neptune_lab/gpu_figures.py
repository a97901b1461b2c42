"""Every figure of a GPU, with its source; `target.Target` answers questions about them.

No other module has a constant of a GPU, except `machine_code`, which has the limits of a multiprocessor by
architecture.  A new GPU is a row in each table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Sheet(NamedTuple):
    """Figures of one GPU; the fields are those of `Target`."""

    kind: str
    capability: tuple[int, int] | None
    sm_count: int
    shared_memory: int
    tflops: float | None = None
    gbps: float | None = None


# Sources.  Rates: the vendor's data sheet of the GPU, float16 products without sparsity.  Shared memory of NVIDIA's:
# CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", maximum per thread block.
GPU_SHEETS: Mapping[str, Sheet] = MappingProxyType(
    {
        # "NVIDIA A100 Tensor Core GPU Architecture", table 1; data sheet of the A100 80GB SXM.
        "a100": Sheet("cuda", (8, 0), 108, 163 * 1024, 312.0, 2039.0),
        # "NVIDIA H100 Tensor Core GPU Architecture", table 3; data sheet of the H100 SXM.
        "h100": Sheet("cuda", (9, 0), 132, 227 * 1024, 989.0, 3350.0),
        # "NVIDIA H200 Tensor Core GPU" data sheet, H200 SXM: the H100's chip with other memory.
        "h200": Sheet("cuda", (9, 0), 132, 227 * 1024, 989.0, 4800.0),
        # "NVIDIA DGX B200" data sheet, an eighth of it; it does not say how many multiprocessors, the driver says 148.
        "b200": Sheet("cuda", (10, 0), 148, 227 * 1024, 2250.0, 8000.0),
        # "NVIDIA L40S" data sheet: 18,176 cores, 128 for each multiprocessor.
        "l40s": Sheet("cuda", (8, 9), 142, 99 * 1024, 362.0, 864.0),
        # "NVIDIA Ada GPU Architecture", table 2.
        "rtx 4090": Sheet("cuda", (8, 9), 128, 99 * 1024, 165.0, 1008.0),
        # "NVIDIA RTX Blackwell GPU Architecture", table 2.
        "rtx 5090": Sheet("cuda", (12, 0), 170, 99 * 1024, 209.5, 1792.0),
        # "AMD Instinct MI300X Accelerator" data sheet; "AMD CDNA 3 Architecture": 64 KiB of local data share.
        "mi300x": Sheet("hip", None, 304, 64 * 1024, 1307.4, 5300.0),
        # "AMD Radeon RX 7900 XTX" specifications; "RDNA 3 Instruction Set Architecture": 64 KiB of local data share per
        # work group.
        "rx 7900 xtx": Sheet("hip", None, 96, 64 * 1024, 122.8, 960.0),
    }
)
# Other names of GPUs, and of architectures by a GPU that has it.
ALIASES: Mapping[str, str] = MappingProxyType(
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
KIND_SHEETS: Mapping[str, Sheet] = MappingProxyType(
    {
        "any": Sheet("any", None, GPU_SHEETS["h200"].sm_count, 96 * 1024),
        "cuda": Sheet("cuda", None, GPU_SHEETS["h200"].sm_count, 96 * 1024),
        "hip": Sheet("hip", None, GPU_SHEETS["h200"].sm_count, GPU_SHEETS["mi300x"].shared_memory),
    }
)
SHEETS: Mapping[str, Sheet] = MappingProxyType({**GPU_SHEETS, **KIND_SHEETS})


class Memory(NamedTuple):
    """Figures of memory beyond those of `Sheet`: bytes, MHz, 10**9 bytes a second."""

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
MEMORIES: Mapping[str, Memory] = MappingProxyType(
    {
        "a100": Memory(4 * NVIDIA_REGISTERS, 1410, 40 << 20, 80 * 10**9),
        "h100": Memory(4 * NVIDIA_REGISTERS, 1830, 50 << 20, 80 * 10**9),
        "h200": Memory(4 * NVIDIA_REGISTERS, 1830, 60 << 20, 141 * 10**9, 8700.0),
        "b200": Memory(4 * NVIDIA_REGISTERS, 1856, 126 << 20, 180 * 10**9),
        "l40s": Memory(4 * NVIDIA_REGISTERS, 2520, None, 48 * 10**9),
        "rtx 4090": Memory(4 * NVIDIA_REGISTERS, 2520, 72 << 20, 24 * 10**9),
        # "AMD CDNA 3 Architecture": 512 KiB of vector registers per compute unit, 4 MiB of L2 on each of 8 dies.
        "mi300x": Memory(512 * 1024, 2100, 32 << 20, 192 * 10**9),
        "rtx 5090": Memory(4 * NVIDIA_REGISTERS, 2407, 96 << 20, 32 * 10**9),
        # "RDNA 3 Instruction Set Architecture": 192 KiB of vector registers per SIMD, two SIMDs per compute unit.
        "rx 7900 xtx": Memory(384 * 1024, 2500, 6 << 20, 24 * 10**9),
    }
)


class Rates(NamedTuple):
    """Products in 10**12 operations per second without sparsity: of 8 bits an element, and of float32 as it is."""

    eights: float
    float32: float


# Sources: those of `GPU_SHEETS`.  Sums are in float32.  NVIDIA multiplies float32 outside its matrix units (their TF32
# has fewer bits); the MI300X has matrix instructions for it.  The A100 and the RX 7900 XTX have none of 8 bits that are
# floating point: products are of float16 then.  The B200's float32: "NVIDIA HGX Platform", an eighth of HGX B200.
RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "a100": Rates(312.0, 19.5),
        "h100": Rates(1979.0, 67.0),
        "h200": Rates(1979.0, 67.0),
        "b200": Rates(4500.0, 75.0),
        "l40s": Rates(733.0, 91.6),
        "rtx 4090": Rates(330.3, 82.6),
        "rtx 5090": Rates(419.0, 104.8),
        "mi300x": Rates(2614.9, 163.4),
        "rx 7900 xtx": Rates(122.8, 61.4),
    }
)
# The instructions for products of tiles: of NVIDIA's by the first number of the capability, of AMD's by GPU.
UNITS: Mapping[int | str, str] = MappingProxyType(
    {8: "mma", 9: "wgmma", 10: "tcgen05", 12: "mma", "mi300x": "mfma", "rx 7900 xtx": "wmma"}
)
MATRIX_UNITS = ("mma", "wgmma", "tcgen05", "mfma", "wmma")
# What shared memory delivers per multiprocessor and clock: 32 banks of 4 bytes (CUDA C++ Programming Guide; "AMD CDNA 3
# Architecture" likewise).
SHARED_BYTES_PER_CLOCK = 128

# The most shared memory of one block on any known GPU: tiles that need more fit nowhere.
MOST_SHARED_MEMORY = max(gpu.shared_memory for gpu in GPU_SHEETS.values())
# All multiprocessors of the Hopper chip ("NVIDIA H100 Tensor Core GPU Architecture", table 3); no product has all
# enabled.
MOST_HOPPER_SMS = 144
