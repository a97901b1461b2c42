"""axe finds nothing of moderate weight or more in the exported page, of either theme and width; and keys are enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe import SERIOUS, violations
from playwright.sync_api import expect

import neptune_lab as nl


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """Figure 1, fused, as a page on its own."""
    schedule = nl.Schedule(nl.operators.softmax.figure1())
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    path = tmp_path_factory.mktemp("page") / "figure1.html"
    nl.explore(schedule).export_html(path)
    return path


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 900])
def test_axe(new_page, exported, front_end_packages, scheme, width):
    page = new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
    )
    page.goto(exported.as_uri())
    page.locator(".rail li", has_text="repaired program").first.click()
    assert violations(page, impacts=("moderate", *SERIOUS)) == []


@pytest.mark.nightly
def test_the_keyboard_alone_reaches_everything(new_page, exported):
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto(exported.as_uri())
    page.locator(".nx").wait_for()
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => { const e = document.activeElement;
                           return e.getAttribute('aria-label') || e.textContent.trim() }"""
            )
        )
    for name in ("steps", "Compare", "View", "search all stages", "next phase", "Loops", "Tags", "Triton", "Graph"):
        assert any(name in text for text in reached), f"{name} was not reached by Tab: {sorted(reached)}"
    page.keyboard.press("Shift+Tab")
    page.locator(".rail [role=tree]").first.focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
