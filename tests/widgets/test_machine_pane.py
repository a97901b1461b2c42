"""The Python half of the machine code pane: targets, a stage when the page asks, what an exported page keeps."""

from __future__ import annotations

import json
import re
import threading

import pytest
from machine_code_of import machine_code_of
from neptune_widgets import gallery
from neptune_widgets.panes import machine, machine_kept

import neptune_lab as nl
from neptune_lab.errors import MachineCodeError, ScheduleError
from neptune_lab.operators import attention


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that were compiled, by a stand-in for Triton."""
    targets: list[str] = []

    def machine_code(self, target=None):
        targets.append(str(target))
        if target == "gfx1100":
            raise MachineCodeError("Triton fails on attention_causal_kernel", help="compile with smaller tiles")
        return machine_code_of(self, target)

    monkeypatch.setattr(nl.Kernel, "machine_code", machine_code)
    return targets


def ask(page, target: str, stage: str) -> dict:
    seq = page.post("machine", target=target, stage=stage)
    page.explorer._messages.wait()
    later, answer = (m for m in page.sent if m["seq"] == seq)
    assert later == {"kind": "later", "seq": seq}
    return answer


def payload_of(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_live_page_has_the_targets_and_nothing_compiled(attention_page, compiled):
    data = attention_page.payload["panes"]["machine"]
    nvidia, amd = ["ttir", "ttgir", "llir", "ptx", "sass"], ["ttir", "ttgir", "llir", "amdgcn"]
    assert [(t["name"], t["stages"]) for t in data["targets"]] == [
        *((name, nvidia) for name in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")),
        *((name, amd) for name in ("gfx942", "gfx1100")),
    ]
    assert data["default"] == "sm_90"
    assert "machine_kept" not in attention_page.payload["panes"]
    assert compiled == []


def test_a_stage_has_a_line_of_links_for_each_line_of_text(attention_page, attention_kernel):
    answer = ask(attention_page, "sm_80", "sass")
    (kernel,) = answer["kernels"]
    stage = machine_code_of(attention_kernel, "sm_80").kernels[0].stage("sass")
    lines = kernel["text"].splitlines()
    assert [tuple(kernel["frames"][at]) for at in kernel["of"]] == list(stage.lines)
    assert len(lines) == len(kernel["of"])
    assert lines[1] == "/*0000*/       HGMMA.64x64x16.F32 R24, gdesc[UR8], R24 ;"
    kinds = {int(n): kind for n, kind in kernel["kinds"].items()}
    assert {kinds.get(n, "") for n, text in enumerate(lines) if "HGMMA" in text} == {"matrix"}
    assert {kinds.get(n, "") for n, text in enumerate(lines) if "LDG" in text} == {"global load"}
    assert {kinds.get(n, "") for n, text in enumerate(lines) if "FADD" in text} == {""}
    assert kernel["resources"]["occupancy"]["limited_by"] == ["shared memory"]
    assert kernel["resources"]["registers"] == 132
    json.dumps(answer, allow_nan=False)


def test_only_the_last_stage_has_kinds(attention_page):
    (kernel,) = ask(attention_page, "sm_80", "ttgir")["kernels"]
    assert kernel["kinds"] == {}
    assert kernel["text"].startswith("// ttgir of sm_80\n")


def test_a_failure_is_an_answer_with_a_fix(attention_page):
    answer = ask(attention_page, "gfx1100", "amdgcn")
    assert answer["error"] == {
        "message": "Triton fails on attention_causal_kernel",
        "help": "compile with smaller tiles",
    }
    refused = ask(attention_page, "sm_80", "amdgcn")
    assert refused["error"]["message"].startswith("sm_80 has no stage 'amdgcn'")


def test_an_unknown_target_is_answered_at_once(attention_page):
    answer = attention_page.ask("machine", target="sm_1", stage="sass")
    assert answer["kind"] == "failed"
    assert "expected an architecture" in answer["message"]


def test_other_messages_are_answered_while_a_kernel_is_compiled(attention_page, monkeypatch):
    begin, end = threading.Event(), threading.Event()

    def machine_code(self, target=None):
        begin.set()
        assert end.wait(60)
        return machine_code_of(self, target)

    monkeypatch.setattr(nl.Kernel, "machine_code", machine_code)
    seq = attention_page.post("machine", target="sm_90", stage="sass")
    assert begin.wait(60)
    assert attention_page.ask("ping") == {"kind": "pong", "seq": attention_page.seq}
    assert [m["kind"] for m in attention_page.sent if m["seq"] == seq] == ["later"]
    end.set()
    attention_page.explorer._messages.wait()
    assert [m["kind"] for m in attention_page.sent if m["seq"] == seq] == ["later", "machine"]


def test_an_edit_meanwhile_does_not_change_what_is_compiled(attention_page, monkeypatch):
    begin, end = threading.Event(), threading.Event()
    sources: list[str] = []

    def machine_code(self, target=None):
        begin.set()
        assert end.wait(60)
        sources.append(self.source)
        return machine_code_of(self, target)

    monkeypatch.setattr(nl.Kernel, "machine_code", machine_code)
    before = attention_page.triton
    attention_page.post("machine", target="sm_90", stage="sass")
    assert begin.wait(60)
    attention_page.post("edit_text", text='sch.tile("qk", i=64)')
    assert attention_page.explorer.kernel is None
    end.set()
    attention_page.explorer._messages.wait()
    assert sources == [before]


@pytest.mark.nightly
def test_an_exported_page_has_what_was_compiled_and_one_target_by_option(attention_page, only_pane):
    only_pane(machine, machine_kept)
    explorer = attention_page.explorer
    assert payload_of(explorer.export_html())["panes"]["machine_kept"] == []
    ask(attention_page, "sm_80", "ptx")
    ask(attention_page, "gfx1100", "amdgcn")
    kept = payload_of(explorer.export_html(machine_code="h200"))["panes"]["machine_kept"]
    assert [(code["target"], code["stage"], "error" in code) for code in kept] == [
        ("sm_80", "ptx", False),
        ("gfx1100", "amdgcn", True),
        ("sm_90", "sass", False),
    ]


def test_the_option_of_an_export_is_checked(attention_page, attention_kernel):
    with pytest.raises(MachineCodeError, match="expected an architecture"):
        attention_page.explorer.export_html(machine_code="sm_1")
    with pytest.raises(ScheduleError, match="saved record"):
        nl.explore(attention_kernel.trace).export_html(machine_code="sm_90")


@pytest.mark.nightly
def test_a_schedule_without_a_kernel_has_no_target(attention_page):
    page = attention_page
    assert page.ask("edit_text", text='sch.tile("qk", i=64)')["kind"] == "edited"
    assert page.payload["trace"]["kernel"] is None
    assert page.payload["panes"]["machine"]["targets"] == []
    answer = page.ask("machine", target="sm_90", stage="sass")
    assert answer["error"]["message"] == "there is no kernel to compile"
    assert payload_of(page.explorer.export_html(machine_code="sm_90"))["panes"]["machine_kept"] == []


@pytest.mark.nightly
def test_two_kernels_of_one_module_are_both_there(page_of):
    op = attention.full(1, 1, q_len=1, kv_len=256, head_dim=16)
    page = page_of(nl.compile(op, "split_k_update", validate="none"))
    answer = ask(page, "sm_90", "sass")
    assert [k["name"] for k in answer["kernels"]] == ["attention_full_local", "attention_full_combine"]


@pytest.mark.nightly
def test_a_page_of_the_gallery_has_one_target(tmp_path):
    gallery.write(tmp_path, ["softmax.figure1"], machine_code="sm_90")
    kept = payload_of((tmp_path / "softmax.figure1.html").read_text(encoding="utf-8"))["panes"]["machine_kept"]
    assert [(code["target"], code["stage"]) for code in kept] == [("sm_90", "sass")]


def test_a_compilation_is_cancelled_while_it_runs(attention_page, monkeypatch):
    begun, cancelled = threading.Event(), threading.Event()

    def machine_code(self, target=None):
        begun.set()
        assert cancelled.wait(300), "nobody cancelled it"
        raise MachineCodeError("compiling attention_causal for sm_80 was cancelled", help="compile it again")

    monkeypatch.setattr(nl.Kernel, "machine_code", machine_code)
    monkeypatch.setattr("neptune_widgets.panes.machine.cancel_compile", lambda session: cancelled.set())
    seq = attention_page.post("machine", target="sm_80", stage="sass")
    assert begun.wait(300)
    assert attention_page.ask("machine_cancel")["kind"] == "machine_cancel"
    attention_page.explorer._messages.wait()
    answer = [m for m in attention_page.sent if m["seq"] == seq][-1]
    assert "was cancelled" in answer["error"]["message"]
