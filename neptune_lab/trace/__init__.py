"""The record of a compilation, phase by phase, as frozen data with a versioned JSON form.

The widgets, the static page, the command line and the golden tests all show a `Trace`.  This package needs only
Python's standard library, so a saved trace opens without TVM, SymPy, Triton and torch.  Reading checks every field
against its type and never runs anything from the file.

Four stages are linked by line ids: a line of the definition (of a traced function, with the lines of the user's Python
that became it); a line of a loop program, whose `refs` are lines of the
definition; a line of HTile, whose `refs` are lines of the last loop program; a line of Triton, which refers to all
three.  `links` checks that every reference has a target.
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
    PythonFunction,
    PythonLine,
    SourceLine,
    StepRecord,
    TensorRecord,
    Trace,
)
from neptune_lab.trace.training import OnePass, OriginRecord, RuleRecord, TrainingRecord, UseRecord, ValueRecord

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
    "OnePass",
    "OperatorRecord",
    "OriginRecord",
    "PassRecord",
    "Phase",
    "PythonFunction",
    "PythonLine",
    "RuleRecord",
    "SourceLine",
    "StepRecord",
    "TensorRecord",
    "Trace",
    "TrainingRecord",
    "UseRecord",
    "ValueRecord",
    "from_json",
    "links",
    "load_trace",
    "save",
    "to_json",
]
