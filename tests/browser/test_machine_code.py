"""The machine code pane: compiled when asked, linked both ways, walked by key, kept in an exported page."""

from __future__ import annotations

import re

import pytest
from axe import violations
from machine_code_of import machine_code_of
from playwright.sync_api import expect

import neptune_lab as nl
from neptune_lab.operators import attention

UP = {"panes": {"graph": "machine", "story": "off"}}
MACHINE = ".machined"
TRITON = "section[aria-label='kernel code'] .ln"


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nl.Kernel, "machine_code", machine_code_of)


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(attention.causal(batch=1, heads=2, seq=64, head_dim=16), validate="none")


def line_with(kernel, text: str) -> int:
    return next(n for n, line in enumerate(kernel.source.splitlines(), 1) if text in line)


def test_it_is_compiled_when_asked_and_lines_light_each_other(live, kernel):
    drawn = live(kernel, UP)
    pane, page = drawn.root.locator(MACHINE), drawn.page
    expect(pane.get_by_label("target", exact=True)).to_have_value("sm_90")
    assert not [m for m in drawn.asked if m["kind"] == "machine"]
    pane.get_by_role("button", name="Compile for sm_90").click()
    expect(pane.locator(".ln").first).to_be_visible()
    assert [(m["target"], m["stage"]) for m in drawn.asked if m["kind"] == "machine"] == [("sm_90", "sass")]

    # A line of Triton lights its machine code, and scrolls to the first of it.
    number = line_with(kernel, "tl.dot(")
    drawn.root.locator(TRITON).nth(number - 1).click()
    lit = pane.locator(".ln.lit")
    expect(lit).to_have_count(1)
    box, list_box = lit.bounding_box(), pane.locator(".code").bounding_box()
    assert box is not None
    assert list_box is not None
    assert list_box["y"] <= box["y"] <= list_box["y"] + list_box["height"]
    expect(pane.get_by_text("2 linked lines")).to_be_visible()
    before = lit.get_attribute("data-row")
    pane.get_by_role("button", name="next linked line").click()
    pane.get_by_role("button", name="next linked line").click()
    expect(pane.locator(".ln.lit.act")).to_have_count(1)
    assert pane.locator(".ln.lit.act").get_attribute("data-row") != before

    # A line of machine code selects the line of Triton, and by it the loops.
    page.keyboard.press("Escape")
    number = line_with(kernel, "s_sum = repair * s_sum")
    drawn.root.locator(TRITON).nth(number - 1).click()
    row = pane.locator(".ln.lit").first
    at = int(row.get_attribute("data-row") or -1)
    drawn.root.locator(TRITON).nth(number - 1).click()
    expect(pane.locator(".ln.lit")).to_have_count(0)
    pane.locator(f"[data-row='{at}']").click()
    expect(drawn.root.locator(TRITON).nth(number - 1)).to_have_class(re.compile(r"\bown\b"))
    expect(drawn.root.locator("section[aria-label=program] .ln.lit").first).to_be_visible()

    # Other stages of a target that was compiled need no press.
    pane.get_by_role("button", name="PTX").click()
    expect(pane.locator(".ln.lit").first).to_be_in_viewport()  # the selection is still what one looks at
    assert [m["stage"] for m in drawn.asked if m["kind"] == "machine"] == ["sass", "ptx"]
    pane.get_by_label("target", exact=True).select_option("gfx942")
    pane.get_by_role("button", name="Compile for gfx942").click()
    expect(pane.locator(".ln.lit", has_text="v_").first).to_be_visible()


@pytest.mark.nightly
def test_the_keys_walk_and_select(live, kernel):
    drawn = live(kernel, {"panes": {"story": "off"}})
    page = drawn.page
    drawn.root.focus()
    page.keyboard.press("m")
    pane = drawn.root.locator(MACHINE)
    pane.get_by_role("button", name="Compile for sm_90").click()
    rows = pane.get_by_role("listbox", name="machine code")
    rows.focus()
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    for _ in range(3):
        page.keyboard.press("PageDown")
    active = pane.locator(".ln.act")
    expect(active).to_be_in_viewport()
    assert rows.get_attribute("aria-activedescendant") == active.get_attribute("id")
    page.keyboard.press("Enter")
    expect(drawn.root.locator(".ln.own").first).to_be_visible()
    # Only what is in sight is in the page.
    assert pane.locator(".ln").count() < int(active.get_attribute("aria-setsize") or 0)


@pytest.mark.nightly
def test_a_figure_leads_to_its_instructions(live, kernel):
    drawn = live(kernel, UP)
    pane = drawn.root.locator(MACHINE)
    pane.get_by_role("button", name="Compile for sm_90").click()
    for _ in range(2):
        pane.get_by_role("button", name="matrix").click()
    expect(pane.locator(".ln.act")).to_contain_text("HGMMA")


@pytest.mark.nightly
def test_an_exported_page_keeps_what_was_compiled(new_page, kernel, tmp_path):
    explorer = nl.explore(kernel)
    file = tmp_path / "page.html"
    explorer.export_html(file, machine_code="sm_90")
    page = new_page(viewport={"width": 900, "height": 900})
    page.goto(file.as_uri())
    page.locator(".nx").focus()
    page.keyboard.press("m")
    pane = page.locator(MACHINE)
    expect(pane.locator(".ln").first).to_be_visible()
    assert pane.get_by_label("target", exact=True).locator("option").all_inner_texts() == ["sm_90"]
    expect(pane.get_by_role("button", name="Compile")).to_have_count(0)
    explorer = nl.explore(kernel)
    explorer.export_html(file)
    page.reload()
    expect(page.get_by_role("tab", name="Machine", exact=True)).to_be_hidden()


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(new_page, kernel, tmp_path, front_end_packages, scheme):
    file = tmp_path / "page.html"
    nl.explore(kernel).export_html(file, machine_code="sm_90")
    page = new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(file.as_uri())
    page.locator(".nx").focus()
    page.keyboard.press("m")
    expect(page.locator(".machined .ln").first).to_be_visible()
    assert violations(page) == []
