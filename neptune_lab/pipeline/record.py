"""The record of a compilation: a Trace made from what the stages kept. Views read it; nothing is computed for show."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import isinf
from typing import TYPE_CHECKING, NamedTuple

from neptune_lab.errors import NeptuneError
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.printer import print_program
from neptune_lab.htile.walk import loops_in
from neptune_lab.htile.words import kinds
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.loop_ir import render, tree
from neptune_lab.loop_ir.dataflow import Node, nodes_and_edges
from neptune_lab.loop_ir.nodes import Block, Const, Op, Program, Stmt
from neptune_lab.loop_ir.walks import loads, walk
from neptune_lab.loop_schedule.outcome import Phase
from neptune_lab.loop_schedule.schedule import Schedule, Step
from neptune_lab.pipeline.layout import laid_out
from neptune_lab.progress import tell
from neptune_lab.repair import RepairTerm, VectorRepair
from neptune_lab.repair import Step as DerivationStep
from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.trace import record

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

NO_SOURCES: Mapping[str, str] = {}
PACKAGES = ("apache-tvm", "triton", "torch", "sympy", "numpy")


class AppliedPass(NamedTuple):
    """An HTile pass as it was applied: its name, the program before and after it, and its proof, if it gives one."""

    name: str
    before: TileProgram
    program: TileProgram
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the pass changed the program; one that changes nothing returns the same object."""
        return self.program is not self.before


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages that the compiler uses.

    Returns:
        Versions by package name; "not installed" for a missing one.
    """
    numbers = {"python": platform.python_version()}
    for package in ("neptune-lab", *PACKAGES):
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            numbers[package] = "not installed"
    return numbers


def tensor_records(specs: Iterable[TensorSpec]) -> tuple[record.TensorRecord, ...]:
    """Inputs or outputs as the record keeps them."""
    return tuple(record.TensorRecord(s.name, s.shape, s.dtype, s.sizes or ()) for s in specs)


def operator_record(operator: Operator) -> record.OperatorRecord:
    """The operator as the record keeps it."""
    words = {f"def:{b.name}": _store_words(b) for b in tree.blocks(operator.program)}
    lines = tuple(_line(x, (), words[x.node]) for x in render.definition(operator.program))
    return record.OperatorRecord(
        operator.name,
        operator.title,
        operator.params,
        tensor_records(operator.inputs),
        tensor_records(operator.outputs),
        operator.source,
        lines,
        tuple(
            record.PythonFunction(
                function.title,
                tuple(
                    record.PythonLine(x.number, x.text, _definition_ids(x.stages), _definition_ids(x.within))
                    for x in function.lines
                ),
            )
            for function in operator.python
        ),
    )


def _definition_ids(stages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"def:{stage}" for stage in stages)


def _line(line: render.RenderedLine, refs: tuple[str, ...], words: str = "") -> record.Line:
    return record.Line(line.node, line.text, line.origin, f"{line.kind}{words}", refs)


def program_lines(program: Program, sources: Mapping[str, str] = NO_SOURCES) -> tuple[record.Line, ...]:
    """A loop program's lines, each linked to its stage of the definition.

    Args:
        program: the program.
        sources: for each stage that a normalisation added, the stage that it was made of (`Schedule.sources`).
    """
    tagged = frozenset(b.name for b in program.buffers if b.tagged)
    renamed = tuple(sources.items())
    return tuple([line for stmt in program.body for line in _nest_lines(stmt, tagged & render.touched(stmt), renamed)])


@lru_cache(maxsize=4096)
def _nest_lines(stmt: Stmt, tagged: frozenset[str], sources: tuple[tuple[str, str], ...]) -> tuple[record.Line, ...]:
    """The lines of one statement of a program's body, with `sources` as pairs. Phases share most of theirs."""
    renamed = dict(sources)
    words = {f"store:{b.name}": _store_words(b) for b in tree.blocks_under(stmt)}
    lines = (replace(x, origin=renamed.get(x.origin, x.origin)) for x in render.nest_lines(stmt, tagged))
    return tuple([_line(x, (f"def:{x.origin}",) if x.origin else (), words.get(x.node, "")) for x in lines])


@lru_cache(maxsize=4096)
def _store_words(block: Block) -> str:
    """What the kind of a store's lines says after its first word: " mask" if it hides elements by a condition on
    positions, " guard" if it replaces an infinity."""
    found = set()
    for expr in walk(block.body.value):
        match expr:
            case Op("select", (condition, *values)):
                infinite = any(isinstance(v, Const) and isinstance(v.value, float) and isinf(v.value) for v in values)
                if infinite or not loads(condition):
                    found.add("mask")
            case Op("guard"):
                found.add("guard")
    return "".join(f" {word}" for word in ("mask", "guard") if word in found)


def graph_record(program: Program, phase: Phase | None = None) -> record.Graph:
    """The dataflow graph of a program; edges say what is fused, read too early, or repaired."""
    found, flows = nodes_and_edges(program)
    nest = {b.name: n for n, stmt in enumerate(program.body) for b in tree.blocks_under(stmt)}
    origins = {b.name: b.origin for b in tree.blocks(program)}
    repairs = {b.name: b.repair for b in tree.blocks(program) if b.repair is not None}
    early = set() if phase is None else {(producer, reader) for reader, producer in phase.reads_early}
    edges = []
    for edge in flows:
        source, target = edge.source, edge.target
        kind = "plain"
        if source in nest and nest[source] == nest[target]:
            kind = "fused"
        repair = repairs.get(target)
        if repair is not None and origins.get(source) in repair.by:
            kind = "repaired" if repair.unproved is None else "early"
        if (source, target) in early:
            kind = "early"
        edges.append(_graph_edge(source, target, edge.tensor, kind))
    return record.Graph(tuple([_graph_node(node) for node in found]), tuple(edges))


@lru_cache(maxsize=4096)
def _graph_node(node: Node) -> record.GraphNode:
    return record.GraphNode(node.name, node.name, node.kind, node.detail, node.role.value)  # type: ignore[arg-type]


# Phases share most of their edges.
_graph_edge = lru_cache(maxsize=16384)(record.GraphEdge)


def _step_records(steps: Iterable[DerivationStep]) -> tuple[record.DerivationStep, ...]:
    return tuple(record.DerivationStep(s.title, s.text, s.latex, s.mathml, s.ok) for s in steps)


def derivation_record(term: RepairTerm | VectorRepair) -> record.Derivation:
    """A repair term, step by step, in three notations."""
    steps = _step_records(term.steps)
    data = term.as_record()
    summary = f"{data['h_call']} = {data['h']}"
    why = term.unproved if isinstance(term, RepairTerm) else None
    if why is not None:
        summary += f" is not proved: {why.reason}"
    return record.Derivation(term.reducer, data["g"], steps, why is None, summary)


def phase_record(phase: Phase, sources: Mapping[str, str] = NO_SOURCES) -> record.Phase:
    """A phase as the record keeps it."""
    derivation = None
    if phase.derivation is not None:
        derivation = derivation_record(phase.derivation)
    elif phase.refusal is not None:
        refusal = phase.refusal
        failed = record.DerivationStep(refusal.step, f"{refusal.expression}\n{refusal.reason}", "", "", False)
        steps = (*_step_records(refusal.passed), failed)
        derivation = record.Derivation(refusal.reducer, refusal.expression, steps, False, refusal.reason)
    return record.Phase(
        phase.key,
        phase.title,
        phase.note,
        program_lines(phase.program, sources),
        graph_record(phase.program, phase),
        derivation,
        phase.wrong,
    )


def steps_record(schedule: Schedule) -> tuple[record.StepRecord, ...]:
    """Every step with its phases; step 0 is the definition itself."""
    start = record.Phase(
        "definition",
        "definition",
        f"{schedule.operator.title}, every stage a loop nest of its own.",
        program_lines(schedule.definition),
        graph_record(schedule.definition),
    )
    steps = [record.StepRecord(0, "definition", {}, schedule.operator.name, (start,))]
    for n, applied in enumerate(schedule.history, 1):
        tell("record of step", applied.step)
        data = applied.step.as_record()
        phases = tuple(phase_record(p, schedule.sources) for p in applied.outcome.phases)
        steps.append(
            record.StepRecord(
                n, applied.step.primitive, data["arguments"], str(applied.step), phases, template=applied.template
            )
        )
    return laid_out(tuple(steps))


def schedule_trace(schedule: Schedule) -> record.Trace:
    """The record of a schedule without a kernel."""
    return record.Trace(operator_record(schedule.operator), steps_record(schedule), None, versions())


def refused_step(error: NeptuneError, step: Step, index: int, program: Program) -> record.StepRecord:
    """A step that was refused, with the phases that it reached; if the algebra refused, the last phase says why.

    Args:
        program: what the step was applied to; shown if it reached no phase.
    """
    reached = getattr(error, "phases", ()) or (Phase("before", "refused", "", program),)
    phases = tuple(phase_record(p) for p in reached)
    data = step.as_record()
    return record.StepRecord(index, step.primitive, data["arguments"], str(step), phases, str(error))


def htile_lines(tiles: TileProgram, origins: dict[str, str], loops: list[str]) -> tuple[record.Line, ...]:
    """An HTile program's lines, each linked to the block, or loop, that it was translated from.

    Args:
        origins: the stage of the definition of each block of the loop program.
        loops: the ids of its loop lines.
    """
    kind = kinds(tiles)
    heads = {f.node_id for kernel in tiles.kernels for f in loops_in(kernel.body)}
    lines = []
    for line in print_program(tiles):
        refs: tuple[str, ...] = ()
        if line.node_id in heads:
            refs = _loop_refs(loops, line.node_id)
        elif line.origin in origins:
            refs = (f"store:{line.origin}",)
        lines.append(
            record.Line(line.node_id, line.text, origins.get(line.origin, ""), kind.get(line.node_id, ""), refs)
        )
    return tuple(lines)


def _loop_refs(loops: list[str], node: str) -> tuple[str, ...]:
    """The loop line of an HTile loop `for:j0@qk`, or of a part `for:j0@qk/left`: the shortest path that ends there."""
    path, _, first = node.removeprefix("for:").partition("/")[0].partition("@")
    var = path.split(".")[-1]
    matching = [
        x for x in loops if x.endswith(f"@{first}") and var in x.removeprefix("loop:").partition("@")[0].split(".")
    ]
    return (min(matching, key=len),) if matching else ()


def kernel_record(
    name: str,
    program: Program,
    translated: TileProgram,
    passes: tuple[AppliedPass, ...],
    source: EmittedModule,
    sources: Mapping[str, str] = NO_SOURCES,
) -> record.KernelRecord:
    """HTile before and after each pass, and Triton with its links; `sources` as in `program_lines`."""
    origins = {b.name: sources.get(b.origin, b.origin) for b in tree.blocks(program)}
    loops = [line.node for line in render.render(program) if line.kind == "loop"]
    printed = htile_lines(translated, origins, loops)
    after: list[record.PassRecord] = []
    lines = printed
    for done in passes:
        if done.changed:
            lines = htile_lines(done.program, origins, loops)
        after.append(record.PassRecord(done.name, lines, done.notes))
    by_node = {line.node: line.refs for line in lines}
    computing = {line.number: line for line in source.lines}
    triton = []
    for number, text in enumerate(source.text.splitlines(), 1):
        line = computing.get(number)
        if line is None:
            triton.append(record.SourceLine(number, text))
            continue
        nodes = tuple(n for n in line.node_ids if n in by_node)
        blocks = tuple(dict.fromkeys(ref for n in nodes for ref in by_node[n]))
        named = [b.partition(":")[2] for b in blocks if b.startswith("store:")]
        named += [b.rpartition("@")[2] for b in blocks if b.startswith("loop:")]
        definition = tuple(dict.fromkeys(f"def:{origins[b]}" for b in named if origins.get(b)))
        triton.append(record.SourceLine(number, text, nodes, blocks, definition))
    launches = tuple(
        {
            "kernel": k.name,
            "grid": list(k.grid),
            "arguments": list(k.arguments),
            "num_warps": k.num_warps,
            "num_stages": k.num_stages,
        }
        for k in source.kernels
    )
    return record.KernelRecord(
        name,
        printed,
        tuple(after),
        source.text,
        tuple(triton),
        launches,
    )
