"""The operator's sizes, edited in the page: recompiled, refused, undone; and pages that cannot, which say so."""

from __future__ import annotations

import pytest
import torch
from axe import violations
from playwright.sync_api import expect

import neptune_lab as nl
from neptune_lab.operators import attention, softmax

VIEW = {"panes": {"graph": "operator", "narrow": "graph"}}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (900, "dark")])
def test_sizes_are_edited_and_undone(live, front_end_packages, width, scheme):
    kernel = nl.compile(attention.causal(heads=2, seq=64, head_dim=16), block_q=16, block_kv=32, validate="none")
    drawn = live(kernel, VIEW, width=width, color_scheme=scheme)
    pane = drawn.root.locator(".operator")
    length = pane.get_by_label("kv_len of the operator")
    expect(length).to_have_value("64")
    expect(pane.get_by_label("scale of the operator")).to_have_value("")
    length.fill("128")
    expect(pane.locator(".pn.new")).to_have_text("kv_len")
    pane.get_by_label("q_len of the operator").fill("128")
    pane.get_by_label("q_len of the operator").press("Enter")
    steps = len(kernel.schedule.steps)
    expect(pane.get_by_role("status")).to_have_text(f"The same {steps} steps as before.")
    assert drawn.explorer.schedule.operator.params["kv_len"] == 128
    expect(drawn.root.locator("header")).to_contain_text("1 × 2 × 128 × 16 · float16")
    expect(drawn.root.locator(".chip.check")).to_contain_text("✓ equals the definition")
    expect(pane.locator(".shapes")).to_contain_text("k: float16[1, 2, 128, 16]")
    # A size that the operator refuses is named, and what was typed stays.
    pane.get_by_label("kv_heads of the operator").fill("3")
    pane.get_by_role("button", name="Recompile").click()
    expect(pane.get_by_role("alert")).to_contain_text("3")
    assert violations(drawn.page, ".operator") == []
    expect(pane.get_by_label("kv_heads of the operator")).to_have_value("3")
    assert drawn.explorer.schedule.operator.params["kv_len"] == 128
    # What is no number is not sent.
    asked = len(drawn.asked)
    pane.get_by_label("kv_heads of the operator").fill("two")
    pane.get_by_role("button", name="Recompile").click()
    expect(pane.get_by_role("alert")).to_contain_text("kv_heads: expected a whole number")
    assert len(drawn.asked) == asked
    pane.get_by_label("kv_heads of the operator").fill("1")
    pane.get_by_role("button", name="Recompile").click()
    expect(pane.locator(".shapes")).to_contain_text("k: float16[1, 1, 128, 16]")
    expect(pane.get_by_role("alert")).to_be_hidden()
    for heads in ("2, 128", "2, 64"):
        undo = pane.get_by_role("button", name="Undo")
        if undo.is_visible():
            undo.click()
        else:
            drawn.root.get_by_role("tab", name="Schedule").click()
            drawn.root.get_by_role("button", name="undo").click()
            drawn.root.get_by_role("tab", name="Operator").click()
        expect(pane.locator(".shapes")).to_contain_text(f"k: float16[1, {heads}, 16]")
    assert drawn.explorer.kernel.source == kernel.source


@pytest.mark.nightly
def test_the_shapes_of_a_traced_function_are_edited(live):
    def soft(x, y):
        return torch.softmax(x + y, -1)

    drawn = live(nl.from_torch(soft, torch.randn(4, 16), torch.randn(16)))
    drawn.root.locator("header button.chip:not(.whole)").click()
    pane = drawn.root.locator(".operator")
    pane.get_by_label("x of the operator").fill("float16[8, 32]")
    pane.get_by_label("y of the operator").fill("float16[32")
    pane.get_by_role("button", name="Recompile").click()
    expect(pane.get_by_role("alert")).to_contain_text("y='float16[32': expected a dtype and sizes")
    pane.get_by_label("y of the operator").fill("float16[32]")
    pane.get_by_role("button", name="Recompile").click()
    expect(pane.locator(".shapes")).to_contain_text("x: float16[8, 32]")
    expect(drawn.root.locator(".chip.check")).to_contain_text("✓ equals the definition")


@pytest.mark.nightly
def test_pages_that_cannot_change_it_say_why(live, new_page, tmp_path):
    def near(b, h, q, kv):
        return q - kv <= 2

    drawn = live(attention.general(1, 1, 8, 8, 4, mask_mod=near), VIEW)
    pane = drawn.root.locator(".operator")
    expect(pane).to_contain_text("Its sizes are fixed. Its mask_mod cannot be called again from here.")
    expect(pane.get_by_role("button", name="Recompile")).to_be_hidden()
    explorer = nl.explore(softmax.figure1(2, 4))
    explorer.view = VIEW
    for name, made in (("page", explorer), ("record", nl.explore(explorer.trace))):
        made.view = VIEW
        made.export_html(tmp_path / f"{name}.html")
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto((tmp_path / "page.html").as_uri())
    pane = page.locator(".nx .operator")
    expect(pane).to_contain_text("This page has no Python behind it, so nothing can be changed here")
    expect(pane).to_contain_text("op = nl.operators.softmax.figure1(")
    expect(pane.get_by_label("rows of the operator")).to_be_disabled()
    page.goto((tmp_path / "record.html").as_uri())
    expect(page.locator(".nx .operator")).to_contain_text("a saved record: nothing can be changed here")


@pytest.mark.nightly
def test_a_saved_record_is_made_again(live):
    trace = nl.compile(attention.causal(heads=2, seq=64, head_dim=16), validate="none").trace
    drawn = live(trace, {"step": -1, "phase": "triton", "panes": {"graph": "traffic"}})
    expect(drawn.root.locator(".traffic")).to_contain_text("This record has no traffic. Recompile, in the header")
    again = drawn.root.get_by_role("button", name="Recompile")
    again.click()
    expect(drawn.root.locator(".chip.check")).to_contain_text("✓ equals the definition")
    expect(drawn.root.locator(".traffic")).to_contain_text("HBM")
    expect(again).to_be_hidden()
    drawn.root.get_by_role("tab", name="Run", exact=True).click()
    expect(drawn.root.locator(".heat").first).to_be_visible()


@pytest.mark.nightly
def test_loops_and_definitions_say_at_which_number_a_size_with_a_name_is_shown(live):
    drawn = live(nl.compile(nl.operators.rows.softmax(4, nl.dim("n")), validate="none"))
    pane = drawn.root.get_by_role("region", name="program")
    shown = int(drawn.explorer.trace.operator.inputs[0].shape[1])
    said = f"Shown at n = {shown}; the kernel takes every value."
    expect(pane.locator(".lines")).to_contain_text(str(shown))
    expect(pane.locator("p.note")).to_contain_text(f"a loop nest of its own. {said}")
    pane.get_by_role("tab", name="Definition").click()
    expect(pane.locator("p.note")).to_have_text(said)
    # Tiles and Triton have the name itself.
    drawn.root.locator(".rail li", has_text="Triton").last.click()
    pane.get_by_role("tab", name="Triton").click()
    expect(pane.locator("p.note")).not_to_contain_text("Shown at")
