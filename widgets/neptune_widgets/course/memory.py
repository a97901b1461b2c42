"""The memories of a GPU, and what a program moves between them: counted from programs and `Target`, not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neptune_lab import Target
    from neptune_lab.loop_ir.nodes import Program
    from neptune_lab.operators import Operator
    from neptune_lab.target import MemoryLevel

MEMORY_HEAD = ("memory", "what it holds in a fused kernel", "size", "rate of the whole GPU")
NEST_HEAD = ("loops of", "reads", "writes", "bytes")
LENGTH_HEAD = ("positions N", "numbers in N × N", "numbers in N × d", "definition, MB", "one kernel, MB", "times fewer")

_HOLDS = {
    "registers": "the running maximum, sum and accumulator",
    "shared memory": "tiles of keys and values",
    "L2 cache": "what several programs read soon after each other",
    "global memory": "inputs and outputs",
}


def memory_table(target: Target) -> list[tuple[str, str, str, str]]:
    """One row per level of the GPU's memory, from the fastest: name, what a fused kernel keeps there, size, rate."""
    return [(level.name, _HOLDS[level.name], _size(level), _rate(level)) for level in target.memory_levels]


def memory_figure(target: Target) -> tuple[Any, str]:
    """The levels as boxes, the smallest and fastest at the top; and the same in words.

    Args:
        target: a known GPU.
    """
    import plotly.graph_objects as go

    figure, words = go.Figure(), []
    colours = ("#009E73", "#56B4E9", "#E69F00", "#D55E00")
    levels = target.memory_levels
    for n, (level, colour) in enumerate(zip(levels, colours, strict=True)):
        y, half = len(levels) - n, 0.24 + 0.075 * n
        box = {"x0": 0.5 - half, "x1": 0.5 + half, "y0": y - 0.36, "y1": y + 0.36}
        # No fill: the text inside is read on white pages and on dark ones.
        figure.add_shape(type="rect", **box, line={"color": colour, "width": 2})
        text = f"<b>{_named(level)}</b>, {_size(level)}<br>{_HOLDS[level.name]}"
        figure.add_annotation(x=0.5, y=y, text=text, showarrow=False, font={"size": 13})
        words.append(f"{_named(level)}: {_size(level)}, {_rate(level)}")
        if n:
            figure.add_annotation(x=0.5, y=y + 0.5, text=f"↕ {_rate(level)}", showarrow=False, font={"size": 12})
    figure.update_xaxes(visible=False, range=[0, 1])
    figure.update_yaxes(visible=False, range=[0.5, len(levels) + 0.55])
    title = f"Memories of an {target.name.upper()}: {target.sm_count} multiprocessors, one L2, one global memory"
    figure.update_layout(title_text=title, height=400)
    return figure, f"{title}. {'; '.join(words)}."


def _named(level: MemoryLevel) -> str:
    return "global memory (HBM)" if level.name == "global memory" else level.name


def _size(level: MemoryLevel) -> str:
    if level.bytes is None:
        return "not published"
    if level.bytes >= 10**9:
        return f"{level.bytes / 10**9:.0f} GB"
    text = f"{level.bytes / 2**20:.0f} MiB" if level.bytes >= 2**20 else f"{level.bytes / 2**10:.0f} KiB"
    return text if level.shared else f"{text} per multiprocessor"


def _rate(level: MemoryLevel) -> str:
    if level.name == "registers":
        return "as fast as the arithmetic"
    return "unknown" if level.gbps is None else f"{level.gbps / 1e3:.1f} TB/s"


@dataclass(frozen=True, slots=True)
class NestTraffic:
    """What one loop nest moves to and from global memory if it reads and writes each tensor once.

    Args:
        blocks: the stages in it.
        reads, writes: tensors.
        bytes: of all of them.
    """

    blocks: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes: int

    @property
    def row(self) -> tuple[str, str, str, int]:
        """For a table with `NEST_HEAD`."""
        return ", ".join(self.blocks), ", ".join(self.reads), ", ".join(self.writes), self.bytes


def traffic(program: Program) -> tuple[NestTraffic, ...]:
    """The traffic of each outermost loop nest; tensors that only one nest uses, inputs and outputs aside, stay on chip.

    This is a lower bound: a kernel may read a tensor more than once.

    Args:
        program: of a schedule.
    """
    from neptune_lab.pipeline.facts import block_facts, buffer_bytes

    facts = block_facts(program)
    nests = {fact.nest[0]: [f for f in facts if f.nest[0] == fact.nest[0]] for fact in facts}

    def touched(nest: int) -> set[str]:
        return {name for fact in nests[nest] for name in (*fact.reads, fact.writes)}

    def crosses(name: str) -> bool:
        return name in program.params or sum(name in touched(nest) for nest in nests) > 1

    found = []
    for members in nests.values():
        writes = _once(fact.writes for fact in members if crosses(fact.writes))
        reads = _once(name for fact in members for name in fact.reads if crosses(name) and name not in writes)
        size = sum(buffer_bytes(program, name) for name in (*reads, *writes))
        found.append(NestTraffic(tuple(fact.name for fact in members), reads, writes, size))
    return tuple(found)


def total(nests: Iterable[NestTraffic]) -> int:
    """Bytes of all nests."""
    return sum(nest.bytes for nest in nests)


def length_table(operators: Sequence[Operator]) -> list[tuple[str, str, str, str, str, str]]:
    """One row per length of attention: the traffic of the definition, and of a kernel that only reads inputs and writes
    outputs.

    Args:
        operators: attention at several lengths, with equally many queries and keys.
    """
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.pipeline.facts import buffer_bytes

    rows = []
    for op in operators:
        program = Schedule(op).definition
        heads, n, d = program.buffer("q").shape[1:]
        apart, fused = total(traffic(program)), sum(buffer_bytes(program, name) for name in program.params)
        sizes = (f"{heads * n * n:,}", f"{heads * n * d:,}", f"{apart / 1e6:,.1f}", f"{fused / 1e6:,.1f}")
        rows.append((f"{n:,}", *sizes, f"{apart / fused:,.0f}"))
    return rows


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def balance(op: Operator, target: Target) -> str:
    """How long the definition's traffic and its operations take at the GPU's published rates, in words; an estimate.

    Args:
        op: any operator.
        target: a known GPU.
    """
    from neptune_lab.errors import EmitError
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.pipeline.facts import work

    if target.gbps is None or target.tflops is None:
        raise EmitError(
            f"target={str(target)!r}: its rates are not known", help="take a known GPU, such as Target('h200')"
        )
    program = Schedule(op).definition
    least = work(program)
    moved, flops = total(traffic(program)), least.flops
    rates = f"{target.gbps / 1e3:.1f} TB/s and {target.tflops:.0f} TFLOP/s"
    return (
        f"estimate, {target.name.upper()}, {rates}:\nthe stages' traffic takes {moved / target.gbps / 1e6:.2f} ms, "
        f"one kernel's {least.bytes / target.gbps / 1e6:.2f} ms, the operations {flops / target.tflops / 1e9:.2f} ms"
    )
