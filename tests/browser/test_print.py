"""An exported page on paper: the whole record in the flow of the page, in light colours, and nothing that scrolls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

import neptune_lab as nl
from neptune_lab.operators import softmax

# What a reader of the paper would miss: boxes that cut what is in them.
CUT = """() => [...document.querySelectorAll(".printed, .printed *")]
  .filter(e => getComputedStyle(e).overflow !== "visible" && e.clientHeight && !e.closest("svg, math, .vh"))
  .filter(e => e.scrollHeight > e.clientHeight + 1 && e.checkVisibility({visibilityProperty: true}))
  .map(e => e.className)"""
GROUND = "() => getComputedStyle(document.querySelector('.nx')).backgroundColor"


def test_a_printed_page_has_every_part_of_the_record(new_page: Callable[..., Page], tmp_path: Path):
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    nl.explore(schedule).export_html(tmp_path / "page.html")
    page = new_page(viewport={"width": 1000, "height": 700}, color_scheme="dark")
    page.goto((tmp_path / "page.html").as_uri())
    expect(page.locator(".nx.dark")).to_have_count(1)
    page.keyboard.press("]")  # a page of its own needs no click before its keys work
    expect(page.locator(".story [aria-current=step]")).to_have_text("2 Fused: wrong")

    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator(".nx > header")).to_be_hidden()
    paper = page.locator(".printed")
    headings = paper.locator("h3").all_inner_texts()
    assert headings[:5] == ["Definition", "1 Definition", "2 Fused: wrong", "3 Why", "4 Repaired: right"]
    assert headings[-2:] == ["Steps", "Traffic"]
    expect(paper.locator(".drawing")).to_have_count(3)
    expect(paper.locator(".tagtable")).to_have_count(3)
    expect(paper.locator(".der details:not([open])")).to_have_count(0)
    assert paper.locator(".ln .rep").count(), "the repair term is marked"
    expect(paper.locator(".memories")).to_have_count(2)
    assert page.evaluate(CUT) == []
    assert page.evaluate(GROUND) == "rgb(255, 255, 255)"

    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    expect(paper).to_have_count(0)
    expect(page.locator(".nx.dark")).to_have_count(1)
