"""A line of code explained: by key and where the pointer rests, in every pane of code, in the words of the record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from live_page import LivePage
from machine_code_of import machine_code_of
from playwright.sync_api import Locator, Page, expect

import neptune_lab as nl

CODE = "section[aria-label='kernel code'] .ln"


@pytest.fixture
def drawn(live: Callable[..., LivePage], kernel: nl.Kernel) -> LivePage:
    return live(kernel)


def panel(page: Page) -> Locator:
    return page.locator(".nx .explain")


def tab(page: Page, name: str) -> None:
    page.get_by_role("tablist", name="Kernel code").get_by_role("tab", name=name, exact=True).click()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("pane", "line", "told"),
    [
        ("Loops", "acc[b, h, i0 * 64 + i1, d] = (", "corrects what was folded with an old value of s_max"),
        ("Triton", "acc = tl.dot(", "This is the matrix instruction of the GPU."),
        ("HTile", "acc[b, h, (3-i0)*64:(3-i0)*64+64, 0:64] = dot(", "adds the product to the accumulator"),
        ("Definition", "acc[", "A reduction (sum over j)"),
    ],
)
def test_a_key_explains_the_line_in_every_pane(drawn: LivePage, pane: str, line: str, told: str):
    page = drawn.page
    if pane == "Loops":
        page.locator(".rail li", has_text="retire_tags").click()
        lines = page.locator("section[aria-label=program] .ln", has_text=line)
    else:
        tab(page, pane)
        lines = page.locator(CODE, has_text=line)
    lines.first.click()
    page.keyboard.press("x")
    expect(panel(page)).to_be_focused()
    expect(page.get_by_role("dialog", name=line)).to_be_visible()
    expect(panel(page)).to_contain_text(told)
    if pane != "Definition":
        expect(panel(page)).to_contain_text("h(t, s_max, s_max') = t*exp(s_max - s_max')")
        expect(panel(page)).to_contain_text("By Separate, Invert, Derive; proved: Eq. 3, Eq. 4")
        expect(panel(page)).to_contain_text("acc[b, h, i, d] = sum(")
    described = panel(page).evaluate(
        "e => e.getRootNode().getElementById(e.getAttribute('aria-describedby')).textContent"
    )
    assert told in described
    page.keyboard.press("Escape")
    expect(panel(page)).to_be_hidden()
    assert page.evaluate("document.activeElement.getAttribute('role')") == "listbox"
    assert lines.first.get_attribute("aria-selected") == "true", "Escape also cleared the selection"


@pytest.mark.nightly
def test_the_keyboard_alone_reads_terms_and_goes_to_the_step_and_the_derivation(drawn: LivePage):
    page = drawn.page
    tab(page, "Triton")
    page.locator(CODE, has_text="s_sum = repair").first.click()
    page.keyboard.press("x")
    term = panel(page).get_by_role("button", name="repair term", exact=True)
    term.focus()
    page.keyboard.press("Enter")
    expect(term).to_have_attribute("aria-expanded", "true")
    expect(panel(page).get_by_role("status")).to_have_text(
        "repair term: The factor or expression by which h corrects the value folded so far, such as exp(m_old − m_new)."
    )
    panel(page).get_by_role("button", name="11 · retire_tags(s_max)").focus()
    page.keyboard.press("Enter")
    expect(panel(page)).to_be_hidden()
    expect(page.locator(".rail li.on")).to_contain_text("retire_tags")
    page.keyboard.press("x")  # the selection is kept: its line in the loops is explained now
    panel(page).get_by_role("button", name="Show the derivation").click()
    expect(page.locator(".rail li.on")).to_contain_text("repair function")
    expect(page.locator("section[aria-label=derivation] .sum")).to_be_visible()


@pytest.mark.nightly
def test_it_opens_where_the_pointer_rests_and_goes_with_it(drawn: LivePage):
    page = drawn.page
    tab(page, "Triton")
    page.locator(CODE, has_text="s_max_0 = tl.full").scroll_into_view_if_needed()
    page.locator(CODE, has_text="s_max_0 = tl.full").hover()
    expect(panel(page)).to_contain_text("Writes the start value: the identity of the reduction")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "tab", (
        "a panel of the pointer took the focus"
    )
    panel(page).hover()  # it can be reached, to press what is in it
    page.wait_for_timeout(600)
    expect(panel(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel(page)).to_be_hidden()
    page.locator(CODE, has_text="s_sum = tl.full").hover()
    expect(panel(page)).to_be_visible()
    page.locator("header .name").hover()
    expect(panel(page)).to_be_hidden()
    # A page that scrolls a line under a pointer that rests explains nothing.
    page.locator("section[aria-label=program] .ln").nth(2).scroll_into_view_if_needed()
    pointer, line = (
        page.locator(at).bounding_box() for at in ("header .name", "section[aria-label=program] .ln >> nth=2")
    )
    assert pointer is not None
    assert line is not None
    page.evaluate("y => { document.body.style.marginTop = `-${y}px`; }", line["y"] - pointer["y"])
    page.wait_for_timeout(900)
    expect(panel(page)).to_be_hidden()
    page.evaluate("document.body.style.marginTop = 0")
    # By the key alone, if one likes: kept in the view.
    page.locator(CODE, has_text="s_max_0 = tl.full").hover()
    panel(page).get_by_role("button", name="Explain by the key X only").click()
    expect(panel(page)).to_be_hidden()
    page.locator(CODE, has_text="s_sum = tl.full").hover()
    page.wait_for_timeout(1200)
    expect(panel(page)).to_be_hidden()
    page.wait_for_function("window.viewOfPage?.panes.explain === 'key'")


@pytest.mark.nightly
@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", [390, 900, 1440])
def test_the_panel_stays_inside_the_widget(live: Callable[..., LivePage], kernel: nl.Kernel, width: int):
    page = live(kernel, {"panes": {"narrow": "code", "code": "triton"}, "selection": ["triton:86"]}, width=width).page
    page.locator(".nx").focus()
    page.keyboard.press("x")
    expect(panel(page)).to_be_visible()
    inside = panel(page).evaluate(
        "e => { const a = e.getBoundingClientRect(), b = e.parentElement.getBoundingClientRect();"
        " return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom; }"
    )
    assert inside


@pytest.mark.nightly
def test_a_line_of_machine_code_is_explained_by_what_it_was_compiled_from(live, kernel, monkeypatch):
    monkeypatch.setattr(nl.Kernel, "machine_code", machine_code_of)
    drawn = live(kernel, {"panes": {"graph": "machine", "story": "off"}})
    page = drawn.page
    drawn.root.get_by_role("button", name="Compile for sm_90").click()
    number = 1 + next(n for n, text in enumerate(kernel.source.splitlines()) if "acc = tl.dot(" in text)
    tab(page, "Triton")
    page.locator(CODE).nth(number - 1).click()
    line = page.locator(".machined .ln.lit").first
    line.click()
    page.keyboard.press("x")
    expect(panel(page)).to_contain_text(f"Compiled from line {number} of the kernel's source.")
    expect(panel(page)).to_contain_text("h(t, s_max, s_max') = t*exp(s_max - s_max')")
    page.keyboard.press("Escape")
    expect(page.locator(".mrows")).to_be_focused()
