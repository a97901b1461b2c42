"""Graphs: each node has one place in all phases, with dot and without."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.operators import attention, softmax
from neptune_lab.pipeline import layout, schedule_trace
from neptune_lab.pipeline.facts import block_facts, loop_names, stores, work


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(attention.causal(batch=1, heads=32, seq=2048, head_dim=128))


@pytest.fixture(params=["dot", "without dot"])
def tool(request, monkeypatch):
    if request.param == "without dot":
        monkeypatch.setattr(layout.shutil, "which", lambda _: None)
    layout.draw.cache_clear()
    yield request.param
    layout.draw.cache_clear()


@pytest.mark.nightly
def test_nodes_keep_their_places_and_do_not_overlap(kernel, tool):
    trace = schedule_trace(kernel.schedule)
    places = {}
    for step in trace.steps:
        for phase in step.phases:
            for node in phase.graph.nodes:
                box = (node.x, node.y, node.width, node.height)
                assert None not in box
                assert places.setdefault(node.id, box) == box
                assert node.width / 2 <= node.x <= phase.graph.width - node.width / 2
                assert node.height / 2 <= node.y <= phase.graph.height - node.height / 2
            for edge in phase.graph.edges:
                assert len(edge.points) >= 2
    boxes = list(places.values())
    for n, (x, y, w, h) in enumerate(boxes):
        for other in boxes[:n]:
            assert abs(x - other[0]) >= (w + other[2]) / 2 or abs(y - other[1]) >= (h + other[3]) / 2


def test_edges_run_from_source_to_target(kernel, tool):
    graph = schedule_trace(kernel.schedule).steps[-1].phases[-1].graph
    at = {n.id: n for n in graph.nodes}
    for edge in graph.edges:
        first, last = edge.points[0], edge.points[-1]
        source, target = at[edge.source], at[edge.target]
        assert abs(first[0] - source.x) <= source.width / 2 + 1
        assert abs(first[1] - source.y) <= source.height / 2 + 1
        assert abs(last[0] - target.x) <= target.width / 2 + 1
        assert abs(last[1] - target.y) <= target.height / 2 + 1


def test_the_same_trace_gives_the_same_drawing_and_one_for_all_phases(kernel, tool):
    steps = kernel.trace.steps
    layout.draw.cache_clear()
    first = layout.laid_out(steps)
    assert layout.draw.cache_info().misses == 1  # dot runs once
    layout.draw.cache_clear()
    assert layout.laid_out(steps) == first


def test_a_broken_dot_and_cycles_do_not_stop_it(monkeypatch):
    layout.draw.cache_clear()
    monkeypatch.setattr(layout.shutil, "which", lambda _: "/nothing/here/dot")
    nodes = tuple((name, (50.0, 30.0)) for name in "abc")
    drawing = layout.draw(nodes, (("a", "b"), ("b", "c"), ("c", "a")))
    assert set(drawing.nodes) == {"a", "b", "c"}
    assert len(drawing.edges) == 3
    layout.draw.cache_clear()
    assert layout.draw((), ()).nodes == {}


def test_work_counts_what_attention_papers_count(kernel):
    found = work(kernel.operator.program, kernel.program)
    dense = 4 * 32 * 2048 * 2048 * 128
    assert found.unmasked == pytest.approx(0.5, abs=0.01)
    assert found.flops == pytest.approx(dense / 2, rel=0.03)
    assert found.bytes == 4 * 32 * 2048 * 128 * 2
    apart = nl.Schedule(kernel.operator)
    assert work(kernel.operator.program, apart.program).bytes > 10 * found.bytes


def test_facts_of_a_program():
    program = softmax.figure1(2, 4).program
    s_max, s_exp, s_sum = block_facts(program)
    assert (s_max.name, s_max.reads, s_max.writes) == ("s_max", ("inp",), "xmax")
    assert s_sum.reduces
    assert not s_exp.reduces
    assert s_exp.loops == (("i", 2, "serial"), ("j", 4, "serial"))
    assert loop_names(program) == ("i", "j")
    assert stores(program) == 24
