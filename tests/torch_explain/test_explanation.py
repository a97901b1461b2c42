"""The explanation of a model: every operation once, in an order that can run, with the user's lines and reasons."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import ipywidgets
import pytest
import torch
from neptune_widgets.explanation import ShownExplanation
from neptune_widgets.explanation.buttons import buttons
from neptune_widgets.explorer import Explorer
from torch_explain import models

import neptune_lab as nl
from neptune_lab.errors import DefinitionError


@pytest.fixture(scope="module")
def block() -> ShownExplanation:
    with torch.inference_mode():
        return nl.explain(models.Block().eval(), torch.randn(2, 16, 32))


def line_of(text: str) -> int:
    lines = Path(models.__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return number


def test_every_operation_is_in_one_part_after_those_that_it_reads(block: ShownExplanation):
    (partition,), (parts,) = block.partitions, block.graphs
    calls = [n for n in partition.graph.nodes if n.op == "call_function"]
    listed = [name for part in parts for name in part.nodes]
    assert sorted(listed) == sorted(n.name for n in calls)
    at = {name: k for k, part in enumerate(parts) for name in part.nodes}
    for node in calls:
        sources = {at[s.name] for s in node.all_input_nodes if s.name in at} - {at[node.name]}
        assert all(k < at[node.name] for k in sources)
        assert sources <= set(parts[at[node.name]].reads)
    for one, other in pairwise(parts):
        assert one.region is not None or other.region is not None, "neighbours that are apart are one part"
    apart = {name for part in parts if part.region is None for name in part.nodes}
    assert apart == {name for a in partition.apart for name in a.nodes}


def test_regions_have_numbers_traffic_and_lines(block: ShownExplanation):
    assert [r.title for r in block.regions] == ["norm", "attention"]
    assert [p.number for p in block.graphs[0] if p.region is not None] == [1, 2]
    text = str(block)
    norm, attention = block.regions
    assert norm.after < norm.before
    assert f"{sum(r.before for r in block.regions) / 1000:.3g} kB before" in text
    assert f"models.py, line {line_of('q, k, v = self.qkv')}: `q, k, v = self.qkv" in text
    assert f"models.py, line {line_of('scaled_dot_product')}: `y = F.scaled_dot" in text
    assert "torch/nn" not in text, "torch's own modules are no lines of the user's"
    assert "sort is not supported: take the part that sorts out" in text
    assert f"line {line_of('y.sort(-1)')}: `return y.sort" in text
    assert "a product whose result is needed whole" in text
    assert block.region(2) is attention
    for wrong in (0, 3, True, "1"):
        with pytest.raises(DefinitionError, match="has no region"):
            block.region(wrong)  # type: ignore[arg-type]


def test_the_record_is_that_of_the_partition(block: ShownExplanation):
    record = json.loads(json.dumps(block.as_record()))
    assert record["title"] == "Block"
    assert record["partitions"] == [json.loads(json.dumps(p.as_record())) for p in block.partitions]


def test_each_part_names_its_own_lines():
    """Two parts have the same reason, and the partition has one entry for both."""
    (parts,) = nl.explain(models.two_sorts, torch.randn(8, 8)).graphs
    sorts = [r for part in parts for r in part.reasons if "sort" in r.operations]
    assert [[line.text for line in r.lines] for r in sorts] == [
        ["z = x.sort(-1).values"],
        ["return z.sort(-1).values * 2"],
    ]


@pytest.mark.nightly
def test_a_branch_makes_two_graphs_and_is_named():
    found = nl.explain(models.branches, torch.randn(8, 8))
    assert len(found.graphs) == 2
    numbers = [p.number for parts in found.graphs for p in parts if p.region is not None]
    assert numbers == list(range(1, len(found.regions) + 1))
    (reason,) = found.breaks
    assert reason.startswith("a branch on the value of a tensor: choose with torch.where, in ")
    assert f"line {line_of('if y.sum()')}: `if y.sum() > 0:`" in reason
    assert "graph 2 of 2" in str(found)
    assert reason in str(found)


@pytest.mark.nightly
def test_with_gradients_there_is_a_forward_and_a_backward_graph():
    found = nl.explain(models.Block(), torch.randn(2, 16, 32))
    assert [p.region.title for parts in found.graphs[:1] for p in parts if p.region] == ["norm"]
    assert "graph 2 of 2" in str(found)
    assert "a kernel of this package's own" in str(found)
    assert "No region was fused" not in str(found)


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (3, (), "expected a function or a torch.nn.Module, got int"),
        (models.fails, (torch.randn(2, 3),), "fails fails on these inputs"),
        (
            torch.nn.Linear(4, 4),
            (torch.randn(2, 3),),
            "Linear fails on these inputs: RuntimeError: mat1 and mat2 shapes",
        ),
        (lambda: 3, (), "traced no operation"),
    ],
)
def test_what_cannot_be_explained(model: object, inputs: tuple, words: str):
    with pytest.raises(DefinitionError, match=words) as error:
        nl.explain(model, *inputs)  # type: ignore[arg-type]
    assert error.value.help


def test_a_button_opens_the_explorer_of_its_region(block: ShownExplanation):
    widget = buttons(block)
    row, place = widget.children
    pressed = [w for w in row.children if isinstance(w, ipywidgets.Button)]
    assert [b.description for b in pressed] == ["1 norm", "2 attention"]
    pressed[1].click()
    (shown,) = place.children
    assert isinstance(shown, Explorer)
    assert shown.kernel is block.region(2).kernel
    pressed[0].click()
    assert [w.trace.operator.title for w in place.children] == [block.region(1).operator.title]
    pressed[0].click()
    assert place.children == ()


def test_the_static_form_escapes_and_says_what_the_text_says(block: ShownExplanation):
    shown = ShownExplanation("<script>", block.partitions, ("<img>",))._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<img" not in shown
    assert "<script" not in shown
    assert "<svg" in shown
    assert shown.count('class="part fused"') == 2
    assert "needed whole" in shown
    assert "neptune-static" not in shown, "a running explorer hides what has this class"
