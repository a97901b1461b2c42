"""Machine code without Triton, for tests of what shows it: two instructions per line of the kernel's source."""

from __future__ import annotations

import neptune_lab as nl
from neptune_lab.machine_code import KernelCode, KernelResources, MachineCode, architecture_of, occupancy
from neptune_lab.machine_code.code import Stage
from neptune_lab.machine_code.counts import count

OPCODES = ("HGMMA.64x64x16.F32 R24, gdesc[UR8], R24", "FADD R1, R2, R3", "LDG.E.128 R4, [R2.64]", "BAR.SYNC 0x0")
AMD = ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]", "v_add_f32 v1, v2, v3")


def machine_code_of(kernel: nl.Kernel, target: object = None) -> MachineCode:
    """A stand-in for `Kernel.machine_code`."""
    architecture = architecture_of(target or "sm_90")
    numbers = [n for n, line in enumerate(kernel.source.splitlines(), 1) if line.startswith("    ")]
    stages = []
    for name in architecture.stages:
        lines = [f"// {name} of {architecture.name}"]
        frames: list[tuple[int, ...]] = [()]
        for place, n in enumerate(numbers * 2):
            opcodes = AMD if name == "amdgcn" else OPCODES
            opcode = opcodes[place % len(opcodes)]
            lines.append(f"\t{opcode}" if name == "amdgcn" else f"        /*{16 * place:04x}*/       {opcode} ;")
            frames.append((numbers[0], n))
        stages.append(Stage(name, "\n".join(lines) + "\n", tuple(frames)))
    resources = KernelResources(
        registers=132,
        scalar_registers=0,
        local_bytes=0,
        shared_bytes=57344,
        tensor_memory_columns=0,
        warps=4,
        threads=4 * architecture.lanes,
        occupancy=occupancy(architecture, 132, 57344, 4),
        counts=count(stages[-1].text, architecture.cuda),
    )
    names = [launch["kernel"] for launch in kernel.trace.kernel.launches] if kernel.trace.kernel else []
    return MachineCode(
        architecture.name,
        "3.7.1",
        tuple(KernelCode(name, (4, 4, 1), tuple(stages), resources) for name in names),
    )
