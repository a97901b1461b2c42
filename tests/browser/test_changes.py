"""What an edit changed, in the page: its steps, figures before and after, and the code by linked lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe import violations
from live_page import LivePage
from neptune_widgets.explorer import Explorer
from neptune_widgets.session import Session
from playwright.sync_api import expect

import neptune_lab as nl
from neptune_lab.pipeline.facts import Work
from neptune_lab.pipeline.timing import TimingRow
from neptune_lab.runtime import Ceiling, Measured

VIEW = {"step": -1, "phase": "triton", "panes": {"graph": "changes"}}


def steps_of(kernel: nl.Kernel, **tiles: int) -> list[dict]:
    """The kernel's steps, the score tiled otherwise."""
    steps = [step.as_record() for step in kernel.schedule.steps]
    next(s for s in steps if s["primitive"] == "tile")["arguments"]["tiles"] = tiles
    return steps


def edited(kernel: nl.Kernel, *tilings: dict[str, int]) -> Explorer:
    """An explorer whose schedule was edited, once for each tiling."""
    session = Session(kernel.schedule, kernel)
    for tiles in tilings:
        session.edit(steps_of(kernel, **tiles))
    return Explorer(session)


@pytest.fixture
def after(kernel, new_page):
    """Draws an explorer whose schedule was edited: `after(view, tiles, …)`, one edit for each tiling."""

    def opened(view, *tilings: dict[str, int], width: int = 1440, **options) -> LivePage:
        explorer = edited(kernel, *tilings)
        drawn = LivePage(new_page(viewport={"width": width, "height": 900}, **options), explorer)
        drawn.open(view)
        return drawn

    return opened


HALF, QUARTER = {"i": 32, "j": 64}, {"i": 16, "j": 64}


def row(page, name: str):
    return page.root.locator(".changes tbody tr").filter(has=page.page.get_by_role("rowheader", name=name, exact=True))


@pytest.mark.nightly
def test_numbers_before_and_after_the_last_edit(after):
    page = after(VIEW, HALF)
    expect(page.root.locator(".changes .edited li")).to_have_text(
        ["− removed: tile(qk, i=64, j=64)", "+ added: tile(qk, i=32, j=64)"]
    )
    expect(row(page, "loaded and stored").locator("td")).to_have_text(["918 kB", "1.57 MB", "× 1.7"])
    expect(row(page, "HBM").locator("td")).to_have_text(["524 kB", "524 kB", "the same"])
    expect(row(page, "tiles").locator("td").nth(1)).to_have_text("qk i=32, j=64")
    expect(row(page, "launches").locator("td").nth(1)).to_have_text("8 × 4 × 1 blocks")


@pytest.mark.nightly
def test_the_first_schedule_can_be_chosen_after_two_edits(after):
    page = after(VIEW, HALF, QUARTER)
    expect(row(page, "launches").locator("td").first).to_have_text("8 × 4 × 1 blocks")
    page.root.get_by_label("before", exact=True).select_option("as opened")
    expect(row(page, "launches").locator("td").first).to_have_text("4 × 4 × 1 blocks")
    expect(row(page, "launches").locator("td").nth(1)).to_have_text("16 × 4 × 1 blocks")


@pytest.mark.nightly
def test_code_side_by_side_by_linked_lines(after, kernel):
    page = after(VIEW, HALF)
    page.root.get_by_role("button", name="Code", exact=True).click()
    left, right = (page.root.locator(".changes .cmp .lines").nth(n) for n in (0, 1))
    expect(left.locator(".ln.gap, .ln")).to_have_count(right.locator(".ln.gap, .ln").count())
    assert left.locator(".ln:not(.gap)").count() == len(kernel.source.splitlines())
    # The maximum's start is another line by its text, and the same one by its link.
    start = right.locator(".ln.change").filter(has_text="s_max_0 = tl.full([32]")
    expect(start).to_have_count(1)
    partner = left.locator(".ln").nth(start.evaluate("el => [...el.parentElement.children].indexOf(el)"))
    expect(partner).to_contain_text("s_max_0 = tl.full([64]")
    # The first line that differs is in sight.
    first = right.locator(".ln.change, .ln.add").first.bounding_box()
    box = page.root.locator(".changes .cmp").bounding_box()
    assert box["y"] <= first["y"] <= box["y"] + box["height"]
    # A press on the left selects the line on the right, and everything that belongs to it.
    partner.click()
    for one in (start, partner):
        expect(one).to_have_class(re.compile(r"\bchange\b.*\blit own\b"))


@pytest.mark.nightly
def test_an_edit_in_the_schedule_leads_here(kernel, live):
    page = live(kernel, {"panes": {"graph": "schedule", "editor": "text"}})
    text = page.root.locator(".cm-content")
    text.click()
    page.page.keyboard.press("Control+Home")
    effect = page.root.locator(".schedule .effect:not(.options)")

    def tile(arguments: str) -> None:
        page.root.locator(".cm-line", has_text="sch.tile(").first.click()
        page.page.keyboard.press("Home")
        page.page.keyboard.press("Shift+End")
        page.page.keyboard.type(f"sch.tile({arguments})")

    # An edit that is refused, and taken back, has no effect; the next one has.
    tile("block='none', tiles={}")
    expect(page.root.locator(".chip.check")).to_contain_text("✗ edit refused")
    page.root.get_by_role("button", name="undo", exact=True).click()
    expect(page.root.locator(".chip.check")).not_to_contain_text("✗ edit refused")
    expect(effect).to_be_hidden()
    tile("block='qk', tiles={'i': 32, 'j': 64}")
    expect(effect).to_contain_text("Lines of Triton: ")
    effect.get_by_role("button", name="What changed").click()
    expect(row(page, "launches").locator("td")).to_have_text(["4 × 4 × 1 blocks", "8 × 4 × 1 blocks", ""])


@pytest.mark.nightly
def test_two_steps_of_one_schedule(kernel, live):
    page = live(kernel, {"step": 9, "phase": "repaired", "panes": {"graph": "changes", "changesFrom": "9.dataflow"}})
    expect(row(page, "HBM").locator("td")).to_have_text(["6.34 MB", "1.06 MB", "÷ 6"])
    page.root.get_by_label("after", exact=True).select_option("0.definition")
    expect(row(page, "kernels").locator("td").nth(1)).to_have_text("8")


@pytest.mark.nightly
def test_registers_when_asked(after):
    page = after(VIEW, HALF)
    expect(row(page, "registers per thread")).to_have_count(0)
    page.root.get_by_role("button", name="Registers and shared memory").click()
    expect(row(page, "shared memory per block").locator("td").first).to_have_text("56 KiB")
    expect(row(page, "registers per thread").locator("td").first).to_have_text("132")


@pytest.mark.nightly
def test_a_saved_page_compares_without_python(kernel, new_page, tmp_path: Path):
    explorer = edited(kernel, HALF)
    file = tmp_path / "edited.html"
    explorer.export_html(file)
    page = new_page(viewport={"width": 900, "height": 900}, offline=True)
    page.goto(file.as_uri())
    page.locator(".nx").focus()
    page.keyboard.press("c")
    expect(page.locator(".changes .numbers")).to_contain_text("tile(qk, i=32, j=64)")
    expect(page.locator(".changes .numbers")).to_contain_text("× 1.7")


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe(after, front_end_packages, scheme):
    page = after(VIEW, HALF, color_scheme=scheme)
    for name in ("Numbers", "Code"):
        page.root.locator(".tools").get_by_role("button", name=name, exact=True).click()
        assert violations(page.page, ".changes") == [], name


@pytest.mark.nightly
def test_a_comparison_scrolls_to_its_last_line(kernel, live):
    page = live(kernel, {"step": 9, "phase": "repaired", "compare": {"left": "", "right": ""}})
    box = page.root.locator("section[aria-label=program] .cmp")
    last = box.locator(".lines").nth(1).locator(".ln").last
    box.evaluate("el => { el.scrollTop = el.scrollHeight; }")
    bottom, edge = (at.bounding_box() for at in (last, box))
    assert bottom["y"] + bottom["height"] <= edge["y"] + edge["height"]


@pytest.mark.nightly
def test_time_both_measures_the_two_kernels(after, monkeypatch):
    class Runner:
        name = "a test"
        times = 0

        def time(self, name, kernel, limits):
            self.times += 1
            measured = Measured(100.0 * self.times, 90.0, 120.0, 100, "a test", True)
            return TimingRow(name, Work(1e9, 1e6), measured, (), Ceiling("a test", 100.0, 1000.0, "made up"))

    monkeypatch.setattr("neptune_lab.pipeline.timing.local", lambda smaller: Runner())
    page = after(VIEW, HALF)
    page.root.get_by_role("button", name="Time both").click()
    # The present kernel is timed first, and stands on the right.
    expect(row(page, "measured").locator("td")).to_have_text(["200 µs ± 15 µs", "100 µs ± 15 µs", "÷ 2"])
    expect(page.root.get_by_role("button", name="Time both")).to_be_enabled()
    assert page.asked[-1]["against"] == [{"name": "before the last edit", "version": "before"}]


@pytest.mark.nightly
def test_the_code_before_and_after_folds_and_stays_level(after):
    page = after({**VIEW, "panes": {"graph": "changes", "changes": "code"}}, HALF, width=1000)
    sides = [page.root.locator(".changes .cmp .lines").nth(n) for n in (0, 1)]
    loops = [side.locator(".ln", has=page.page.locator(".fold")).first for side in sides]
    shown = (
        "() => [...document.querySelectorAll('.changes .cmp .lines')].map(l => [...l.children]"
        ".filter(r => !r.hidden).map(r => Math.round(r.getBoundingClientRect().top)))"
    )
    counts = []
    for side, loop in zip((1, 0), reversed(loops), strict=True):  # these loops have other extents: no line of both
        loop.locator(".fold").click()
        expect(loop.locator(".held")).to_contain_text("lines folded")
        tops = page.page.evaluate(shown)
        assert tops[0] == tops[1], side
        counts.append(len(tops[0]))
    # What only one side folds is blank there, and gone once both do, but for the line of the other side's loop.
    assert counts[1] < counts[0] - 10
    expect(sides[0].locator(".ln.blank")).to_have_count(1)
