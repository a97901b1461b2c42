"""The Python half of the explorer, spoken to as the page speaks to it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from neptune_widgets import checks
from waiting import until

import neptune_lab as nl
from neptune_lab.operators import attention, softmax
from neptune_lab.pipeline import schedule
from tests.pipeline.odd import operator


@pytest.mark.nightly
def test_an_edit_gives_another_kernel_and_comes_back_by_undo(attention_page):
    page = attention_page
    first, steps = page.triton, page.steps
    assert [s["primitive"] for s in steps[:2]] == ["remark", "tile"]
    steps[1]["arguments"]["tiles"]["i"] = 32
    answer = page.ask("edit", steps=steps)
    assert answer["kind"] == "edited"
    assert answer["payload"] == page.explorer.payload
    assert "tl.arange(0, 32)" in page.triton != first
    assert page.explorer.kernel.source == page.triton
    assert dict(page.explorer.schedule.steps[1].arguments)["tiles"] == (("i", 32), ("j", 64))
    assert page.payload["editor"]["undo"] == 1

    assert page.ask("undo")["kind"] == "edited"
    assert page.triton == first
    assert (page.payload["editor"]["undo"], page.payload["editor"]["redo"]) == (0, 1)
    assert page.ask("redo")["kind"] == "edited"
    assert "tl.arange(0, 32)" in page.triton
    refused = page.ask("redo")
    assert (refused["kind"], refused["error"]["message"]) == ("refused", "there is no edit to redo")


@pytest.mark.nightly
def test_a_refused_edit_is_taken_back_without_a_trace(softmax_page):
    page = softmax_page
    steps = page.steps
    assert (
        page.ask("edit", steps=[*steps[:2], {"primitive": "inline", "arguments": {"block": "nothing"}}])["kind"]
        == "refused"
    )
    answer = page.ask("edit", steps=steps)
    assert answer["kind"] == "edited"
    assert page.payload["editor"]["undo"] == 0
    assert all(s["error"] is None for s in page.payload["trace"]["steps"])


def test_a_refusal_of_the_algebra_stands_at_its_step(page_of):
    """sum of x / (x + total): no h is additive and no family closed, and the derivation shows where that came out."""

    def build():
        from tvm import te

        from neptune_lab.loop_ir.tvm_compat import from_te

        x = te.placeholder((2, 4), "float32", name="x")
        j, k = te.reduce_axis((0, 4), name="j"), te.reduce_axis((0, 4), name="j")
        total = te.compute((2,), lambda i: te.sum(x[i, j], axis=j), name="total")
        off = te.compute((2, 4), lambda i, j: x[i, j] / (x[i, j] + total[i]), name="off")
        out = te.compute((2,), lambda i: te.sum(off[i, k], axis=k), name="out")
        return from_te("share", [x], [out])

    base = softmax.figure1()
    outputs = (replace(base.outputs[0], name="out"),)
    operator = replace(base, name="share", inputs=(replace(base.inputs[0], name="x"),), outputs=outputs, build=build)
    page = page_of(nl.Schedule(operator))
    step = {"primitive": "rolling_update", "arguments": {"block": "out", "loop": "total.j"}}
    answer = page.ask("edit", steps=[step])
    assert answer["kind"] == "refused"
    assert "Eq. 4" in answer["error"]["message"]
    refused = json.loads(answer["payload"])["trace"]["steps"][1]
    assert [p["key"] for p in refused["phases"]] == ["dataflow", "naive", "repair"]
    derivation = refused["phases"][-1]["derivation"]
    assert derivation["accepted"] is False
    *passed, failed = derivation["steps"]
    assert passed[0]["title"].startswith("Read")
    assert all(s["ok"] and s["mathml"] for s in passed)
    assert not failed["ok"]
    assert "not additive" in failed["text"]


@pytest.mark.nightly
def test_an_edit_clears_what_could_be_redone(softmax_page):
    page = softmax_page
    page.ask("edit", steps=page.steps[:3])
    page.ask("undo")
    page.ask("edit", steps=page.steps[:2])
    assert page.payload["editor"]["redo"] == 0
    assert page.ask("undo")["kind"] == "edited"
    assert len(page.steps) == 9


def test_a_refused_step_shows_the_program_that_it_was_applied_to(page_of):
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.split("s_max.j", (2, 2))
    page = page_of(schedule)
    split, nothing = page.steps[0], {"primitive": "inline", "arguments": {"block": "nothing"}}
    other = {**split, "arguments": {"loop": "s_max.j", "factors": [1, 4]}}
    assert page.ask("edit", steps=[other, nothing])["kind"] == "refused"
    _, kept, refused = page.explorer.trace.steps
    assert refused.error
    assert any("j0 * 4 + j1" in line.text for line in refused.phases[-1].program)
    assert any("j0 * 2 + j1" in line.text for line in kept.phases[-1].program)


def test_a_refused_edit_says_where_and_leaves_all_as_it_was(softmax_page):
    page = softmax_page
    shown, steps = page.explorer.payload, page.steps
    steps[2]["arguments"]["block"] = "s_summ"
    answer = page.ask("edit", steps=steps)
    assert answer["kind"] == "refused"
    assert shown == page.explorer.payload
    seen = json.loads(answer["payload"])["trace"]["steps"]
    refused = seen.pop(3)  # where it was meant to stand, after the definition and two steps
    assert (refused["primitive"], "s_summ" in refused["error"]) == (steps[2]["primitive"], True)
    assert [s["primitive"] for s in seen] == [s["primitive"] for s in page.payload["trace"]["steps"]]
    error = answer["error"]
    assert (error["step"], error["line"]) == (2, None)
    assert "s_summ" in error["message"]
    assert "did you mean 's_sum'" in error["help"]
    assert len(page.explorer.schedule.steps) == 9
    assert page.payload["editor"]["undo"] == 0


def test_a_refused_primitive_names_its_node(softmax_page):
    page = softmax_page
    steps = [*page.steps, {"primitive": "bind", "arguments": {"loop": "s_max.j0", "thread": "blockIdx.y"}}]
    error = page.ask("edit", steps=steps)["error"]
    assert error["step"] == 9
    assert error["node"]
    assert error["help"]


@pytest.mark.nightly
def test_text_is_the_same_schedule(softmax_page):
    page = softmax_page
    text = page.explorer.to_python()
    assert "".join(f"{s['text']}\n" for s in page.payload["editor"]["steps"]) == text
    shorter = "".join(line for line in text.splitlines(keepends=True) if "set_scope" not in line)
    assert page.ask("edit_text", text=shorter)["kind"] == "edited"
    assert page.explorer.to_python() == shorter
    assert page.ask("edit_text", text="nl.templates.rolling_update(sch, block_q=4)")["kind"] == "edited"
    assert "i=4" in page.explorer.to_python()


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("text", "line", "column", "step", "message"),
    [
        ('sch.tile("s_max", i=2, j=4)\n\nsch.inlin("s_exp")', 3, 1, None, "no primitive"),
        ('sch.tile("s_max", i=2, j=4)\n# here\nsch.inline("s_expo")', 3, None, 1, "no block 's_expo'"),
        ('sch.inline("s_exp")\nnl.templates.rolling_update(sch, block_qq=1)', 2, 1, None, "has no argument 'block_qq'"),
        ('sch.inline("nothing")\nnl.templates.rolling_update(sch)', 1, None, 0, "no block"),
        ("import os; os.remove('x')", 1, 1, None, "only schedule calls"),
    ],
)
def test_errors_in_text_stand_at_their_line(softmax_page, text, line, column, step, message):
    answer = softmax_page.ask("edit_text", text=text)
    assert answer["kind"] == "refused"
    error = answer["error"]
    assert (error["line"], error["column"], error["step"]) == (line, column, step)
    assert message in error["message"]


def test_text_is_never_executed(softmax_page, tmp_path):
    target = tmp_path / "made"
    for text in (
        f"open({str(target)!r}, 'w')",
        f"sch.inline(open({str(target)!r}, 'w'))",
        f"sch.inline((lambda: open({str(target)!r}, 'w'))())",
        f"sch.operator.build.__globals__['open']({str(target)!r}, 'w')",
    ):
        assert softmax_page.ask("edit_text", text=text)["kind"] == "refused"
    assert not target.exists()


@pytest.mark.nightly
def test_half_a_schedule_stands_without_a_kernel(attention_page):
    page = attention_page
    answer = page.ask("edit_text", text='sch.tile("qk", i=64)')
    assert answer["kind"] == "edited"
    assert page.payload["trace"]["kernel"] is None
    assert page.payload["kernel_error"]["node"] == "qk"
    assert page.payload["kernel_error"]["help"]
    assert page.explorer.kernel is None
    timing = page.ask("time", against=[])
    assert timing["state"] == "none"
    assert timing["note"]


@pytest.mark.nightly
def test_of_edits_that_come_together_the_last_one_counts(softmax_page):
    page = softmax_page
    steps = page.steps

    async def hurry():
        page.post("edit", steps=steps[:1])
        page.post("check")
        page.post("choices", steps=steps, index=0, primitive="tile")
        page.post("edit", steps=steps[:2])
        last = page.post("edit", steps=steps[:3])
        assert page.sent == []
        await until(lambda: len(page.sent) == 2)
        return last

    last = asyncio.run(hurry())
    assert [(m["kind"], m["seq"]) for m in page.sent] == [("choices", 3), ("edited", last)]
    assert len(page.steps) == 3


@pytest.mark.nightly
def test_a_remark_is_written_and_edited_like_a_step(attention_page):
    page = attention_page
    found = page.ask("choices", steps=page.steps, index=0, primitive="remark")
    assert found["parameters"] == [
        {
            "name": "text",
            "kind": "sentence",
            "required": True,
            "choices": None,
            "value": page.steps[0]["arguments"]["text"],
        }
    ]
    assert "message" not in found
    said = {"primitive": "remark", "arguments": {"text": "Wider tiles spill."}}
    triton = page.triton
    assert page.ask("edit", steps=[said, *page.steps[1:]])["kind"] == "edited"
    assert page.triton == triton
    assert page.payload["trace"]["steps"][1]["phases"][0]["note"] == "Wider tiles spill."
    empty = page.ask("edit", steps=[{"primitive": "remark", "arguments": {"text": " "}}, *page.steps[1:]])
    assert (empty["kind"], empty["error"]["step"]) == ("refused", 0)


@pytest.mark.nightly
def test_choices_of_a_step_and_of_a_new_one(softmax_page):
    page = softmax_page
    answer = page.ask("choices", steps=page.steps, index=0, primitive="tile")
    found = {p["name"]: p for p in answer["parameters"]}
    assert found["tiles"]["value"] == {"i": 2, "j": 4}
    assert found["tiles"]["choices"]["j"] == [1, 2, 4, 8]
    new = page.ask("choices", steps=page.steps, index=9, primitive="annotate")
    arguments = {p["name"]: p["value"] for p in new["parameters"]}
    steps = [*page.steps, {"primitive": "annotate", "arguments": arguments}]
    assert page.ask("edit", steps=steps)["kind"] == "edited"
    nowhere = page.ask("choices", steps=page.steps, index=0, primitive="retire_tags")
    assert nowhere["message"]
    broken = page.ask(
        "choices", steps=[{"primitive": "inline", "arguments": {"block": "x"}}], index=1, primitive="tile"
    )
    assert (broken["parameters"], "no block" in broken["message"]) == ([], True)


@pytest.mark.nightly
def test_the_check_runs_natively_or_at_smaller_sizes_or_says_that_it_did_not(page_of):
    small = page_of(softmax.figure1(4, 8)).ask("check")
    assert (small["kind"], small["ok"]) == ("checked", True)
    assert "the same steps" not in small["text"]
    large = page_of(attention.causal(batch=2, heads=32, seq=2080, head_dim=128)).ask("check")
    assert large["ok"] is True
    assert "the same steps at batch=1, heads=2, q_len=288, kv_len=288, head_dim=16" in large["text"]

    def bias(score, b, h, q, kv):
        return score + (q - kv) * 0.5

    own = page_of(attention.general(1, 32, 2048, 2048, 64, score_mod=bias)).ask("check")
    assert own["ok"] is None
    assert "not checked: one run makes" in own["text"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("gqa_dc", {"seq": 2048}, "the same steps at heads=16, kv_len=128, head_dim=16, kv_heads=2"),
        ("gqa_pf", {"seq": 1024}, "the same steps at heads=16, q_len=256, kv_len=256, head_dim=16, kv_heads=2"),
        ("s2", {}, "the same steps with split('qk.j', factors=[2, 2, 64], names=['js', 'j0', 'j1']) at heads=2"),
    ],
)
def test_the_check_keeps_what_the_schedule_stands_on(name, sizes, says):
    """Shared heads stay in groups, and no part of a split is empty."""
    ok, text = checks.check(nl.compile(attention.preset(name, **sizes)).schedule)
    assert ok is True
    assert says in text


def test_unknown_and_broken_messages_are_answered(softmax_page):
    page = softmax_page
    assert page.ask("dance")["kind"] == "failed"
    assert page.ask("edit")["kind"] == "failed"
    assert page.ask("edit", steps="no list")["kind"] == "failed"
    assert page.ask("edit", steps=[3])["kind"] == "refused"
    assert page.ask("tags", step=99, phase="x", rolling="j0")["kind"] == "tags_error"
    page.explorer._handle_custom_msg("no object", [])
    assert len(page.explorer.schedule.steps) == 9


@pytest.mark.nightly
def test_an_export_opens_at_the_view_of_the_page(softmax_page):
    view = {"step": 2, "phase": "naive", "selection": ["store:s_sum"], "unknown": 1}
    html = softmax_page.ask("export", view=view)["html"]
    shown = html.split('<script type="application/json" id="view">')[1].split("</script>")[0]
    assert json.loads(shown) == {"step": 2, "phase": "naive", "selection": ["store:s_sum"]}
    assert softmax_page.ask("export", view=["no view"])["kind"] == "failed"


def test_a_ping_is_answered(softmax_page):
    assert softmax_page.ask("ping")["kind"] == "pong"


@pytest.mark.nightly
def test_an_operator_that_its_template_makes_no_kernel_of_is_shown_as_it_compiles():
    chunks = operator("chunk_max")
    explorer = nl.explore(chunks)
    assert nl.explore(schedule(chunks)).kernel is None
    assert repr(explorer).startswith("<Explorer of ")
    assert explorer.kernel is not None
    assert any("computed apart" in step.summary for step in explorer.trace.steps)
