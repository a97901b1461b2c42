"""A large record is sent in parts: the first is small, and all together they are the record."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from large_records import chained
from neptune_widgets import parts

import neptune_lab as nl
from neptune_lab.operators import softmax
from neptune_lab.pipeline import layout
from neptune_lab.trace import Derivation, DerivationStep, GraphEdge, GraphNode, Trace, from_json, to_json

KINDS = ("plain", "fused", "repaired", "early")


def loaded(sent: parts.Sent) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The first part, and the others by what they have."""
    rest: dict[str, list[dict[str, Any]]] = {}
    for text in sent.rest:
        part = json.loads(text)
        rest.setdefault(part["part"], []).append(part)
    return json.loads(sent.head), rest


def rows(of: list[dict[str, Any]]) -> list[Any]:
    """The rows of parts, which say at which position they begin."""
    made: list[Any] = []
    for part in of:
        assert part["from"] == len(made)
        made += part["rows"]
    return made


def line(row: list[Any]) -> list[Any]:
    node, text, origin, kind, *refs = row
    return [node, text, origin, kind, refs[0] if refs else [f"def:{origin}"] if origin else []]


def node(row: list[Any]) -> GraphNode:
    name, label, *rest = row
    return GraphNode(name, label or name, *rest)


def edge(row: list[Any]) -> GraphEdge:
    source, target, tensor, kind, *points = row
    path = tuple((x, y) for x, y in points[0]) if points else ()
    return GraphEdge(source, target, tensor or source, KINDS[kind], path)


def derivation(row: dict[str, Any] | None) -> Derivation | None:
    return None if row is None else Derivation(**{**row, "steps": tuple(DerivationStep(**s) for s in row["steps"])})


@pytest.fixture(scope="module")
def kernel() -> Trace:
    return nl.compile(softmax.figure1(4, 8), block_q=2, block_kv=4, template="rolling_update", validate="none").trace


@pytest.mark.parametrize("which", ["kernel", "chained"])
def test_the_parts_together_are_the_record(which, kernel):
    trace = kernel if which == "kernel" else chained(60, 12)
    head, rest = loaded(parts.sent(trace, many=0))
    pool = [line(row) for row in rows(rest["lines"])]
    derivations = rows(rest["derivations"])
    nodes, edges = [node(row) for row in head["nodes"]], [edge(row) for row in head["edges"]]
    (programs,) = rest["phases"]
    whole = json.loads(to_json(trace))
    text = whole["lines"]
    assert [pool[n] for n in programs["definition"]] == [text[n] for n in whole["operator"]["definition"]]
    before: tuple[list[int], list[int], list[int]] = ([], [], [])
    phases = [p for step in trace.steps for p in step.phases]
    written = [p for step in whole["steps"] for p in step["phases"]]
    assert len(phases) == len(programs["programs"]) == len(head["graphs"])
    for n, phase in enumerate(phases):
        packed = (programs["programs"][n], *head["graphs"][n])
        before = tuple(parts.unpacked(now, last) for now, last in zip(packed, before, strict=True))  # type: ignore[assignment]
        assert [pool[k] for k in before[0]] == [text[k] for k in written[n]["program"]]
        assert tuple(nodes[k] for k in before[1]) == phase.graph.nodes
        assert tuple(edges[k] for k in before[2]) == phase.graph.edges
        assert derivation(derivations[n]) == phase.derivation
    if trace.kernel is not None:
        (code,) = rest["kernel"]
        now: list[int] = []
        stages = [trace.kernel.htile, *(p.lines for p in trace.kernel.passes)]
        for stage, lines in zip(code["stages"], stages, strict=True):
            now = parts.unpacked(stage, now)
            assert [pool[k] for k in now] == [[x.node, x.text, x.origin, x.kind, list(x.refs)] for x in lines]
        assert code["source"] == trace.kernel.source
        assert [row[:2] for row in code["triton"]] == [[x.number, x.text] for x in trace.kernel.triton]
    assert from_json(to_json(trace)) == trace  # the saved form is another, and stays


def test_runs_pack_any_two_lists():
    rng = random.Random(5)
    for _ in range(300):
        before = [rng.randrange(9) for _ in range(rng.randrange(12))]
        now = [rng.choice([*before, *range(14)]) for _ in range(rng.randrange(12))]
        assert parts.unpacked(parts.runs(now, before), before) == now
    assert parts.runs(range(50), range(50)) == [0, 50]


@pytest.fixture(scope="module")
def large() -> Trace:
    return chained(1440)


@pytest.mark.nightly
def test_the_first_part_of_a_large_record_is_small_and_has_the_first_view(large):
    trace = large
    sent = parts.sent(trace, first=(2, "naive"))
    assert sent.rest
    assert len(sent.head) < 400_000
    assert max(map(len, sent.rest)) < 1_000_000
    assert len(sent.head) + sum(map(len, sent.rest)) < 2_000_000
    head = json.loads(sent.head)
    at = {row[0]: row[2] for row in head["lines"]}
    keys = [f"{step.index}.{phase.key}" for step in trace.steps for phase in step.phases]
    number = keys.index("2.naive")
    assert set(head["near"]) == {str(number - 1), str(number)}
    shown = trace.steps[2].phases[1].program[: parts.FIRST_LINES]
    assert [at[k] for k in head["near"][str(number)]] == [x.text for x in shown]
    assert {n[0] for n in head["nodes"]} >= {n.id for n in trace.steps[0].phases[0].graph.nodes}


def test_a_small_record_is_sent_whole(kernel):
    sent = parts.sent(kernel)
    assert (sent.head, sent.rest) == (to_json(kernel), ())


@pytest.mark.nightly
def test_the_page_asks_for_the_other_parts(large):
    explorer = nl.explore(large)
    name = json.loads(explorer.payload)["trace"]["parts"]["name"]
    assert explorer.rest == {}
    explorer._handle_custom_msg({"kind": "rest", "seq": -3, "name": "of another record"}, [])
    assert explorer.rest == {}
    explorer._handle_custom_msg({"kind": "rest", "seq": -3, "name": name}, [])
    assert explorer.rest["name"] == name
    assert {json.loads(text)["part"] for text in explorer.rest["parts"]} == {"lines", "phases", "derivations"}


def test_a_large_graph_gets_no_positions():
    record = chained(72, 3)
    assert layout.laid_out(record.steps) == record.steps
    small = chained(12, 3)
    placed = layout.laid_out(small.steps)
    assert all(n.x is not None for step in placed for p in step.phases for n in p.graph.nodes)
