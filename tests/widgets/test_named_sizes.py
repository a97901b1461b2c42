"""The explorer of a kernel for every value of a size: names where it has names, counts at its sample, every pane."""

from __future__ import annotations

import json

import pytest
from neptune_widgets.pane import halves
from neptune_widgets.panes import traffic
from neptune_widgets.session import Session

import neptune_lab as nl
from neptune_lab.operators import attention, softmax


@pytest.fixture(scope="module", params=["attention", pytest.param("softmax", marks=pytest.mark.nightly)])
def kernel(request):
    if request.param == "attention":
        return nl.compile(attention.causal(batch=1, heads=2, seq=nl.dim("n", hint=96), head_dim=16))
    return nl.compile(softmax.figure1(nl.dim("rows", hint=12), nl.dim("columns")))


@pytest.mark.nightly
def test_the_record_names_the_sizes(kernel):
    for found, spec in zip(kernel.trace.operator.inputs, kernel.spec.inputs, strict=True):
        assert found.sizes == spec.sizes
        assert any(found.sizes)


def test_traffic_is_counted_at_the_sample(kernel):
    session = Session(kernel.schedule, kernel)
    forms = kernel.traffic("h200", blocks=1).forms
    found = traffic.data(session)
    (gpu,) = [g for g in found["gpus"] if g["name"] == "h200"]
    counts = [found["counts"][n] for n in gpu["counts"]]
    assert [c["moved"] for c in counts] == [f.moved for f in forms]


@pytest.mark.nightly
def test_every_pane_answers(kernel, page_of):
    page = page_of(kernel)
    asked = {
        "traffic": {},
        "warps": {},
        "machine": {"target": "sm_90", "stage": "ttgir"},
        "tags": {"step": 1, "phase": "tile", "rolling": "j0"},
        "choices": {"steps": page.steps, "index": 0, "primitive": "tile"},
        "play": {"step": 1},
        "changes": {"steps": page.steps},
        "changes_traffic": {"steps": page.steps},
        "resources": {"steps": page.steps},
        "machine_cancel": None,
    }
    assert {half.kind for half in halves() if half.kind} == set(asked)
    for kind, fields in asked.items():
        if fields is not None:
            json.dumps(page.ask(kind, **fields), allow_nan=False)


@pytest.mark.nightly
def test_a_page_has_the_names_and_can_be_saved(kernel, page_of, tmp_path):
    page = page_of(kernel)
    assert any(page.payload["trace"]["operator"]["inputs"][0]["sizes"])
    page.explorer.export_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 0


@pytest.mark.nightly
def test_an_edited_schedule_still_opens(kernel, page_of):
    page = page_of(kernel)
    answer = page.ask("edit", steps=page.steps[:-1])
    assert answer["kind"] in ("edited", "refused"), answer
