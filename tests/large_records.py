"""Records with large graphs: `real` is compiled, `chained` is written in the form that the compiler writes.

To compile a schedule of hundreds of steps takes far longer than to show it.
"""

from __future__ import annotations

from typing import Any

import neptune_lab as nl
from neptune_lab.trace import Graph, GraphEdge, GraphNode, Line, OperatorRecord, Phase, StepRecord, TensorRecord, Trace

_LAYER = 6


def real(stages: int, fused: int = 8) -> Trace:
    """An operator of independent rows of stages, with the first `fused` rows fused by rolling updates.

    Args:
        stages: about how many nodes its graph has.
        fused: how many rows are fused.
    """
    from tvm import te

    def row(n: int) -> tuple[Any, Any]:
        """The input and the output of one row."""
        i, o = 2, 4
        x = te.placeholder((i, o), "float32", name=f"x{n}")
        j, k = te.reduce_axis((0, o), name="j"), te.reduce_axis((0, o), name="k")
        big: Any = te.compute((i,), lambda a: te.max(x[a, j], axis=j), name=f"l{n}_max")
        total: Any = te.compute((i,), lambda a: te.sum(te.exp(x[a, k] - big[a]), axis=k), name=f"l{n}_sum")
        p: Any = te.compute((i, o), lambda a, c: te.exp(x[a, c] - big[a]) / total[a], name=f"l{n}_p")
        gate: Any = te.compute((i, o), lambda a, c: te.exp(p[a, c]) * 0.5, name=f"l{n}_gate")
        return x, te.compute((i, o), lambda a, c: gate[a, c] + x[a, c], name=f"l{n}_out")

    inputs, outputs = zip(*(row(n) for n in range(stages // _LAYER)), strict=True)
    schedule = nl.Schedule(nl.operators.custom(f"rows_{stages}", list(inputs), list(outputs)))
    for n in range(min(fused, stages // _LAYER)):
        schedule.rolling_update(f"l{n}_sum", f"l{n}_max.j")
    from neptune_lab.pipeline import schedule_trace

    return schedule_trace(schedule)


def chained(stages: int, phases: int = 100) -> Trace:
    """A record of a chain of layers, whose reductions are fused one after the other in three phases each.

    Args:
        stages: how many nodes its graph has, its input aside.
        phases: about how many phases its steps have.
    """
    layers = stages // _LAYER
    blocks = [(f"l{n}_{part}", kind) for n in range(layers) for part, kind in _PARTS]
    reads = {f"l{n}_{part}": [_name(n, r) for r in read] for n in range(layers) for part, read in _READS.items()}
    definition = tuple(Line(f"def:{b}", f"{b}[i, j] = {_value(reads[b], kind)}", b, "definition") for b, kind in blocks)
    tensors = (TensorRecord("x", (2, 4), "float32"),), (TensorRecord(blocks[-1][0], (2, 4), "float32"),)
    operator = OperatorRecord(f"chain_{stages}", f"A chain of {stages} stages", {}, *tensors, "", definition)

    def graph(early: int, repaired: int) -> Graph:
        nodes = [GraphNode("x", "x", "input", "2 × 4 float32", "x")]
        nodes += [GraphNode(b, b, "map" if kind == "map" else "reduce", f"{kind} over k", "") for b, kind in blocks]  # type: ignore[arg-type]
        edges = []
        for b, _ in blocks:
            layer = int(b[1:].partition("_")[0])
            for r in reads[b]:
                inside = b.endswith("_sum") and r.endswith("_max")
                kind = "early" if inside and layer == early else "repaired" if inside and layer < repaired else "plain"
                edges.append(GraphEdge(r, b, r, kind))  # type: ignore[arg-type]
        return Graph(tuple(nodes), tuple(edges))

    def program(early: int, repaired: int) -> tuple[Line, ...]:
        lines = []
        for b, kind in blocks:
            layer = int(b[1:].partition("_")[0])
            fused = layer < repaired or layer == early
            ref = (f"def:{b}",)
            if not (fused and b.endswith("_sum")):
                lines.append(Line(f"loop:i.k@{b}", "for i, k in grid(2, 4):", b, "loop", ref))
            lines.append(Line(f"name:{b}", f"    # {b}", b, "comment", ref))
            value = _value(reads[b], kind)
            if fused and b.endswith("_sum") and layer != early:
                value = f"exp(l{layer}_max_before[i] - l{layer}_max[i]) * {b}[i] + {value}"
            lines.append(Line(f"store:{b}", f"    {b}[i, k] = {value}", b, "store", ref))
        return tuple(lines)

    start = Phase("definition", "definition", "Every stage a loop nest of its own.", program(-1, 0), graph(-1, 0))
    steps = [StepRecord(0, "definition", {}, operator.name, (start,))]
    for n in range(min(layers, phases // 3)):
        arguments = {"block": f"l{n}_sum", "loop": f"l{n}_max.k"}
        steps.append(
            StepRecord(
                n + 1,
                "rolling_update",
                arguments,
                f"rolling_update('l{n}_sum', 'l{n}_max.k')",
                (
                    Phase("dataflow", "dataflow", "What reads what.", program(-1, n), graph(-1, n)),
                    Phase("naive", "naive fusion", "Read too early.", program(n, n), graph(n, n), None, True),
                    Phase("repaired", "repaired program", "Right again.", program(-1, n + 1), graph(-1, n + 1)),
                ),
            )
        )
    return Trace(operator, tuple(steps), None, {"neptune-lab": "0"})


_PARTS = (("max", "max"), ("exp", "map"), ("sum", "sum"), ("p", "map"), ("gate", "map"), ("out", "map"))
_READS = {
    "max": ["-out"],
    "exp": ["-out", "max"],
    "sum": ["exp", "max"],
    "p": ["exp", "sum"],
    "gate": ["p"],
    "out": ["gate", "-out"],
}


def _name(layer: int, read: str) -> str:
    """The block that a part of a layer reads; "-" is for the layer before."""
    if not read.startswith("-"):
        return f"l{layer}_{read}"
    return f"l{layer - 1}_{read[1:]}" if layer else "x"


def _value(reads: list[str], kind: str) -> str:
    terms = " + ".join(f"{r}[i, k]" for r in reads)
    return f"exp({terms})" if kind == "map" else f"{kind}({terms} for k in range(4))"
