"""The classes of the record: frozen data without behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# Increased by one whenever a field is added, removed or changes its meaning; schema.py upgrades older records.
SCHEMA = 5

# Plain JSON with string keys; tuples inside come back as lists.
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a program.

    Args:
        node: stable id; several lines of one node share it.
        text: as shown, with indentation.
        origin: the stage of the definition that it comes from, or "" (a loop around several).
        kind: "definition", "loop", "guard", "store", "comment", "tile", "for", "kernel" and so on. Words may follow
            that say what the node does, such as "tile dot accumulates" (`htile.words`) or "store mask".
        refs: ids of lines of the stage above.
    """

    node: str
    text: str
    origin: str = ""
    kind: str = ""
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Name, shape and dtype of an input or output.

    Args:
        sizes: the name of each dimension whose size is known at the launch only, "" of the others; () if all are
            static.  `shape` is a sample's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonLine:
    """A line of the user's Python that the operator was traced from.

    Args:
        number: in its file or cell, from 1.
        text: with its indentation.
        definition: ids of the lines of the definition that it became.
        within: ids of other lines of the definition, whose expression contains what this line computes.
    """

    number: int
    text: str
    definition: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function of the user's Python: `title` is its name and where it is."""

    title: str
    lines: tuple[PythonLine, ...]


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """The compiled operator: `params` are its arguments, `definition` has one line per stage.

    `python` has the functions that a traced operator comes from; it is empty for others.
    """

    name: str
    title: str
    params: Json
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    source: str
    definition: tuple[Line, ...]
    python: tuple[PythonFunction, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A tensor or block; `x`, `y` is its centre, in points, from the top left; None without a layout."""

    id: str
    label: str
    kind: Literal["input", "map", "reduce", "output"]
    detail: str = ""
    role: str = ""
    x: float | None = None
    y: float | None = None
    width: float | None = None
    height: float | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """`target` reads `tensor` of `source`; `points` is the line to draw, in points, from the source to the target.

    "fused": inside one loop; "early": read before it is complete; "repaired": such a read, corrected by a repair.
    """

    source: str
    target: str
    tensor: str
    kind: Literal["plain", "fused", "repaired", "early"] = "plain"
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """The dataflow graph of a program's loop nests; `width` and `height` of the whole drawing, in points."""

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    width: float | None = None
    height: float | None = None


@dataclass(frozen=True, slots=True)
class DerivationStep:
    """One step of the algebra, in three notations; `ok` is false on the step that was refused."""

    title: str
    text: str
    latex: str
    mathml: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Derivation:
    """The derivation of a repair term, or of its refusal: `term` is g as text, `summary` a sentence."""

    reducer: str
    term: str
    steps: tuple[DerivationStep, ...]
    accepted: bool
    summary: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step: the program after it, its graph, and its algebra, if any.

    Args:
        key: "dataflow", "naive", "repair", "repaired", or the primitive's name for a step of one phase.
        title: a few words.
        note: what happened and why.
        program: the loop program after the phase; `refs` are lines of the definition.
        graph: its dataflow graph.
        derivation: of the repair term.
        wrong: the program computes wrong numbers here, as naive fusion does.
    """

    key: str
    title: str
    note: str
    program: tuple[Line, ...]
    graph: Graph
    derivation: Derivation | None = None
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One applied primitive; if it was refused, `error` is set and the program is unchanged.

    `template` names the template that applied the step; it is "" for a step that was written by hand.
    """

    index: int
    primitive: str
    arguments: Json
    summary: str
    phases: tuple[Phase, ...]
    error: str | None = None
    template: str = ""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The HTile program after the pass called `name`; `refs` are lines of the last loop program.

    `notes` is the proof of a pass, one sentence per line; lines that belong to the line above are indented.
    """

    name: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the Triton source, and its origins.

    Args:
        number: from 1.
        text: as in the source.
        nodes: ids of lines of the HTile program that was emitted.
        blocks: ids of lines of the last loop program.
        definition: ids of lines of the definition.
    """

    number: int
    text: str
    nodes: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    definition: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """What was emitted.

    Args:
        name: of the kernel.
        htile: the HTile program before any pass.
        passes: the HTile program after each pass, in order; the last one was emitted.
        source: the Triton source.
        triton: the same, one record per line.
        launches: one per kernel launch, in order: name, grid, constants and so on.
        validated: what was compared with the definition, as a sentence; "" in a record of an earlier version.
    """

    name: str
    htile: tuple[Line, ...]
    passes: tuple[PassRecord, ...]
    source: str
    triton: tuple[SourceLine, ...]
    launches: tuple[Json, ...] = ()
    validated: str = ""

    def __repr__(self) -> str:
        launches = f"{len(self.launches)} launch{'es' if len(self.launches) != 1 else ''}"
        lines = f"{len(self.source.splitlines())} lines; print its source to see them"
        return f"<KernelRecord {self.name}: {len(self.passes)} passes, {launches}, {lines}>"

    @property
    def emitted(self) -> tuple[Line, ...]:
        """The HTile program from which Triton was emitted."""
        return self.passes[-1].lines if self.passes else self.htile


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole compilation; `command` is the command line that repeats it, `versions` are of the packages used."""

    operator: OperatorRecord
    steps: tuple[StepRecord, ...] = ()
    kernel: KernelRecord | None = None
    versions: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    schema: int = SCHEMA

    def __repr__(self) -> str:
        kernel = "no kernel" if self.kernel is None else f"kernel {self.kernel.name}"
        return f"<Trace of {self.operator.name}: {len(self.steps)} steps, {kernel}>"

    @property
    def program(self) -> tuple[Line, ...]:
        """The loop program after the last step that was not refused; the definition if there is none."""
        for step in reversed(self.steps):
            if step.error is None and step.phases:
                return step.phases[-1].program
        return self.operator.definition
