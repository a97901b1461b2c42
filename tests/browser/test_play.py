"""The pane that plays runs: play, pause, scrub, hover, keys, what is lit, in a live page and in one without Python."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import neptune_lab as nl
from neptune_lab.operators import softmax

PLAY = {"panes": {"graph": "play"}}


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    return schedule


@pytest.fixture(scope="module")
def exported(kernel: nl.Kernel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("play") / "attention.html"
    nl.explore(kernel).export_html(file)
    return file


@pytest.fixture
def page(new_page: Callable[..., Page], exported: Path) -> Page:
    """Attention's page without Python, where the step that fuses the accumulator is wrong; the pane is open.

    Its clock stands still: `run_for` moves it.
    """
    page = new_page(viewport={"width": 1440, "height": 900})
    page.clock.install(time=datetime(2026, 1, 1))
    page.goto(exported.as_uri())
    page.locator(".rail li", has_text="naive fusion").nth(2).click()
    page.get_by_role("button", name="▶ Run").click()
    expect(page.get_by_role("region", name="naive fusion")).to_be_visible()
    page.clock.pause_at(datetime(2026, 1, 2))
    return page


def cells(page: Page, side: str, tensor: str):
    return page.get_by_role("region", name=side).get_by_role("grid", name=tensor).get_by_role("gridcell")


@pytest.mark.nightly
def test_a_page_without_python_plays_to_the_end(page: Page):
    where = page.locator(".run output")
    expect(where).to_have_text("j0 = 0 · 1 of 5")
    page.get_by_role("button", name="play (Space)").click()
    for name in ("j0 = 1 · 2 of 5", "j0 = 2 · 3 of 5"):
        page.clock.run_for(1000)
        expect(where).to_have_text(name)
    # The program pane follows: the loop's lines are lit.
    lit = page.locator("section[aria-label=program] .ln.lit")
    assert "for j0 in range(4):" in "\n".join(lit.all_inner_texts())
    assert "acc" in "\n".join(lit.all_inner_texts())
    page.get_by_role("button", name="pause (Space)").click()
    page.clock.run_for(5000)
    expect(where).to_have_text("j0 = 2 · 3 of 5")
    page.get_by_label("speed").select_option("4")
    page.get_by_role("button", name="play (Space)").click()
    page.clock.run_for(600)
    expect(where).to_have_text("after j0 · 5 of 5")
    page.clock.run_for(1000)
    expect(page.get_by_role("button", name="play (Space)")).to_be_visible()  # it stops at the end
    # From the end it plays again from the start.
    page.get_by_role("button", name="play (Space)").click()
    expect(where).to_have_text("j0 = 0 · 1 of 5")


@pytest.mark.nightly
def test_wrong_values_are_marked_and_the_repaired_ones_are_right(page: Page):
    page.get_by_label("frame", exact=True).fill("4")
    naive, repaired = (cells(page, side, "out") for side in ("naive fusion", "repaired program"))
    assert naive.locator("i", has_text="≠").count() > 0  # a sign, not the colour alone
    assert repaired.locator("i").count() == 0
    wrong = page.locator("[aria-label='naive fusion'] [aria-label=out] td.wrong").first
    said = wrong.get_attribute("aria-label") or ""
    assert said.startswith("out[0, 0, ")
    assert "the definition has" in said
    assert repaired.first.get_attribute("aria-label").endswith("written at after j0, as in the definition")
    expect(page.locator(".side.naive h3")).to_contain_text("! wrong · 6 ≠")


@pytest.mark.nightly
def test_the_value_under_the_pointer_and_the_focus_is_told(page: Page):
    page.get_by_label("frame", exact=True).fill("1")
    says = page.locator(".run .told")
    expect(says).to_contain_text("A sample: the same steps at heads=1")
    score = page.locator("[aria-label=score] td")
    score.nth(0).hover()
    expect(says).to_contain_text("score[0, 0, 0, 0] = 0.00925206: written at j0 = 0")
    page.mouse.move(0, 0)
    expect(says).to_contain_text("A sample")
    score.nth(7).focus()
    expect(says).to_have_text("score[0, 0, 0, 7] is not written yet")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    expect(says).to_have_text("score[0, 0, 1, 6] is not written yet")


@pytest.mark.nightly
def test_keys_in_the_pane(page: Page):
    where = page.locator(".run output")
    stop = page.locator(".rail li.on").inner_text()
    slider = page.get_by_label("frame", exact=True)
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(where).to_have_text("j0 = 1 · 2 of 5")
    page.keyboard.press(".")
    expect(where).to_have_text("j0 = 2 · 3 of 5")
    page.keyboard.press(",")
    expect(where).to_have_text("j0 = 1 · 2 of 5")
    page.keyboard.press("End")
    expect(where).to_have_text("after j0 · 5 of 5")
    page.keyboard.press("Home")
    expect(where).to_have_text("j0 = 0 · 1 of 5")
    page.keyboard.press("Space")
    page.clock.run_for(1000)
    expect(where).to_have_text("j0 = 1 · 2 of 5")
    page.keyboard.press("Space")
    page.clock.run_for(3000)
    expect(where).to_have_text("j0 = 1 · 2 of 5")
    assert page.locator(".rail li.on").inner_text() == stop  # an arrow of the slider does not leave the phase
    # P plays wherever the focus is, and first opens the pane.
    page.locator(".nx").focus()
    page.keyboard.press("p")
    page.clock.run_for(1000)
    expect(where).to_have_text("j0 = 2 · 3 of 5")
    page.keyboard.press("p")
    page.get_by_role("tab", name="Graph").first.click()
    expect(page.locator(".run")).to_be_hidden()
    page.locator(".nx").focus()
    page.keyboard.press("p")
    expect(page.locator(".run")).to_be_visible()


@pytest.mark.nightly
def test_a_cell_selects_its_row_of_the_tag_table(page: Page):
    page.get_by_label("frame", exact=True).fill("1")
    cell = cells(page, "naive fusion", "acc").nth(2)
    value = cell.inner_text().replace("−", "-").replace("≠", "").strip()
    cell.click()
    chosen = page.locator(".tagtable td.own")
    expect(chosen).to_be_visible()
    assert abs(float(chosen.locator("b").inner_text()) - float(value)) < 0.01
    expect(page.locator(".tagtable thead th.cur")).to_have_text("j0 = 1")


@pytest.mark.nightly
def test_a_cell_whose_row_the_table_hides_is_shown(page: Page):
    rows = page.get_by_label("row of the tensors")
    rows.select_option("0")
    page.get_by_label("frame", exact=True).fill("1")
    cells(page, "naive fusion", "acc").last.click()
    expect(rows).to_have_value("3")
    expect(page.locator(".tagtable td.own")).to_be_in_viewport()
    # Another row can be chosen then; what is selected stays.
    rows.select_option("1")
    expect(rows).to_have_value("1")
    # A row that is folded, since the phase did not change it, is unfolded.
    page.get_by_role("grid", name="score").get_by_role("gridcell").first.click()
    expect(rows).to_have_value("0")
    expect(page.locator(".tagtable td.own")).to_be_in_viewport()
    expect(page.locator(".tagtable tr.fold")).to_contain_text("fold ")


@pytest.mark.nightly
def test_all_tensors_and_another_step(page: Page):
    grids = page.locator(".run").get_by_role("grid")
    few = grids.count()
    page.get_by_role("button", name="All tensors").click()
    assert grids.count() > few
    expect(page.locator(".run figcaption", has_text="s_exp").first).to_be_visible()
    page.get_by_role("button", name="All tensors").click()
    page.get_by_label("step to play").select_option("8")
    expect(cells(page, "naive fusion", "s_sum").first).to_be_visible()


@pytest.mark.nightly
def test_it_opens_at_the_frame_that_was_shown(live, new_page, tmp_path: Path):
    drawn = live(figure1(), {**PLAY, "step": 1, "phase": "naive"})
    drawn.root.get_by_label("frame", exact=True).fill("2")
    expect(drawn.root.locator(".run output")).to_have_text("j = 2 · 3 of 4")
    drawn.page.wait_for_function("window.viewOfPage?.panes.frame === '2'")
    drawn.explorer.view = drawn.page.evaluate("window.viewOfPage")
    file = tmp_path / "view.html"
    drawn.explorer.export_html(file)
    page = new_page(viewport={"width": 900, "height": 900})
    page.goto(file.as_uri())
    expect(page.locator(".run output")).to_have_text("j = 2 · 3 of 4")


def test_a_live_page_asks_once_and_follows_the_inputs(live):
    drawn = live(figure1(), {**PLAY, "step": 1, "phase": "naive"})
    root = drawn.root
    expect(root.locator(".run [aria-label=xsum]").first).to_be_visible()
    assert [m["step"] for m in drawn.asked if m["kind"] == "play"] == [1]
    root.get_by_label("frame", exact=True).fill("3")
    assert len([m for m in drawn.asked if m["kind"] == "play"]) == 1
    root.locator("section[aria-label=tags]").get_by_role("tab", name="Inputs").click()
    root.locator(".matrix input").first.fill("5")
    root.locator(".matrix input").first.press("Tab")
    expect(root.locator(".run [aria-label=inp] td").first).to_have_text("5")
    asked = [m for m in drawn.asked if m["kind"] == "play"]
    assert len(asked) == 2
    assert asked[1]["inputs"]["inp"][0][0] == 5


@pytest.mark.nightly
def test_nothing_moves_for_those_who_asked_for_it(new_page, exported: Path):
    page = new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page.goto(exported.as_uri())
    page.get_by_role("button", name="▶ Run").click()
    td = page.locator(".run td").first
    assert td.evaluate("e => getComputedStyle(e).transitionDuration") == "0s"


@pytest.mark.nightly
def test_a_saved_record_says_why_it_has_no_runs(live):
    drawn = live(
        nl.pipeline.schedule_trace(figure1()) if hasattr(nl.pipeline, "schedule_trace") else figure1().trace, PLAY
    )
    expect(drawn.root.locator(".run .note")).to_contain_text("A saved record has no runs. Recompile, in the header")


@pytest.mark.nightly
def test_tiles_play_store_by_store_and_their_line_is_lit(new_page, exported: Path):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(exported.as_uri())
    page.locator(".rail li", has_text="HTile IR").click()
    page.get_by_role("button", name="▶ Run").click()
    where = page.locator(".run output")
    expect(where).to_contain_text("1 of 50")
    for _ in range(5):
        page.get_by_role("button", name="one frame forward (.)").click()
    expect(where).to_contain_text("score · j0 = 0 · i0 = 0 · 6 of 50")
    expect(page.locator("section[aria-label=program] .ln.own").first).to_contain_text("score[")
    expect(page.get_by_role("grid", name="score").locator("td.fresh")).to_have_count(4)
    page.keyboard.press("End")
    expect(where).to_contain_text("the other instance · 50 of 50")
    page.get_by_label("step to play").select_option("9")
    expect(cells(page, "naive fusion", "acc").first).to_be_visible()
