"""Facts about a fused operator: its repairs, loops and bytes, and the figures that compare them (notebook 08)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import neptune_lab as nl
from neptune_lab.autotune.cost_model import Machine, predict_program
from neptune_lab.bench import measured
from neptune_lab.bench.command import SHIPPED
from neptune_lab.loop_schedule.templates.common import finish
from neptune_lab.loop_schedule.templates.config import TileConfig
from neptune_lab.operators import Operator, norms
from neptune_lab.pipeline import Choice, Kernel, compile_choice
from neptune_lab.pipeline.facts import block_facts, work
from neptune_lab.runtime import call_on_arrays, load


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that a kernel carries out: of the reduction `block`, whose term is `g`, by `h`; both as text."""

    block: str
    g: str
    h: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """An operator compiled in three ways, each compared with float64.

    Args:
        name: the operator's.
        reductions: its reductions, in the order of the definition.
        repairs: those that were repaired, with h.
        loops: how many loops each kernel of the fused program has.
        least: bytes of all inputs and outputs, each once.
        fused, inlined, apart: bytes moved by the template's program, by one kernel a reduction (maps are written into
            their readers), and by one kernel a stage.
        kernels: how many kernels these three have.
        error: the largest relative error of the three against float64.
        kernel: the fused program.
    """

    name: str
    reductions: tuple[str, ...]
    repairs: tuple[Repair, ...]
    loops: tuple[int, ...]
    least: int
    fused: int
    inlined: int
    apart: int
    kernels: tuple[int, int, int]
    error: float
    kernel: Kernel


def fusion(operator: Operator, block_q: int | None = None, block_kv: int | None = None) -> Fusion:
    """Compiles and runs `operator` by the template `rolling_update` with these tiles, and in the two other ways."""
    fused = nl.compile(operator, "rolling_update", block_q=block_q, block_kv=block_kv)
    ways = (fused, each_alone(operator, maps_apart=False), each_alone(operator))
    moved = [bytes_moved(kernel) for kernel in ways]
    return Fusion(
        name=operator.name,
        reductions=tuple(b.name for b in block_facts(operator.program) if b.reduces),
        repairs=repairs(fused),
        loops=loops(fused),
        least=int(work(operator.program).bytes),
        fused=moved[0],
        inlined=moved[1],
        apart=moved[2],
        kernels=(len(ways[0].triton.kernels), len(ways[1].triton.kernels), len(ways[2].triton.kernels)),
        error=max(kernel.relative_error() for kernel in ways),
        kernel=fused,
    )


def each_alone(operator: Operator, *, maps_apart: bool = True) -> Kernel:
    """The operator as one kernel a stage; with `maps_apart` false, maps are written into the stages that read them."""
    schedule = nl.Schedule(operator)
    for block in block_facts(operator.program):
        if not (maps_apart or block.reduces or block.writes in operator.program.outputs):
            schedule.inline(block.name)
    finish(schedule, {}, TileConfig().matrix_unit, fuse_maps=False)
    return nl.compile(schedule)


def bytes_moved(kernel: Kernel) -> int:
    """Bytes that the kernel's programs load from global memory and store to it, by the tuner's model (MCFuser, Eq. 3):
    a tile that is needed again in another iteration or program counts again, within an iteration it counts once."""
    return round(predict_program(kernel.htile, Machine(bandwidth=1.0, peak=1.0, multiprocessors=1)).moved)


def loops(kernel: Kernel) -> tuple[int, ...]:
    """How many loops each kernel of the HTile program has."""
    parts = kernel.outline.split("\nkernel ")[1:]
    return tuple(sum(line.lstrip().startswith("for ") for line in part.splitlines()) for part in parts)


def repairs(kernel: Kernel) -> tuple[Repair, ...]:
    """What the kernel's schedule repaired, in order."""
    found = []
    for step in kernel.trace.steps:
        for phase in step.phases:
            if phase.derivation is not None and phase.derivation.accepted:
                h = phase.derivation.summary.partition(" = ")[2].partition("\n")[0]
                found.append(Repair(str(step.arguments["block"]), phase.derivation.term, h))
    return tuple(found)


def run(kernel: Kernel, *arrays: np.ndarray) -> Any:
    """The kernel on NumPy arrays: its output, or a tuple of them where it has several, in float64."""
    found = tuple(np.asarray(array, dtype="float64") for array in call_on_arrays(load(kernel.spec), arrays))
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True, slots=True)
class Recorded:
    """Ratios of a recorded benchmark, and where it ran.

    Args:
        device, date: of the run; the date in UTC, ISO 8601.
        versions: of torch and Triton.
        ratios: time of torch.compile (the faster of its modes) over ours, by operator, then by setup.
    """

    device: str
    date: str
    versions: str
    ratios: Mapping[str, Mapping[str, float]]


def recorded(*groups: str) -> Recorded:
    """The recorded run that comes with the package: the setups of these groups of the benchmark."""
    results = measured.read(SHIPPED)
    ratios: dict[str, dict[str, float]] = {}
    for setup in results.group(*groups):
        ratio = setup.over(measured.COMPILE)
        if ratio is not None:
            row = "gemm_chain" if setup.group == "chains" else setup.row
            ratios.setdefault(row, {})[setup.name] = ratio
    versions = ", ".join(f"{name} {results.versions[name]}" for name in ("torch", "triton"))
    return Recorded(results.device["name"], results.started[:10], versions, ratios)


def recorded_ways() -> dict[str, str]:
    """What the kernels of the recorded norms do with a row, by setup: each is compiled with its recorded options."""
    ways = {}
    for setup in measured.read(SHIPPED).group("norms"):
        options = next(dict(entry.options) for entry in setup.entries if entry.name == measured.OURS)
        name = options.pop("template")
        choice = Choice.of(None if name == "by shape" else name, options, "the recorded run")
        operator = getattr(norms, setup.row)(**setup.sizes)
        kernel = compile_choice(operator, choice)
        done = {step.primitive for step in kernel.trace.steps}
        ways[setup.name] = (
            "splits the row and combines"
            if "split_k_update" in done
            else "rolls over the row"
            if "rolling_update" in done
            else "holds the whole row"
        )
    return ways


_WAYS = (
    ("fused", "fused", "#0072B2"),
    ("inlined", "maps written into their readers", "#E69F00"),
    ("apart", "one kernel per stage", "#999999"),
)
_LOGARITHMIC = {"type": "log", "tickvals": [1, 2, 3, 5, 10, 20]}


def bytes_figure(fusions: Collection[Fusion]) -> tuple[dict[str, Any], str]:
    """Bars of the bytes moved over the least possible, and the same in words."""

    def over(found: Fusion, way: str) -> float:
        return getattr(found, way) / found.least

    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": [f.name for f in fusions],
            "x": [over(f, way) for f in fusions],
            "text": [f"{over(f, way):.1f}" for f in fusions],
            "textposition": "outside",
            "textfont": {"size": 11},
            "cliponaxis": False,
            "marker": {"color": colour},
        }
        for way, label, colour in _WAYS
    ]
    layout = {
        "title": {"text": "Bytes moved, over the least possible"},
        "xaxis": {"title": {"text": "bytes moved / bytes of inputs and outputs (logarithmic)"}, **_LOGARITHMIC},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "legend": {"orientation": "h", "y": -0.12},
        "uniformtext": {"mode": "show", "minsize": 10},
        "height": 800,
    }
    lines = [f"{f.name}: " + ", ".join(f"{label} {over(f, way):.2f}" for way, label, _ in _WAYS) for f in fusions]
    return {"data": bars, "layout": layout}, "\n".join(["Bytes moved over the least possible", *lines])


def ratios_figure(record: Recorded) -> tuple[dict[str, Any], str]:
    """A dot for each recorded setup, and the same in words."""
    colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
    dots = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": list(ratios.values()),
            "y": [name] * len(ratios),
            "text": list(ratios),
            "marker": {"color": colour, "size": 11, "opacity": 0.75, "line": {"color": "#333333", "width": 0.5}},
        }
        for (name, ratios), colour in zip(record.ratios.items(), colours, strict=True)
    ]
    equal = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dash", "width": 1}}
    layout = {
        "title": {"text": f"torch.compile's time over ours, recorded: {record.device}, {record.date}"},
        "xaxis": {"title": {"text": "ratio of times (logarithmic); right of 1 ours is faster"}, **_LOGARITHMIC},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "shapes": [equal],
        "showlegend": False,
        "height": 340,
    }
    told = "; ".join(f"{name}: {min(r.values()):.2f} to {max(r.values()):.2f}" for name, r in record.ratios.items())
    return {"data": dots, "layout": layout}, f"Recorded on {record.device}: torch.compile's time over ours. {told}"


__all__ = [
    "Fusion",
    "Recorded",
    "Repair",
    "bytes_figure",
    "bytes_moved",
    "each_alone",
    "fusion",
    "loops",
    "ratios_figure",
    "recorded",
    "recorded_ways",
    "repairs",
    "run",
]
