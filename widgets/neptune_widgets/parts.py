"""The record as the page gets it: a small one whole, a large one in parts, of which the first serves the first view.

Most lines, nodes and edges are the same from phase to phase. In parts each is sent once, in a pool, and a phase is sent
as runs of the phase before and of the pool. widgets/PROTOCOL.md lists the parts. Saved records have another form, that
of `neptune_lab.trace`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neptune_lab.trace import Derivation, Graph, GraphEdge, GraphNode, Line, Phase, Trace, to_json

# Positions of lines, nodes and edges in all phases, from which on a record is sent in parts.
MANY = 40_000
# Lines of a program that the first part has, and characters of the other parts.
FIRST_LINES = 400
_PART = 400_000
_KINDS = ("plain", "fused", "repaired", "early")


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as JSON texts.

    Args:
        head: the field `trace` of the payload.
        rest: further parts, which the page asks for.
        name: tells one record's parts from another's; "" without parts.
    """

    head: str
    rest: tuple[str, ...] = ()
    name: str = ""


def sent(trace: Trace, *, first: tuple[int, str] | None = None, many: int | None = None) -> Sent:
    """The record for a page.

    Args:
        trace: the record.
        first: step and phase that the page shows first; None: the first.
        many: positions from which on a record is sent in parts; None: `MANY`.
    """
    if _positions(trace) < (MANY if many is None else many):
        return Sent(to_json(trace))
    return _in_parts(trace, first)


def _positions(trace: Trace) -> int:
    phases = [p for step in trace.steps for p in step.phases]
    kernel = 0 if trace.kernel is None else sum(len(p.lines) for p in trace.kernel.passes)
    return kernel + sum(len(p.program) + 8 * (len(p.graph.nodes) + len(p.graph.edges)) for p in phases)


class _Pool:
    """Distinct items in the order in which they were met."""

    def __init__(self) -> None:
        self.at: dict[Any, int] = {}

    def positions(self, items: Iterable[Hashable]) -> list[int]:
        """Where the items are in the pool; new ones are added."""
        at = self.at
        return [at.setdefault(item, len(at)) for item in items]


def runs(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """`now` as runs, each a start and a count: of `before` from `start` on, or of the pool from `-1 - start` on.

    >>> runs([0, 1, 7, 8, 4], [0, 1, 2, 3, 4])
    [0, 2, -8, 2, 4, 1]
    """
    where: dict[int, int] = {}
    for n, item in enumerate(before):
        where.setdefault(item, n)
    made: list[int] = []
    start, count, old = 0, 0, False
    for item in now:
        if count and old and start + count < len(before) and before[start + count] == item:
            count += 1
            continue
        found = where.get(item)
        if count and not old and found is None and item == start + count:
            count += 1
            continue
        if count:
            made += [start if old else -1 - start, count]
        start, count, old = (item, 1, False) if found is None else (found, 1, True)
    if count:
        made += [start if old else -1 - start, count]
    return made


def unpacked(packed: Sequence[int], before: Sequence[int]) -> list[int]:
    """What `runs` packed.

    >>> unpacked([0, 2, -8, 2, 4, 1], [0, 1, 2, 3, 4])
    [0, 1, 7, 8, 4]
    """
    made: list[int] = []
    for start, count in zip(packed[::2], packed[1::2], strict=True):
        made += before[start : start + count] if start >= 0 else range(-1 - start, -1 - start + count)
    return made


def _in_parts(trace: Trace, first: tuple[int, str] | None) -> Sent:
    lines, nodes, edges = _Pool(), _Pool(), _Pool()
    definition = lines.positions(trace.operator.definition)
    phases = [p for step in trace.steps for p in step.phases]
    programs, graphs = [], []
    all_programs: list[list[int]] = []
    last: tuple[list[int], list[int], list[int]] = ([], [], [])
    for phase in phases:
        now = (
            lines.positions(phase.program),
            nodes.positions(map(_node, phase.graph.nodes)),
            edges.positions(map(_edge, phase.graph.edges)),
        )
        programs.append(runs(now[0], last[0]))
        graphs.append([runs(now[1], last[1]), runs(now[2], last[2])])
        all_programs.append(now[0])
        last = now
    loops = len(lines.at)
    kernel = None if trace.kernel is None else _kernel(trace, lines)
    pool = list(lines.at)

    shown = _shown(trace, first)
    early = definition[:FIRST_LINES]
    near = {n: all_programs[n][:FIRST_LINES] for n in ((shown - 1, shown) if shown else (shown,)) if n < len(phases)}
    wanted = dict.fromkeys([*early, *(at for positions in near.values() for at in positions)])
    whole = phases[0].graph if phases else Graph()
    rest = (
        *_split("lines", [_row(line) for line in pool]),
        _text({"part": "phases", "definition": definition, "programs": programs, "loops": loops}),
        *_split("derivations", [None if p.derivation is None else _derivation(p.derivation) for p in phases]),
        *([] if kernel is None else [_text({"part": "kernel", **kernel})]),
    )
    origins = {x.node.removeprefix("store:"): x.origin for x in pool[:loops] if x.node.startswith("store:")}
    name = hashlib.sha256("".join(rest).encode()).hexdigest()[:16]
    head = {
        "schema": trace.schema,
        "parts": {"name": name, "count": len(rest)},
        "operator": {**_shallow(trace.operator), "inputs": list(map(_shallow, trace.operator.inputs)),
                     "outputs": list(map(_shallow, trace.operator.outputs)), "definition": early,
                     "python": [{**_shallow(f), "lines": list(map(_shallow, f.lines))} for f in trace.operator.python]},
        "steps": [_step(step) for step in trace.steps],
        "kernel": None if trace.kernel is None else _kernel_head(trace),
        "versions": trace.versions,
        "command": trace.command,
        "lines": [[at, *_row(pool[at])] for at in wanted],
        "near": {str(n): positions for n, positions in near.items()},
        "nodes": list(nodes.at),
        "edges": list(edges.at),
        "graphs": graphs,
        "origins": {block: origin for block, origin in origins.items() if origin not in ("", block)},
        "size": [whole.width, whole.height],
    }  # fmt: skip
    return Sent(_text(head), rest, name)


def _shown(trace: Trace, first: tuple[int, str] | None) -> int:
    """The number of the phase that the page shows first."""
    number = 0
    for step in trace.steps:
        for phase in step.phases:
            if first is not None and (step.index, phase.key) == first:
                return number
            number += 1
    return 0


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _shallow(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _row(line: Line) -> list[Any]:
    """A line; the refs of most lines follow from their origin, and are left out."""
    row = [line.node, line.text, line.origin, line.kind]
    return row if line.refs == ((f"def:{line.origin}",) if line.origin else ()) else [*row, list(line.refs)]


def _node(node: GraphNode) -> tuple[Any, ...]:
    """A node, as it is in the pool; without a label that is its id, and without places that it has not."""
    label = "" if node.label == node.id else node.label
    head = (node.id, label, node.kind, node.detail, node.role)
    return head if node.x is None else (*head, node.x, node.y, node.width, node.height)


def _edge(edge: GraphEdge) -> tuple[Any, ...]:
    """An edge, as it is in the pool; without a tensor that is called as its source, and without points."""
    tensor = "" if edge.tensor == edge.source else edge.tensor
    head = (edge.source, edge.target, tensor, _KINDS.index(edge.kind))
    return (*head, edge.points) if edge.points else head


def _step(step: Any) -> dict[str, Any]:
    return {
        "index": step.index,
        "primitive": step.primitive,
        "arguments": step.arguments,
        "summary": step.summary,
        "error": step.error,
        "template": step.template,
        "phases": [_phase(p) for p in step.phases],
    }


def _phase(phase: Phase) -> dict[str, Any]:
    """A phase without its program and graph, and with the outcome of its algebra alone."""
    found = phase.derivation
    brief = None if found is None else {**_derivation(found), "steps": []}
    return {"key": phase.key, "title": phase.title, "note": phase.note, "wrong": phase.wrong, "derivation": brief}


def _derivation(found: Derivation) -> dict[str, Any]:
    return {**_shallow(found), "steps": list(map(_shallow, found.steps))}


def _kernel_head(trace: Trace) -> dict[str, Any]:
    kernel = trace.kernel
    assert kernel is not None
    gluon, triton = ("@gluon.jit" in kernel.source, "@triton.jit" in kernel.source)
    return {
        "name": kernel.name,
        "passes": [{"name": p.name, "lines": [], "notes": list(p.notes)} for p in kernel.passes],
        "launches": list(kernel.launches),
        "validated": kernel.validated,
        # What it is written in is read from the source, which comes later.
        "source": "".join(["@gluon.jit\n" * gluon, "@triton.jit\n" * triton]),
        "htile": [],
        "triton": [],
    }


def _kernel(trace: Trace, lines: _Pool) -> dict[str, Any]:
    kernel = trace.kernel
    assert kernel is not None
    before: list[int] = []
    stages = []
    for program in (kernel.htile, *(p.lines for p in kernel.passes)):
        now = lines.positions(program)
        stages.append(runs(now, before))
        before = now
    sources = [[x.number, x.text, list(x.nodes), list(x.blocks), list(x.definition)] for x in kernel.triton]
    return {"stages": stages, "source": kernel.source, "triton": sources}


def _split(part: str, rows: Sequence[Any]) -> list[str]:
    """Rows as texts of about `_PART` characters."""
    made: list[str] = []
    now: list[str] = []
    start, size = 0, 0
    for n, row in enumerate(rows):
        text = _text(row)
        if now and size + len(text) > _PART:
            made.append(f'{{"part":"{part}","from":{start},"rows":[{",".join(now)}]}}')
            now, start, size = [], n, 0
        now.append(text)
        size += len(text)
    return [*made, f'{{"part":"{part}","from":{start},"rows":[{",".join(now)}]}}']
