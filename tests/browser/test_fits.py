"""What does not fit wraps instead of being cut off; the focus and a graph's place stay when a pane changes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from weighted_square import weighted_square

import neptune_lab as nl
from neptune_lab.operators import norms, softmax

# As JupyterLab styles the outputs of a cell.
NOTEBOOK = ".out dl dt { font-weight: bold; float: left; width: 20% } .out dd { margin-left: 20% }"


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    return schedule


REPAIRED = {"step": 1, "phase": "repaired"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [390, 990])
def test_every_button_can_be_reached_and_no_sentence_is_cut(live, width: int):
    drawn = live(figure1(), REPAIRED, width=width)
    expect(drawn.root.locator(".chip.whole")).to_contain_text("makes no kernel yet")
    outside = drawn.root.locator("header, .story, .strip").evaluate_all(
        "all => all.flatMap(e => [...e.querySelectorAll('button, p')]).filter(b => b.offsetParent)"
        ".filter(b => b.getBoundingClientRect().right > b.closest('.nx').getBoundingClientRect().right"
        " || b.scrollHeight > b.clientHeight + 2).map(b => b.innerText)"
    )
    assert outside == []
    if width == 390:  # panes in one column are high enough to show something, also in a window that is zoomed to 200%
        for size in ((390, 900), (720, 450), (290, 900)):
            drawn.page.set_viewport_size({"width": size[0], "height": size[1]})
            bodies = drawn.root.locator(".pane:visible .body, .pane:visible .wide")
            expect(bodies.first).to_be_visible()
            heights = bodies.evaluate_all("all => all.map(e => e.clientHeight)")
            assert min(heights) > 90, (size, heights)
        drawn.root.get_by_role("button", name="Compare", exact=True).click()
        # One program with both: two have no room beside each other. A line has room beside its indentation.
        expect(drawn.root.locator(".cmp")).to_have_count(0)
        program = drawn.root.get_by_role("region", name="program", exact=True)
        expect(program.locator(".ln.del")).not_to_have_count(0)
        assert program.locator(".body").evaluate("e => e.clientHeight") > 150
        expect(program.locator(".ln.change")).not_to_have_count(0)
        room = "all => all.map(e => e.parentElement.clientWidth - e.clientWidth)"
        assert min(program.locator(".ln .ind").evaluate_all(room)) > 150


@pytest.mark.nightly
def test_the_tabs_beside_a_comparison_can_be_reached(live):
    drawn = live(figure1(), {**REPAIRED, "compare": {"left": "", "right": ""}}, width=1100)
    tabs = drawn.root.locator("section", has=drawn.page.locator(".dataflow")).last.get_by_role("tab")
    expect(tabs.last).to_have_text("Changes")
    expect(tabs.last).to_be_in_viewport(ratio=1)


@pytest.mark.nightly
def test_the_focus_stays_in_the_explorer_when_its_pane_changes(live):
    drawn = live(figure1(), {**REPAIRED, "sizes": {"zoom": 3}})
    graph = drawn.root.locator(".gbox")
    graph.evaluate("e => new Promise(seen => { e.onscroll = seen; e.scrollTo(240, 60); })")
    place = graph.evaluate("e => [e.scrollLeft, e.scrollTop]")
    assert place[0] > 0
    drawn.root.locator(".lines").first.focus()
    drawn.page.keyboard.press("d")
    expect(drawn.root.locator(".cmp")).to_be_visible()
    assert drawn.page.evaluate("document.activeElement.closest('.nx') !== null")
    drawn.page.keyboard.press("Escape")
    expect(drawn.root.locator(".cmp")).to_have_count(0)
    assert drawn.page.evaluate("document.activeElement.closest('.nx') !== null")
    # A button that its own press disables.
    drawn.root.get_by_role("tab", name="Timing", exact=True).click()
    drawn.silent = True
    drawn.root.get_by_role("button", name="Run", exact=True).click()
    expect(drawn.root.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    drawn.page.keyboard.press("?")
    expect(drawn.root.get_by_role("dialog", name="help")).to_be_visible()
    drawn.page.keyboard.press("Escape")
    # The graph is where it was before another tab was shown.
    drawn.root.get_by_role("tab", name="Graph", exact=True).click()
    assert graph.evaluate("e => [e.scrollLeft, e.scrollTop]") == place


@pytest.mark.nightly
def test_the_page_around_leaves_the_explanation_its_columns(live):
    drawn = live(figure1(), REPAIRED)
    drawn.page.evaluate("document.querySelector('.nx').parentElement.className = 'out'")
    drawn.page.add_style_tag(content=NOTEBOOK)
    line = drawn.root.locator(".lines .ln", has_text="# s_exp").first
    line.click()
    drawn.page.keyboard.press("x")
    terms = drawn.root.locator(".explain dt")
    expect(terms.first).to_be_visible()
    heights = terms.evaluate_all("all => all.map(e => e.offsetHeight)")
    assert max(heights) < 30, heights


@pytest.mark.nightly
def test_a_search_is_kept_if_the_next_press_comes_at_once(live):
    drawn = live(figure1(), REPAIRED)
    box = drawn.root.get_by_label("search all stages")
    box.fill("guard")
    drawn.root.get_by_role("button", name="Back", exact=True).click()
    expect(drawn.root.locator(".rail", has_text="matches")).to_be_visible()
    assert box.input_value() == "guard"
    # A cell says once that it is right.
    label = drawn.root.locator(".tagtable td button", has_text="✓").first.get_attribute("aria-label") or ""
    assert label.count("as in the definition") == 1, label


@pytest.mark.nightly
def test_a_reason_of_the_template_is_short_in_the_lists(live):
    drawn = live(
        nl.compile(weighted_square(), "rolling_update", block_kv=4, validate="none"), {"step": 3, "phase": "naive"}
    )
    reason = drawn.root.locator(".rail li", has_text="total starts a loop of its own").first
    assert reason.bounding_box()["height"] < 80
    drawn.root.get_by_role("button", name="▶ Run").click()
    played = drawn.root.get_by_label("step to play")
    expect(played).to_be_attached()
    assert played.bounding_box()["width"] <= 210
    # The columns are the iterations of the loop that it was to be fused into; nothing of the right program is wrong.
    expect(drawn.root.get_by_label("loop whose iterations are the columns")).to_have_value("j0")
    drawn.root.locator(".rail li", has_text="annotate").last.click()
    expect(drawn.root.locator(".tagtable td.early")).to_have_count(0)


@pytest.mark.nightly
def test_the_error_of_a_refused_step_stands_at_its_block(live):
    drawn = live(figure1(), {**REPAIRED, "panes": {"graph": "schedule"}})
    drawn.root.get_by_role("button", name="Text", exact=True).click()
    editor = drawn.root.locator(".cm-content")
    editor.click()
    drawn.page.keyboard.press("Control+End")
    drawn.page.keyboard.type("\nsch.inline('s_max')")
    expect(drawn.root.locator(".chip.check")).to_contain_text("✗ edit refused")
    drawn.root.get_by_role("tab", name="Graph", exact=True).click()
    drawn.root.locator(".rail li", has_text="refused").last.click()
    name = drawn.page.get_by_text("s_max", exact=True)
    node = drawn.root.locator(".dataflow .node.lit").filter(has=name)
    expect(node).to_have_count(1)
    assert node.locator("rect").first.evaluate("e => getComputedStyle(e).strokeDasharray") != "none"
    lit = drawn.root.locator("section[aria-label=program] .ln.lit")
    expect(lit.filter(has_text="xmax")).not_to_have_count(0)


@pytest.mark.nightly
def test_a_repair_function_that_is_too_long_for_its_pane_is_text(live):
    schedule = nl.Schedule(norms.layer_norm_statistics(2, 8))
    schedule.rolling_update("deviation_sum", "x_sum.j")
    drawn = live(schedule, REPAIRED, width=1000)
    line = drawn.root.locator(".der > .sum")
    expect(line.locator("code")).to_have_text(re.compile(r"^h_0\(t_0, t_1, t_2, \w+, \w+'\) = t_0 \+ "))
    expect(line.locator("code")).to_be_visible()
    expect(line.locator("math")).to_be_hidden()
    assert line.evaluate("e => e.scrollWidth <= e.clientWidth")
    drawn.page.set_viewport_size({"width": 2600, "height": 900})
    expect(line.locator("math")).to_be_visible()
    expect(line.locator("code")).to_be_hidden()
