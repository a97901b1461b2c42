"""The resources of a module's kernels as text, for a terminal."""

from __future__ import annotations

from neptune_lab.machine_code.code import KernelCode, MachineCode


def to_text(code: MachineCode) -> str:
    """A block of lines per kernel: registers, memory, occupancy, and instructions by kind."""
    return "\n".join(line for kernel in code.kernels for line in (*_lines(kernel, code.target), ""))


def _lines(kernel: KernelCode, target: str) -> list[str]:
    r = kernel.resources
    held = r.occupancy
    scalars = f", {r.scalar_registers} scalar registers per wave" if r.scalar_registers else ""
    blocks = (
        f"{held.blocks} blocks ({held.warps} of {held.most_warps} warps) per multiprocessor, limited by "
        f"{' and '.join(held.limited_by)}"
        if held.blocks
        else f"one block does not fit, because of {' and '.join(held.limited_by)}"
    )
    tensor_memory = f", {r.tensor_memory_columns} columns of tensor memory" if r.tensor_memory_columns else ""
    matrix = [f"{m.count} {m.name}" for m in r.counts.matrix]
    memory = [f"{m.count} {m.kind} of {'a tile' if m.bytes is None else f'{m.bytes} B'}" for m in r.counts.memory]
    rows = {
        "threads": f"{r.threads} per block, in {r.warps} warps",
        "registers": f"{r.registers} per thread{scalars}",
        "spilled": f"{r.local_bytes} B of local memory per thread",
        "shared": f"{r.shared_bytes} B per block{tensor_memory}",
        "occupancy": blocks,
        "instructions": f"{r.counts.instructions} in the text",
        "matrix": ", ".join(matrix),
        "memory": ", ".join(memory),
        "waits": ", ".join(f"{n} {name}" for name, n in r.counts.waits),
        "barriers": ", ".join(f"{n} {name}" for name, n in r.counts.barriers),
    }
    return [f"{kernel.name} for {target}", *(f"  {name:<13}{text or 'none'}" for name, text in rows.items())]
