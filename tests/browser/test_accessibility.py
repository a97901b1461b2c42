"""axe finds nothing of moderate weight in the exported page, in either theme and width; rings show; keys are enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe import SERIOUS, violations
from playwright.sync_api import expect

import neptune_lab as nl

# Gives each control the focus: its name, the least contrast of its ring with what the ring is drawn on.
RINGS = """() => {
  const pixel = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  const luminance = color => {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = color;
    pixel.fillRect(0, 0, 1, 1);
    const parts = [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255);
    const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = el => {
    for (; el; el = el.parentElement) {
      const color = getComputedStyle(el).backgroundColor;
      if (!/, 0\\)$|transparent/.test(color)) return color;
    }
    return "white";
  };
  const found = [];
  for (const el of document.querySelectorAll(".nx :is(button, a, input, select, div, ol)")) {
    el.focus();
    if (document.activeElement !== el) continue;
    const { outlineStyle, outlineWidth, outlineColor, outlineOffset, accentColor } = getComputedStyle(el);
    const within = parseFloat(outlineOffset) + parseFloat(outlineWidth) <= 0;
    const filled = el.checked ? accentColor : behind(el);
    const on = within ? filled : behind(el.parentElement);
    const name = el.getAttribute("aria-label") || el.textContent.trim() || el.parentElement.textContent.trim();
    found.push([name, outlineStyle === "none" ? 0 : contrast(outlineColor, on)]);
  }
  return found;
}"""


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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_focus_rings_contrast_with_what_they_are_drawn_on(new_page, exported, scheme):
    page = new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme, offline=True)
    page.goto(exported.as_uri())
    page.locator(".rail input[type=checkbox]").check()
    page.keyboard.press("Tab")  # the focus that follows is shown as of a keyboard
    rings = page.evaluate(RINGS)
    # WCAG 2.2, 1.4.11: three to one.
    assert [name for name, contrast in rings if contrast < 3] == []
    named = " ".join(name for name, _ in rings)
    for name in ("1 Definition", "nothing", "Compare", "Loops", "search all stages", "iteration"):
        assert name in named


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
