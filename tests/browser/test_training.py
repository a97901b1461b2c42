"""Both passes in a real browser: stages by pointer and by key, what is kept, and the explorer of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe import SERIOUS, violations
from in_lab import open_notebook, run_all, wait_until_run, write_notebook
from neptune_widgets.training import page as pages
from playwright.sync_api import expect

import neptune_lab as nl
from neptune_lab.operators import attention, rows, training
from neptune_lab.pipeline.training_record import training_record


@pytest.fixture(scope="module")
def causal(tmp_path_factory) -> Path:
    """Causal attention, without the explorers."""
    record = training_record(training(attention.causal(batch=1, heads=2, seq=64, head_dim=16)))
    path = tmp_path_factory.mktemp("page") / "causal.html"
    path.write_text(pages.page(record, {}), encoding="utf-8")
    return path


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 900])
def test_axe(new_page, causal, front_end_packages, scheme, width):
    page = new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page.goto(causal.as_uri())
    page.get_by_role("option", name="d_score map", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("by the rules")
    assert violations(page, ".nt", impacts=("moderate", *SERIOUS)) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.nightly
def test_the_keyboard_alone_goes_from_a_stage_to_its_rule_and_to_the_other_pass(new_page, causal):
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto(causal.as_uri())
    shown = page.get_by_role("status")
    expect(page.locator(".nt.js")).to_be_visible()
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.getAttribute('role')") != "option":
        page.keyboard.press("Tab")
    page.keyboard.press("End")  # the last stage of the forward pass
    expect(shown).to_contain_text("Kept as lse2")
    kept = page.locator("path.kept.lit")
    expect(kept).to_have_count(4)  # two lines with their heads: both nests read it
    page.keyboard.press("ArrowRight")
    expect(shown).to_contain_text("backward pass")
    expect(page.locator("[aria-selected=true]")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(shown).to_contain_text("d_lse")
    expect(shown).to_contain_text("delta")
    shown.locator("summary").press("Enter")
    expect(shown).to_contain_text("sum over d of d_o[r, d] * o[r, d]")
    shown.get_by_role("button", name="lse", exact=True).press("Enter")
    expect(shown).to_contain_text("Its cotangent: d_lse")
    page.keyboard.press("Escape")
    expect(shown).to_contain_text("Choose a stage")


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1700, 1100, 390])
def test_the_text_of_a_stage_is_near_it(new_page, causal, width):
    page = new_page(viewport={"width": width, "height": 900}, offline=True)
    page.goto(causal.as_uri())
    picture, panel = page.locator(".nt svg").first, page.locator(".panel:not([aria-hidden])")
    place = "e => e.getBoundingClientRect().top + scrollY"
    before = picture.evaluate(place)
    stage = page.get_by_role("option", name="d_v map, result", exact=True)
    stage.click()
    expect(panel).to_contain_text("cotangent of v")
    assert picture.evaluate(place) == before
    own, text = stage.bounding_box(), panel.bounding_box()
    assert own
    assert text
    assert own["y"] - 460 < text["y"] < own["y"] + 60
    covered = text["x"] < own["x"] + own["width"] and own["x"] < text["x"] + text["width"]
    assert not covered or text["y"] + text["height"] <= own["y"] or text["y"] >= own["y"] + own["height"]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


# What part of the frame's height the lowest pane of the right column reaches to.
FILLED = """root => {
  const [main, last] = [root.querySelector(".main"), [...root.querySelectorAll(".col.right > .pane")].at(-1)];
  return (last.getBoundingClientRect().bottom - main.getBoundingClientRect().top) / main.offsetHeight;
}"""


@pytest.mark.nightly
def test_a_saved_page_opens_the_explorer_of_each_pass(new_page, tmp_path):
    nl.explore(training(rows.softmax(4, 8))).export_html(tmp_path / "softmax.html")
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto((tmp_path / "softmax.html").as_uri())
    for side, title in (("forward", "Softmax"), ("backward", "Softmax of each row, backward")):
        page.get_by_role("button", name=f"Open the {side} pass in the explorer").click()
        expect(page.locator(".nx")).to_contain_text(title)
        # The page's own rules do not reach it: its panes have the height that its frame leaves them.
        assert page.locator(".nx").evaluate(FILLED) > 0.97
        page.get_by_role("button", name=f"Close the {side} pass").click()
        expect(page.locator(".nx")).to_have_count(0)


@pytest.mark.nightly
def test_a_printed_page_has_the_text_of_every_stage(new_page, tmp_path):
    nl.explore(training(rows.softmax(4, 8))).export_html(tmp_path / "softmax.html")
    page = new_page(viewport={"width": 1000, "height": 700}, color_scheme="dark")
    page.goto((tmp_path / "softmax.html").as_uri())
    stage = page.locator(".stages > details").last
    expect(stage).to_be_hidden()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(stage.locator("> div")).to_be_visible()
    expect(page.locator(".panel")).to_be_hidden()
    assert page.locator(".stages > details:not([open])").count() == 0


@pytest.mark.nightly
def test_what_is_kept_is_chosen_in_a_notebook(page, lab):
    source = """
        import neptune_lab as nl
        from neptune_lab.operators import rows, training
        both = nl.explore(training(rows.softmax(4, 8)))
        both
    """
    write_notebook(lab.folder / "training.ipynb", "\n".join(line.strip() for line in source.strip().splitlines()))
    open_notebook(page, lab, "training.ipynb")
    run_all(page)
    wait_until_run(page)
    shown = page.locator(".nt.js")
    expect(shown).to_be_visible()
    expect(page.locator(".neptune-static")).to_be_hidden()
    tick = shown.get_by_role("checkbox", name="keep lse2")
    expect(tick).to_be_checked()
    tick.uncheck()
    expect(shown).to_contain_text("Nothing is kept")
    expect(shown.get_by_role("option", name="lse2 again: map", exact=True)).to_be_visible()
    expect(shown.get_by_role("checkbox", name="keep lse2")).to_be_focused()
    shown.get_by_role("button", name="Choose by rule").click()
    expect(shown.get_by_role("checkbox", name="keep lse2")).to_be_checked()
    shown.get_by_role("button", name="Open the backward pass in the explorer").click()
    expect(page.locator(".nx")).to_contain_text("backward")
