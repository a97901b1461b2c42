"""Loops of code fold, and so do groups of steps; long lines of code are wrapped, never cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from live_page import LivePage
from playwright.sync_api import Locator, Page, expect

import neptune_lab as nl

PROGRAM = "section[aria-label=program] .ln"
CODE = "section[aria-label='kernel code'] .ln"


@pytest.fixture
def page(live: Callable[..., LivePage], kernel: nl.Kernel) -> Page:
    page = live(kernel, {"step": 11, "phase": "retire_tags"}).page
    expect(page.locator(".rail li.on")).to_contain_text("retire_tags")
    return page


def loop(page: Page, text: str, pane: str = PROGRAM) -> Locator:
    return page.locator(pane, has_text=text).first


def test_a_loop_folds_by_mouse_and_says_what_it_holds(page: Page):
    rolling = loop(page, "for j0 in range(4):")
    rolling.locator(".fold").click()
    expect(rolling.locator(".held")).to_contain_text("lines folded")
    expect(loop(page, "score[b, h, i0 * 64 + i1, j0 * 64 + j1] = where(")).to_be_hidden()
    assert rolling.get_attribute("aria-selected") == "false", "the press that folds must not select"
    # It stays folded at the next step, and in the saved view.
    page.locator(".nx").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".rail li.on")).to_contain_text("decompose_reduction")
    expect(rolling.locator(".held")).to_be_visible()
    page.wait_for_function("window.viewOfPage?.folded.length === 1")
    rolling.locator(".fold").click()
    expect(rolling.locator(".held")).to_have_count(0)
    expect(loop(page, "score[b, h, i0 * 64 + i1, j0 * 64 + j1] = where(")).to_be_visible()


@pytest.mark.nightly
def test_the_keyboard_folds_the_loop_around_the_line_and_skips_what_is_hidden(page: Page):
    listing = page.locator("section[aria-label=program] [role=listbox]")
    loop(page, "# score").click()
    page.keyboard.press("f")
    expect(loop(page, "for i1, j1 in grid(64, 64):").locator(".held")).to_have_text("⋯ 5 lines folded, 5 highlighted")
    active = page.locator(f"{PROGRAM}.act")
    expect(active).to_contain_text("for i1, j1 in grid(64, 64):")
    page.keyboard.press("ArrowDown")
    expect(active).to_contain_text("for i1, j1 in grid(64, 64):")
    assert active.locator(".held").count() == 0, "the next line is the next loop"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("f")
    expect(page.locator(f"{PROGRAM} .held")).to_have_count(0)
    page.keyboard.press("Shift+F")
    expect(page.locator(f"{PROGRAM}:visible")).to_have_count(1)
    page.keyboard.press("Shift+F")
    expect(page.locator(f"{PROGRAM} .held")).to_have_count(0)
    expect(listing).to_be_focused()


@pytest.mark.nightly
def test_a_selection_made_elsewhere_unfolds_what_it_names_and_marks_what_is_related(page: Page):
    loop(page, "for j0 in range(4):").locator(".fold").click()
    code = page.locator(CODE, has_text="s_sum = repair * s_sum").first
    code.click()
    expect(loop(page, "for j0 in range(4):").locator(".held")).to_contain_text("5 highlighted")
    page.locator("input[type=search]").fill("j0 * 64 + j1] = where(")
    page.keyboard.press("Enter")
    expect(page.locator(f"{PROGRAM}.own").first).to_be_visible()


@pytest.mark.nightly
def test_a_template_s_steps_fold_into_one(page: Page):
    rail = page.locator(".rail [role=tree]").first
    head = rail.locator("li", has_text="template rolling_update")
    expect(head).to_have_attribute("aria-expanded", "true")
    head.locator(".fold").click()
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(rail.locator("li")).to_have_count(3)  # definition, the remark, the template
    expect(head).to_have_attribute("aria-selected", "true")  # it holds the current step
    rail.locator("li", has_text="definition").click()
    page.locator(".nx").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(head).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".rail li.on")).to_contain_text("HTile IR")
    page.keyboard.press("ArrowLeft")
    rail.focus()
    page.keyboard.press("f")
    expect(head).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".rail li.on")).to_contain_text("set_scope(acc_tile")


@pytest.mark.nightly
def test_a_run_of_one_primitive_and_a_step_with_phases_fold(page: Page):
    rail = page.locator(".rail [role=tree]").first
    rail.locator("li", has_text="set_scope × 10").locator(".fold").click()
    expect(rail.locator("li", has_text="set_scope(")).to_have_count(0)
    step = rail.locator("li", has_text="rolling_update(s_sum")
    step.locator(".fold").click()
    expect(rail.locator("li", has_text="naive fusion")).to_have_count(2)
    step.click()  # its last phase
    expect(step).to_have_attribute("aria-selected", "true")
    expect(page.locator("section[aria-label=program] .note")).to_contain_text("s_sum repairs the value that it carries")


@pytest.mark.nightly
@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", [390, 900, 1440])
def test_no_line_of_code_is_cut(live: Callable[..., LivePage], kernel: nl.Kernel, width: int):
    page = live(kernel, {"step": 11, "phase": "retire_tags", "panes": {"narrow": "code"}}, width=width).page
    for tab in ("Triton", "HTile", "Definition"):
        page.get_by_role("tablist", name="Kernel code").get_by_role("tab", name=tab, exact=True).click()
        cut = page.evaluate(
            "() => [...document.querySelectorAll('.nx .code')].filter(c => c.offsetParent)"
            ".flatMap(c => c.scrollWidth > c.clientWidth ? ['scrolls'] : [...c.querySelectorAll('.ln code')]"
            ".filter(l => l.getBoundingClientRect().right > c.getBoundingClientRect().right).map(l => l.textContent))"
        )
        assert cut == []
    hang = page.evaluate(
        "() => { const c = document.querySelector('section[aria-label=program] .ln code');"
        " return parseFloat(getComputedStyle(c).paddingLeft) + parseFloat(getComputedStyle(c).textIndent); }"
    )
    assert hang == 0, "the first row of a line begins where its text does"


@pytest.mark.nightly
def test_both_sides_of_a_comparison_stay_level(live: Callable[..., LivePage], kernel: nl.Kernel):
    view = {"step": 11, "phase": "retire_tags", "compare": {"left": "0.definition", "right": ""}}
    page = live(kernel, view).page
    expect(page.locator(".cmp .lines")).to_have_count(2)
    tops = (
        "() => [...document.querySelectorAll('.cmp .lines')].map(l => [...l.children]"
        ".map(r => Math.round(r.getBoundingClientRect().top)))"
    )
    for width in (1430, 1700, 1500):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(150)
        left, right = page.evaluate(tops)
        assert left == right


TOPS = (
    "() => [...document.querySelectorAll('.cmp')].filter(c => c.offsetParent)"
    ".flatMap(c => [...c.querySelectorAll('.lines')])"
    ".map(l => [...l.children].filter(r => !r.hidden).map(r => Math.round(r.getBoundingClientRect().top)))"
)


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1600, "dark")])
def test_loops_of_a_comparison_fold_on_both_sides(live: Callable[..., LivePage], kernel: nl.Kernel, width, scheme):
    view = {"step": 11, "phase": "retire_tags", "compare": {"left": "9.naive", "right": ""}}
    page = live(kernel, view, width=width, color_scheme=scheme).page
    left, right = (page.locator(".cmp .lines").nth(n) for n in (0, 1))
    rolling = right.locator(".ln", has_text="for j0 in range(4):").first
    rolling.locator(".fold").click()
    for side in (left, right):
        expect(side.locator(".ln", has_text="for j0 in range(4):").first.locator(".held")).to_contain_text(
            "lines folded"
        )
        expect(side.locator(".ln", has_text="j0 * 64 + j1] = where(").first).to_be_hidden()
    tops = page.evaluate(TOPS)
    assert tops[0] == tops[1]
    # A difference that the loop hides unfolds it.
    for _ in range(40):
        page.get_by_role("button", name="next difference").click()
        expect(right.locator(".ln.here")).to_be_in_viewport()
        if not rolling.locator(".held").count():
            break
    expect(rolling.locator(".held")).to_have_count(0)
    # With the keyboard, from the other side.
    left.locator(".ln", has_text="for j0 in range(4):").first.click()
    page.keyboard.press("f")
    expect(rolling.locator(".held")).to_be_visible()
    page.keyboard.press("f")
    expect(rolling.locator(".held")).to_have_count(0)


@pytest.mark.nightly
def test_a_side_that_does_not_fold_keeps_its_lines(live: Callable[..., LivePage], kernel: nl.Kernel):
    view = {"step": 11, "phase": "retire_tags", "compare": {"left": "11.retire_tags", "right": "triton"}}
    page = live(kernel, view).page
    left, right = (page.locator(".cmp .lines").nth(n) for n in (0, 1))
    before = right.locator(".ln:not(.gap)").count()
    inner = left.locator(".ln", has_text="for i1, j1 in grid(64, 64):").first
    inner.locator(".fold").click()
    expect(inner.locator(".held")).to_be_visible()
    assert right.locator(".ln:not(.gap):not([hidden]):not(.blank)").count() == before
    tops = page.evaluate(TOPS)
    assert tops[0] == tops[1]
