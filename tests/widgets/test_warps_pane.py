"""The Python half of the pane of warps: simulated when asked, in a thread, and refused with a reason."""

from __future__ import annotations

import json

import pytest
from neptune_widgets import payload
from neptune_widgets.panes import warps

import neptune_lab as nl
from neptune_lab.operators import attention


@pytest.fixture(scope="module")
def gluon_kernel() -> nl.Kernel:
    operator = attention.causal(heads=1, seq=128, head_dim=64)
    code = nl.CodeOptions(code="gluon")
    return nl.compile(operator, "rolling_update", block_q=128, block_kv=64, code=code, validate="none")


@pytest.mark.nightly
def test_the_timeline_is_made_when_asked(page_of, gluon_kernel, only_pane):
    page = page_of(gluon_kernel)
    assert "warps" not in page.payload["panes"]
    only_pane(warps)
    seq = page.post("warps")
    page.explorer._messages.wait()
    later, answer = (m for m in page.sent if m["seq"] == seq)
    assert later["kind"] == "later"
    groups = answer["timeline"]["groups"]
    assert [(g["name"], g["warps"]) for g in groups] == [("consumer 0", 4), ("consumer 1", 4), ("producer", 1)]
    json.dumps(answer, allow_nan=False)
    kept = json.loads(payload.static(page.explorer._session).text)["panes"]["warps"]
    assert kept == json.loads(json.dumps(answer["timeline"]))


def test_a_kernel_in_triton_has_none(attention_page, only_pane):
    answer = attention_page.ask("warps")
    assert "not written in Gluon" in answer["message"]
    only_pane(warps)
    assert json.loads(payload.static(attention_page.explorer._session).text)["panes"]["warps"] is None


def test_tensors_that_are_too_large_are_refused(page_of, gluon_kernel, only_pane, monkeypatch):
    monkeypatch.setattr(warps, "_MOST_BYTES", 1000)
    page = page_of(gluon_kernel)
    seq = page.post("warps")
    page.explorer._messages.wait()
    answer = [m for m in page.sent if m["seq"] == seq][-1]
    assert "GiB are simulated" in answer["message"]
    only_pane(warps)
    assert json.loads(payload.static(page.explorer._session).text)["panes"]["warps"] is None
