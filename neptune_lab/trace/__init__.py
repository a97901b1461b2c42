"""The record: what the compiler did, phase by phase, as frozen data with a versioned JSON form.

Everything that shows a compilation (the widgets, the static page, the command line, the golden tests) shows a `Trace`.
This package needs Python's standard library alone, so a saved trace opens where TVM, SymPy, Triton and torch are not
installed.  Reading checks every field against its type and never runs anything from the file.

Four stages hang together by line ids: a line of the definition; a line of a loop program, whose `refs` are lines of
the definition; a line of HTile, whose `refs` are lines of the last loop program; a line of Triton, which names all
three.  `links` checks that nothing dangles.
"""

from neptune_lab.trace.json_form import from_json, load_trace, save, to_json
from neptune_lab.trace.linking import links
from neptune_lab.trace.record import (
    SCHEMA,
    Derivation,
    DerivationStep,
    Graph,
    GraphEdge,
    GraphNode,
    Json,
    KernelRecord,
    Line,
    OperatorRecord,
    PassRecord,
    Phase,
    SourceLine,
    StepRecord,
    TensorRecord,
    Trace,
)

__all__ = [
    "SCHEMA",
    "Derivation",
    "DerivationStep",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "Json",
    "KernelRecord",
    "Line",
    "OperatorRecord",
    "PassRecord",
    "Phase",
    "SourceLine",
    "StepRecord",
    "TensorRecord",
    "Trace",
    "from_json",
    "links",
    "load_trace",
    "save",
    "to_json",
]
