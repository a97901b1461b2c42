"""GPU architectures that code is compiled for ahead of time, and what one multiprocessor of each holds.

`target` has the figures of whole GPUs; the limits here are the same for every GPU of an architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from neptune_lab.errors import MachineCodeError
from neptune_lab.strict.console import shown
from neptune_lab.target import GPUS, Target

KIB = 1024


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture and the limits of one of its multiprocessors (AMD: compute unit; RDNA: work-group processor).

    Args:
        name: as compilers write it, such as "sm_90" or "gfx942".
        capability: CUDA compute capability, such as (9, 0); None for AMD's.
        lanes: threads of a warp (AMD: wave).
        partitions: schedulers, among which registers and warps are divided (AMD: SIMDs).
        registers: 32-bit registers per thread that one partition has for all of its warps together, times `lanes`.
        register_unit: registers are allocated in multiples of this many per thread.
        warps: warps that can reside at once.
        blocks: blocks that can reside at once.
        shared_memory: bytes of shared memory for all blocks together.
        block_shared_memory: bytes that one block can have.
        reserved: bytes that the system adds to each block's shared memory.
        shared_unit: shared memory is allocated in multiples of this many bytes.
    """

    name: str
    capability: tuple[int, int] | None
    lanes: int
    partitions: int
    registers: int
    register_unit: int
    warps: int
    blocks: int
    shared_memory: int
    block_shared_memory: int
    reserved: int
    shared_unit: int

    @property
    def cuda(self) -> bool:
        """Whether it is one of NVIDIA's."""
        return self.capability is not None

    @property
    def runs_gluon(self) -> bool:
        """Whether it has what the emitted Gluon kernels use."""
        return self.capability is not None and Target("cuda", self.capability).warpgroup_products

    @property
    def stages(self) -> tuple[str, ...]:
        """The forms that a Triton kernel takes on its way to this architecture, in order."""
        return ("ttir", "ttgir", "llir", *(("ptx", "sass") if self.cuda else ("amdgcn",)))


def _nvidia(major: int, minor: int, warps: int, blocks: int, shared: int, block_shared: int) -> Architecture:
    """Of all of them: 64 Ki registers, a quarter per scheduler, in units of 256 per warp; 1 KiB reserved per block."""
    held = (16 * KIB, 8, warps, blocks, shared * KIB, block_shared * KIB, KIB, 128)
    return Architecture(f"sm_{major}{minor}", (major, minor), 32, 4, *held)


# Sources.  NVIDIA: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", and the
# occupancy calculator of the CUDA toolkit (cuda_occupancy.h) for units and reserved memory.  AMD: LLVM,
# AMDGPUBaseInfo.cpp (waves, registers and their units, work groups) and the ISA guides of CDNA 3 and RDNA 3.
_ALL = (
    _nvidia(8, 0, 64, 32, 164, 163),
    _nvidia(8, 6, 48, 16, 100, 99),
    _nvidia(8, 9, 48, 24, 100, 99),
    _nvidia(9, 0, 64, 32, 228, 227),
    _nvidia(10, 0, 64, 32, 228, 227),
    _nvidia(12, 0, 48, 24, 100, 99),
    Architecture("gfx942", None, 64, 4, 512 * 64, 8, 32, 16, 64 * KIB, 64 * KIB, 0, 512),
    Architecture("gfx1100", None, 32, 4, 1536 * 32, 24, 64, 32, 128 * KIB, 64 * KIB, 0, 1024),
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _ALL})
_OF_CAPABILITIES = {a.capability: a for a in _ALL if a.cuda}
_OF_AMD_GPUS = {"mi300x": "gfx942", "rx 7900 xtx": "gfx1100"}
_HELP = (
    f"architectures are {', '.join(ARCHITECTURES)}; the name of a known GPU ({', '.join(GPUS)}) or a Target of one "
    "is accepted too"
)


def architecture_of(value: Any) -> Architecture:
    """The architecture that `value` names.

    >>> architecture_of("sm_90").name, architecture_of("mi300x").name
    ('sm_90', 'gfx942')

    Args:
        value: the name of an architecture ("sm_90", "gfx942") or of a known GPU ("h200"), or a Target.

    Returns:
        The architecture.

    Raises:
        MachineCodeError: `value` is none of these, or a Target without an architecture.
    """
    if isinstance(value, str) and value in ARCHITECTURES:
        return ARCHITECTURES[value]
    target = Target(value) if isinstance(value, str) and value in GPUS else value
    if isinstance(target, Target):
        found = _OF_CAPABILITIES.get(target.capability) or ARCHITECTURES.get(_OF_AMD_GPUS.get(target.name, ""))
        if found is not None:
            return found
    raise MachineCodeError(
        f"target={shown(str(value) if isinstance(value, Target) else value)}: expected an architecture", help=_HELP
    )
