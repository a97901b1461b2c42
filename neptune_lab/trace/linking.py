"""Checks the links between the stages of a record: every id must exist, every line of Triton must have its origins."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neptune_lab.errors import TraceError
from neptune_lab.strict.values import check_kind
from neptune_lab.trace.record import Line, Trace


def links(trace: Trace) -> tuple[str, ...]:
    """Checks the links between the stages of a record.

    Every `refs` names lines of the stage above, every edge of a graph two of its nodes, every origin a stage of the
    definition; and every statement of a Triton kernel reaches HTile, the loop program and the definition.

    Args:
        trace: the record.

    Returns:
        One sentence per problem; empty if every link has a target.
    """
    check_kind("trace", trace, Trace, "a record", TraceError, help="such as kernel.trace, or nl.load_trace(path)")
    return tuple(_program_problems(trace)) + (() if trace.kernel is None else tuple(_kernel_problems(trace)))


def _program_problems(trace: Trace) -> Iterator[str]:
    stages = {line.origin for line in trace.operator.definition}
    defined = {line.node for line in trace.operator.definition}
    yield from _dangling(trace.operator.definition, set(), stages, "definition")
    for function in trace.operator.python:
        for line in function.lines:
            for ref in (*line.definition, *line.within):
                if ref not in defined:
                    yield f"{function.title}: line {line.number} refers to {ref!r}, which the definition does not have"
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
    """What is wrong with the links of a record's tile programs and of its Triton source, a sentence each."""
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
    """First and last line of every statement of the `jit` functions that computes something; for a loop, of its
    header."""
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
