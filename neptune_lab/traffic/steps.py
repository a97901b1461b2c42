"""Traffic of every form that a program takes, from its definition to its kernel, at one GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.target import DEFAULT, Target
from neptune_lab.traffic.loops import of_loops
from neptune_lab.traffic.record import Roofline, Traffic
from neptune_lab.traffic.regions import LIMIT
from neptune_lab.traffic.tiles import Chip, of_tiles

# The L2 cache of NVIDIA's GPUs for data centers has two halves, and each keeps what its own multiprocessors read
# ("NVIDIA A100 Tensor Core GPU Architecture", "A100 L2 cache"): data that all of them read takes its size twice.
_COPIES = 2


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """Traffic of each form of a program, in order: the definition first, the kernel last, if there is one.

    Args:
        target: name of the GPU.
        forms: the definition, then each phase of each step, then the kernel.
        blocks: that were taken to reside on one multiprocessor at once.
    """

    target: str
    forms: tuple[Traffic, ...]
    blocks: int = 1

    @property
    def definition(self) -> Traffic:
        """Every stage a kernel of its own."""
        return self.forms[0]

    @property
    def kernel(self) -> Traffic:
        """The kernels that were emitted; the last loop program if none were."""
        return self.forms[-1]

    def __repr__(self) -> str:
        return f"<TrafficRecord of {len(self.forms)} forms on {self.target}>\n{self}"

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"target": self.target, "blocks": self.blocks, "forms": [form.as_record() for form in self.forms]}

    def __str__(self) -> str:
        """A table with a row per form; forms in a row that move the same share one."""
        rows: list[tuple[str, ...]] = [("form", "HBM MB", "moved MB", "on chip MB", "Gop", "us", "bound by")]
        for form in self.forms:
            line = form.roofline
            amounts = (form.hbm / 1e6, form.moved / 1e6, form.chip / 1e6, form.operations / 1e9)
            bound = ("", "") if line is None else (f"{line.us:.4g}", line.bound)
            figures = (*(f"{x:.4g}" for x in amounts), *bound)
            if len(rows) > 1 and rows[-1][1:] == figures and form is not self.kernel:
                first = rows[-1][0].partition(" … ")[0]
                rows[-1] = (f"{first} … {form.name}", *figures)
            else:
                rows.append((form.name, *figures))
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        return "\n".join("  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def traffic_of(
    loops: Iterable[tuple[str, int, str, Program]], tiles: TileProgram | None, target: Target, blocks: int = 1
) -> TrafficRecord:
    """Counts every form of a program.

    Args:
        loops: name, index of the step, key of the phase, and the loop program; the definition first.
        tiles: the HTile program that was emitted; None: there is none yet, and the last form is a loop program.
        target: the GPU; it decides what fits on chip and into the L2 cache, and the roofline.
        blocks: that reside on one multiprocessor at once.
    """
    forms: list[Traffic] = []
    last: Program | None = None
    for name, step, phase, program in loops:
        if program is last:  # a step that only says something
            forms.append(replace(forms[-1], name=name, step=step, phase=phase))
        else:
            forms.append(of_loops(program, name, step, phase, target.shared_memory))
        last = program
    if tiles is not None:
        forms.append(kernel_traffic(tiles, target, blocks))
    found = tuple(replace(form, roofline=_roofline(form, target)) for form in forms)
    return TrafficRecord(str(target), found, blocks)


def kernel_traffic(tiles: TileProgram, target: Target, blocks: int = 1, most: int = LIMIT) -> Traffic:
    """Counts the kernels of a program alone, without a roofline.

    Args:
        tiles, target, blocks: as for `traffic_of`.
        most: as for `of_tiles`; fewer take less time.
    """
    return of_tiles(tiles, Chip(target.sm_count * blocks, _cache(target) / _COPIES), most)


def _cache(target: Target) -> int:
    """Bytes of the L2 cache, the default GPU's if they are not known."""
    levels = (*target.memory_levels, *DEFAULT.memory_levels)
    return next(level.bytes for level in levels if level.name == "L2 cache" and level.bytes is not None)


def _roofline(form: Traffic, target: Target) -> Roofline | None:
    if target.tflops is None or target.gbps is None:
        return None
    return Roofline(str(target), form.hbm / target.gbps / 1e3, form.operations / target.tflops / 1e6)
