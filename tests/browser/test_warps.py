"""The warps of a Gluon kernel: simulated when the pane is opened, linked both ways, walked by key, kept in a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from axe import violations
from playwright.sync_api import expect

import neptune_lab as nl
from neptune_lab.operators import attention

TRITON = "section[aria-label='kernel code'] .ln"
SVG = "{http://www.w3.org/2000/svg}"
QUIET = {"panes": {"story": "off"}}


@pytest.fixture(scope="module")
def kernel() -> nl.Kernel:
    operator = attention.causal(heads=1, seq=256, head_dim=64)
    code = nl.CodeOptions(code="gluon")
    return nl.compile(operator, "rolling_update", block_q=128, block_kv=64, code=code, validate="none")


@pytest.mark.nightly
def test_groups_over_steps_are_linked_to_gluon(live, kernel):
    drawn = live(kernel, QUIET)
    root, page = drawn.root, drawn.page
    assert not [m for m in drawn.asked if m["kind"] == "warps"]
    root.focus()
    page.keyboard.press("w")
    pane = root.locator(".warps")
    expect(pane.get_by_role("group", name="producer")).to_be_visible()
    expect(pane.get_by_text("order and dependence, not time")).to_be_visible()
    assert len([m for m in drawn.asked if m["kind"] == "warps"]) == 1

    source = kernel.source.splitlines()
    number = next(n for n, text in enumerate(source) if "acc = repair[:, None] * acc" in text)
    root.locator(TRITON).nth(number).click()
    lit = pane.locator(".wbar.lit")
    expect(lit.first).to_be_in_viewport()
    assert {bar.get_attribute("data-group") for bar in lit.all()} == {"0", "1"}  # both consumers, not the producer

    box = pane.get_by_role("listbox")
    box.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    first = pane.locator(".wbar.act")
    expect(pane.locator(".wsays")).to_have_text(re.compile(r"^consumer 0 · "))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(pane.locator(".wsays")).to_have_text(re.compile(r"^producer · "))
    assert box.get_attribute("aria-activedescendant") == first.get_attribute("id")
    page.keyboard.press("Enter")
    expect(root.locator(f"{TRITON}.own").first).to_be_visible()


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_are_saved_as_svg_and_png(live, kernel, scheme):
    drawn = live(kernel, {"panes": {"story": "off", "graph": "warps"}}, color_scheme=scheme)
    expect(drawn.root.locator(".warps .wbar").first).to_be_visible()
    bars = drawn.root.locator(".warps .wbar").count()
    with drawn.page.expect_download() as found:
        drawn.root.get_by_role("button", name="download the warps as SVG").click()
    assert found.value.suggested_filename == "attention_causal-warps.svg"
    text = Path(found.value.path()).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    shown = "".join(root.itertext())
    for word in ("consumer 0", "consumer 1", "producer", "starts a product", "order and dependence, not time"):
        assert word in shown
    # Every bar is in it, and its colours need no style sheet.
    assert len(root.findall(f".//{SVG}svg/{SVG}rect")) > bars
    assert "var(" not in text
    fills = set(re.findall(r"fill:rgb\([\d, ]+\)", text))
    assert len(fills) >= 5
    with drawn.page.expect_download() as found:
        drawn.root.get_by_role("button", name="download the warps as PNG").click()
    assert Path(found.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
def test_a_kernel_of_triton_has_no_warps(live):
    drawn = live(nl.compile(attention.causal(heads=1, seq=64, head_dim=16), validate="none"), QUIET)
    expect(drawn.root.get_by_role("tab", name="Graph", exact=True).first).to_be_visible()
    expect(drawn.root.get_by_role("tab", name="Warps", exact=True)).to_be_hidden()


@pytest.mark.nightly
def test_a_saved_page_has_them(new_page, kernel, tmp_path):
    file = tmp_path / "page.html"
    nl.explore(kernel).export_html(file)
    page = new_page(viewport={"width": 900, "height": 900})
    page.goto(file.as_uri())
    page.locator(".nx").focus()
    page.keyboard.press("w")
    expect(page.locator(".warps .wbar.w-product").first).to_be_visible()


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(new_page, kernel, tmp_path, front_end_packages, scheme):
    file = tmp_path / "page.html"
    nl.explore(kernel).export_html(file)
    page = new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(file.as_uri())
    page.locator(".nx").focus()
    page.keyboard.press("w")
    expect(page.locator(".warps .wbar").first).to_be_visible()
    assert violations(page) == []
