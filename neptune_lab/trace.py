"""The record: what the compiler did, phase by phase, as frozen data with a versioned JSON form.

Everything that shows a compilation (the widgets, the static page, the command line, the golden tests) shows a `Trace`.
This module needs Python's standard library alone, so a saved trace opens where TVM, SymPy, Triton and torch are not
installed.  Reading checks every field against its type and never runs anything from the file.

Four stages hang together by line ids: a line of the definition; a line of a loop program, whose `refs` are lines of
the definition; a line of HTile, whose `refs` are lines of the last loop program; a line of Triton, which names all
three.  `links` checks that nothing dangles.
"""

from __future__ import annotations

import ast
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from neptune_lab.errors import TraceError

# Raised by one whenever a field is added, dropped or means something else; a record of another number is refused.
SCHEMA = 1

# Plain JSON with string keys; tuples inside come back as lists.
Json: TypeAlias = dict[str, Any]

# -- the record -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a program.

    Args:
        node: stable id; lines that one node is spread over share it.
        text: as shown, indentation included.
        origin: the stage of the definition that it comes from, or "" (a loop around several).
        kind: "definition", "loop", "guard", "store", "comment" and so on, for colours.
        refs: ids of lines of the stage above.
    """

    node: str
    text: str
    origin: str = ""
    kind: str = ""
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Name, static shape and dtype of an input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """What was compiled: `params` are the arguments it was made from, `definition` has a line a stage."""

    name: str
    title: str
    params: Json
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    source: str
    definition: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A tensor or block; `x`, `y` is its centre, in points, from the top left, None where no layout was made."""

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

    "fused": inside one loop; "early": read before it is complete; "repaired": such a read, made good.
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
    """How the repair term was found, or why there is none: `term` is g as text, `summary` a sentence."""

    reducer: str
    term: str
    steps: tuple[DerivationStep, ...]
    accepted: bool
    summary: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step: the program after it, its graph, and its algebra where it has some.

    Args:
        key: "dataflow", "naive", "repair", "repaired", or the primitive's name for a step of one phase.
        title: a few words.
        note: what happened and why.
        program: the loop program after the phase; `refs` are lines of the definition.
        graph: its dataflow graph.
        derivation: of the repair term.
        wrong: the program is meant to compute wrong numbers here.
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
    """One primitive as it was applied; `error` where it refused, and then the program is what it was before."""

    index: int
    primitive: str
    arguments: Json
    summary: str
    phases: tuple[Phase, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The HTile program after the pass called `name`; `refs` are lines of the last loop program."""

    name: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the Triton source, and what it came from.

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
        htile: the HTile program as translated, before any pass.
        passes: the HTile program after each pass, in order; the last one was emitted.
        source: the Triton source.
        triton: the same, a record a line.
        launches: a kernel launch each, in order: name, grid, constants and the like.
    """

    name: str
    htile: tuple[Line, ...]
    passes: tuple[PassRecord, ...]
    source: str
    triton: tuple[SourceLine, ...]
    launches: tuple[Json, ...] = ()

    @property
    def emitted(self) -> tuple[Line, ...]:
        """The HTile program that Triton was written from."""
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

    @property
    def program(self) -> tuple[Line, ...]:
        """The last loop program: of the last step that did not refuse; the definition, where there is none."""
        for step in reversed(self.steps):
            if step.error is None and step.phases:
                return step.phases[-1].program
        return self.operator.definition


# -- JSON -------------------------------------------------------------------------------------------------------------


def to_json(trace: Trace) -> str:
    """The record as JSON.

    Programs repeat a lot from phase to phase, so each distinct line stands once, in `lines`, and a program is a list
    of positions there.
    """
    pool: dict[Line, int] = {}
    packed = _pack(trace, Trace, "trace", pool)
    lines = [[x.node, x.text, x.origin, x.kind, list(x.refs)] for x in pool]
    return json.dumps({**packed, "lines": lines}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Trace:
    """The record that `to_json` wrote; TraceError says what is wrong with any other text."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise TraceError("not a record: it is nested too deeply") from error
    except ValueError as error:
        raise TraceError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or "schema" not in data:
        raise TraceError("not a record: expected an object with a field 'schema'")
    if data["schema"] != SCHEMA or isinstance(data["schema"], bool):
        raise TraceError(
            f"the record has schema {data['schema']!r}, this version reads schema {SCHEMA}",
            help="write the trace again with this version, or read it with the version that wrote it",
        )
    rows = _fit(data.pop("lines", None), list, "trace.lines")
    lines = []
    for n, row in enumerate(rows):
        where = f"trace.lines[{n}]"
        if len(_fit(row, list, where)) != 5:
            raise TraceError(f"{where} has {len(row)} values, expected node, text, origin, kind, refs")
        node, content, origin, kind = (_fit(x, str, where) for x in row[:4])
        lines.append(Line(node, content, origin, kind, tuple(_fit(r, str, where) for r in _fit(row[4], list, where))))
    return _unpack(data, Trace, "trace", lines)


def save(trace: Trace, path: str | Path) -> None:
    """Writes the record to `path`, as UTF-8."""
    Path(path).write_text(to_json(trace), encoding="utf-8")


def load_trace(path: str | Path) -> Trace:
    """The record that `save` wrote to `path`; TraceError where there is none."""
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not JSON: not UTF-8 text") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


@lru_cache
def _hints(cls: type) -> dict[str, Any]:
    """The type of every field."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _fit(value: Any, kind: type, where: str) -> Any:
    """`value`, which is of type `kind` (a whole number also counts as a float); else TraceError."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TraceError(f"{where} is {type(value).__name__}, expected {kind.__name__}")
    if kind is float and not isfinite(value):
        raise TraceError(f"{where} is {value}, expected a finite number")
    return value


def _plain(value: Any, where: str) -> Any:
    """A copy of plain JSON, tuples as lists; TraceError where it is not."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _fit(value, float, where)
        case list() | tuple():
            return [_plain(v, f"{where}[{n}]") for n, v in enumerate(value)]
        case dict():
            return {_fit(k, str, f"a key of {where}"): _plain(v, f"{where}.{k}") for k, v in value.items()}
    raise TraceError(f"{where} is {type(value).__name__}, expected plain JSON")


def _members(value: Any, args: tuple[Any, ...], where: str) -> list[tuple[Any, Any, str]]:
    """(value, type, place) of each member of a tuple of the type `tuple[args]`."""
    if args[-1] is Ellipsis:
        return [(v, args[0], f"{where}[{n}]") for n, v in enumerate(value)]
    if len(value) != len(args):
        raise TraceError(f"{where} has {len(value)} values, expected {len(args)}")
    return [(v, a, f"{where}[{n}]") for n, (v, a) in enumerate(zip(value, args, strict=True))]


def _leaf(value: Any, hint: Any, where: str) -> Any:
    """A value that is neither a record nor a tuple."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in args or not isinstance(value, str):
            raise TraceError(f"{where} is {value!r}, expected one of {', '.join(map(repr, args))}")
        return value
    if origin is dict:
        plain = _plain(_fit(value, dict, where), where)
        return plain if args[1] is Any else {k: _fit(v, args[1], f"{where}.{k}") for k, v in plain.items()}
    return _fit(value, hint, where)


def _pack(value: Any, hint: Any, where: str, pool: dict[Line, int]) -> Any:
    """A field's value as JSON; lines go to the pool."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _pack(value, args[0], where, pool)
    if hint is Line:
        _pack(_fit(value, Line, where).refs, tuple[str, ...], f"{where}.refs", pool)
        for name in ("node", "text", "origin", "kind"):
            _fit(getattr(value, name), str, f"{where}.{name}")
        return pool.setdefault(value, len(pool))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        _fit(value, hint, where)
        return {n: _pack(getattr(value, n), h, f"{where}.{n}", pool) for n, h in _hints(hint).items()}
    if origin is tuple:
        return [_pack(v, h, w, pool) for v, h, w in _members(_fit(value, tuple, where), args, where)]
    return _leaf(value, hint, where)


def _unpack(value: Any, hint: Any, where: str, lines: list[Line]) -> Any:
    """A field's value from JSON."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _unpack(value, args[0], where, lines)
    if hint is Line:
        if not 0 <= _fit(value, int, where) < len(lines):
            raise TraceError(f"{where} is line {value}, but the record has {len(lines)} lines")
        return lines[value]
    if is_dataclass(hint):
        assert isinstance(hint, type)
        hints = _hints(hint)
        _fit(value, dict, where)
        for missing in hints.keys() - value.keys():
            raise TraceError(f"{where} has no field {missing!r}")
        for extra in value.keys() - hints.keys():
            raise TraceError(f"{where} has a field {extra!r}, which schema {SCHEMA} does not know")
        return hint(**{n: _unpack(value[n], h, f"{where}.{n}", lines) for n, h in hints.items()})
    if origin is tuple:
        return tuple(_unpack(v, h, w, lines) for v, h, w in _members(_fit(value, list, where), args, where))
    return _leaf(value, hint, where)


# -- links between the stages ---------------------------------------------------------------------------------------


def links(trace: Trace) -> tuple[str, ...]:
    """What is wrong with the links between the stages, a sentence each; nothing where all hang together.

    Every `refs` names lines of the stage above, every edge of a graph two of its nodes, every origin a stage of the
    definition; and every statement of a Triton kernel reaches HTile, the loop program and the definition.
    """
    return tuple(_program_problems(trace)) + (() if trace.kernel is None else tuple(_kernel_problems(trace)))


def _program_problems(trace: Trace) -> Iterator[str]:
    stages = {line.origin for line in trace.operator.definition}
    defined = {line.node for line in trace.operator.definition}
    yield from _dangling(trace.operator.definition, set(), stages, "definition")
    for step in trace.steps:
        for phase in step.phases:
            where = f"step {step.index} ({step.primitive}), phase {phase.key}"
            yield from _dangling(phase.program, defined, stages, where)
            nodes = {node.id for node in phase.graph.nodes}
            for edge in phase.graph.edges:
                for end in (edge.source, edge.target):
                    if end not in nodes:
                        yield f"{where}: the edge {edge.source} to {edge.target} has no node {end!r}"


def _dangling(lines: tuple[Line, ...], above: set[str], stages: set[str], where: str) -> Iterator[str]:
    for line in lines:
        for ref in line.refs:
            if ref not in above:
                yield f"{where}: line {line.node!r} refers to {ref!r}, which the stage above does not have"
        if line.origin and line.origin not in stages:
            yield f"{where}: line {line.node!r} comes from {line.origin!r}, which is no stage of the definition"


def _kernel_problems(trace: Trace) -> Iterator[str]:
    kernel = trace.kernel
    assert kernel is not None
    stages = {line.origin for line in trace.operator.definition}
    program = {line.node for line in trace.program}
    yield from _dangling(kernel.htile, program, stages, "htile")
    for done in kernel.passes:
        yield from _dangling(done.lines, program, stages, f"htile after {done.name}")
    text = kernel.source.splitlines()
    if [line.text for line in kernel.triton] != text or [x.number for x in kernel.triton] != [*range(1, len(text) + 1)]:
        yield "triton: the lines are not those of the source"
        return
    above = {
        "nodes": {line.node for line in kernel.emitted},
        "blocks": program,
        "definition": {line.node for line in trace.operator.definition},
    }
    for line in kernel.triton:
        for name, known in above.items():
            for ref in getattr(line, name):
                if ref not in known:
                    yield f"triton, line {line.number}: {ref!r} in {name} does not exist"
    try:
        statements = list(_statements(kernel.source))
    except SyntaxError as error:
        yield f"triton: line {error.lineno} is not Python: {error.msg}"
        return
    for first, last in statements:
        for name in above:
            if not any(getattr(line, name) for line in kernel.triton[first - 1 : last]):
                yield f"triton, line {first}: it computes and has no {name}: {text[first - 1].strip()}"


def _statements(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of every statement of the `jit` functions that computes; of a loop, its head."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
        if not any(ast.unparse(name).split(".")[-1] == "jit" for name in names):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.stmt) or node is function or isinstance(node, ast.Pass):
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # a docstring
            body = getattr(node, "body", None)
            yield node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
