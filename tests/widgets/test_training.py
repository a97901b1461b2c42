"""Both passes side by side: the record has an origin for every stage, every name on the page leads somewhere, and lines
keep clear of boxes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from neptune_widgets.training import TrainingExplorer
from neptune_widgets.training import html as written
from neptune_widgets.training.places import HEIGHT
from neptune_widgets.training.svg import drawn_picture

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, ScheduleError
from neptune_lab.operators import attention, norms, rows, training
from neptune_lab.operators.reverse_mode.rules import WHOLE, rule
from neptune_lab.pipeline.training_record import training_record


def _grouped_with_bias():
    bias = torch.randn(4, 127)

    def score_mod(score, b, h, i, j):
        return score + bias[h, i - j + 63]

    return attention.general(1, 4, 64, 64, 16, kv_heads=2, score_mod=score_mod)


MAKE = {
    "causal": lambda: attention.causal(batch=1, heads=2, seq=64, head_dim=16),
    "grouped, with a bias": _grouped_with_bias,
    "cross entropy": lambda: rows.cross_entropy(4, 16),
    "layer norm": lambda: norms.layer_norm(4, 16),
    "two results": lambda: norms.layer_norm_statistics(4, 16),
}
_RECORDS: dict[str, tuple] = {}


@pytest.fixture(params=MAKE)
def both(request):
    """The passes of an operator and their record, made once."""
    if request.param not in _RECORDS:
        passes = training(MAKE[request.param]())
        _RECORDS[request.param] = passes, training_record(passes)
    return _RECORDS[request.param]


def test_every_stage_of_the_backward_pass_has_an_origin_in_the_forward_pass(both):
    passes, record = both
    stages = {stage for part in record.backward.parts for stage in part}
    forward = {node.id for node in record.forward.graph.nodes}
    assert {origin.stage for origin in record.origins} == stages
    for origin in record.origins:
        assert origin.forward in forward, origin
        assert origin.role == "again" or origin.uses, origin
        assert all(use.stage in forward and use.rules for use in origin.uses), origin
        assert origin.copy_of in (*stages, "")
    assert {name for o in record.origins for use in o.uses for name in use.rules} == {r.name for r in record.rules}
    assert {value.name for value in record.kept} == set(passes.kept)


def test_the_kept_values_are_those_that_the_definition_of_the_backward_pass_reads(both):
    _, record = both
    text = "\n".join(line.text for line in record.backward.operator.definition)
    for value in record.values:
        readers = set(re.findall(rf"^(\w+)\[.*= .*\b{value.name}\[", text, re.MULTILINE)) - {value.name}
        assert set(value.readers) == (readers if value.kept else set()), value.name
        assert value.bytes == torch.empty(value.shape, dtype=getattr(torch, value.dtype)).nbytes


def test_operations_count_what_a_value_is_computed_from():
    record = training_record(training(rows.softmax(4, 8)))
    # max and its 32 terms; exp(x - max): 2 operations; their sum; max + log(sum); times log2(e).
    (kept,) = record.kept
    assert kept.name == "lse2"
    assert kept.operations == 32 + 64 + 32 + 4 * 2 + 4
    assert kept.bytes == 16


def test_every_name_on_the_page_leads_to_a_text(both):
    page = written.html(both[1], live=True)
    texts = set(re.findall(r'data-text="([^"]*)"', page))
    assert set(re.findall(r'data-to-stage="([^"]*)"', page)) <= texts
    assert set(re.findall(r'data-stage="([^"]*)"', page)) <= texts
    assert len(re.findall("<input", page)) == len(both[1].values)


def test_lines_between_parts_pass_through_no_box(both):
    drawn, wires = drawn_picture(both[1])
    for wire, lines in zip(wires, drawn.wires, strict=True):
        for target, line in zip(wire.targets, lines, strict=True):
            for name, box in drawn.boxes.items():
                if name in (wire.source, target):
                    continue
                for (x0, y0), (x1, y1) in pairwise(line):
                    beside = max(x0, x1) <= box.x - box.width / 2 or min(x0, x1) >= box.x + box.width / 2
                    above = max(y0, y1) <= box.y - HEIGHT / 2 or min(y0, y1) >= box.y + HEIGHT / 2
                    assert beside or above, (wire.source, target, name)
            assert line[-1] == pytest.approx((line[-1][0], drawn.boxes[target].y - HEIGHT / 2))
            assert abs(line[-1][0] - drawn.boxes[target].x) <= drawn.boxes[target].width / 2


@pytest.mark.nightly
def test_what_is_kept_can_be_chosen():
    both = nl.explore(training(rows.softmax(4, 8)))
    assert isinstance(both, TrainingExplorer)
    before = both.html
    both.keep(["s_max", "s_sum"])
    assert both.passes.kept == ("s_max", "s_sum")
    assert "your choice; by itself not kept" in both.html
    both.keep(None)
    assert both.html == before
    with pytest.raises(DefinitionError, match="there is no stage 'nothing'"):
        both.keep(["nothing"])
    assert both.html == before
    sent = []
    both.send = sent.append
    both._received(None, {"kind": "keep", "keep": ["nothing"]}, None)
    both._received(None, {"kind": "keep", "keep": []}, None)
    assert [message["kind"] for message in sent] == ["failed", "kept"]
    assert both.passes.kept == ()


def test_a_function_with_gradients_shows_its_passes():
    op = rows.softmax(4, 8)
    both = nl.explore(nl.compile(op).with_gradients())
    assert isinstance(both, TrainingExplorer)
    assert both.passes.of is op
    with pytest.raises(ScheduleError, match="not for both passes"):
        nl.explore(both.passes, sample=op)  # type: ignore[call-overload]


def test_a_notebook_without_script_has_everything_as_text():
    both = nl.explore(training(rows.softmax(4, 8)))
    data, _ = both._repr_mimebundle_()
    assert "Kept: lse2 (16 B)" in data["text/plain"]
    for words in ("lse2[i] = where(lse[i] == -inf", "With w = exp(x - lse)", "neptune-static"):
        assert words in data["text/html"]
    assert "Open the forward pass" not in data["text/html"]  # that only a script answers
    assert "Choose a stage" not in data["text/html"]


def test_names_are_text():
    record = training_record(training(rows.softmax(4, 8)))
    hostile = "<img src=x onerror=alert(1)>"
    value = replace(record.values[0], name=hostile, why=hostile)
    page = written.html(replace(record, title=hostile, wrt=(hostile,), values=(value, *record.values[1:])))
    assert "<img" not in page
    assert "&lt;img" in page


@pytest.mark.parametrize("name", WHOLE)
def test_a_rule_of_reverse_mode_has_a_sentence(name):
    assert rule(name).says[0].endswith(".")
