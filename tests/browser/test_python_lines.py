"""A line of the user's Python, pressed: its stages light up in every pane, and the other way round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from live_page import LivePage
from playwright.sync_api import Locator, Page, expect

import neptune_lab as nl

CELL = """\
import torch
def attention(q, k, v):
    '</code></script><img src=x onerror="window.hit = 1">'
    n = q.shape[-1]
    scores = q @ k.transpose(-2, -1) / n**0.5
    p = torch.softmax(scores, dim=-1)
    return p @ v
"""


@pytest.fixture(scope="module")
def kernel() -> nl.Kernel:
    shell = InteractiveShell.instance()
    assert shell.run_cell(CELL).success
    q, k, v = torch.randn(3, 1, 2, 64, 32, dtype=torch.float16)
    return nl.compile(nl.from_torch(shell.user_ns["attention"], q, k, v), block_kv=16, validate="none")


@pytest.fixture
def page(live: Callable[..., LivePage], kernel: nl.Kernel) -> Page:
    page = live(kernel).page
    page.locator(".rail li", has_text="repaired program").last.click()
    tab(page, "Definition")
    return page


def tab(page: Page, name: str) -> None:
    page.get_by_role("tablist", name="Kernel code").get_by_role("tab", name=name, exact=True).click()


def code(page: Page, text: str) -> Locator:
    return page.locator("section[aria-label='kernel code'] .ln", has_text=text)


def lit(page: Page, section: str) -> str:
    return "\n".join(page.locator(f"section[aria-label='{section}'] .ln.lit").all_inner_texts())


@pytest.mark.nightly
def test_the_softmax_lights_its_maximum_and_sum_everywhere(page: Page):
    line = code(page, "p = torch.softmax(")
    expect(line.locator("i")).to_have_text("6")
    line.click()
    expect(line).to_have_attribute("aria-selected", "true")
    expect(code(page, "scores = q @ k")).to_have_attribute("aria-selected", "false")
    loops = lit(page, "program")
    assert "p_max" in loops
    assert "p_sum" in loops
    definition = lit(page, "kernel code")
    assert "p_max[" in definition
    assert "p_sum[" in definition
    expect(page.locator("svg .node.lit, svg .lit", has_text="p_max").first).to_be_attached()
    for name, wanted in (("Triton", "tl.max("), ("HTile", "p_max")):
        tab(page, name)
        expect(page.locator("section[aria-label='kernel code'] .ln.lit", has_text=wanted).first).to_be_attached()
    expect(page.locator(".stages button", has_text="Python 6")).to_contain_text("p = torch.softmax")


@pytest.mark.nightly
def test_a_line_of_loops_or_triton_lights_the_users_line(page: Page):
    page.locator("section[aria-label=program] .ln", has_text="# p_sum").first.click()
    expect(code(page, "p = torch.softmax(")).to_have_attribute("aria-selected", "true")
    expect(code(page, "n = q.shape")).to_have_attribute("aria-selected", "false")
    tab(page, "Triton")
    page.locator("section[aria-label='kernel code'] .ln", has_text="tl.max(").first.click()
    page.locator(".stages button", has_text="Python").click()
    expect(code(page, "p = torch.softmax(")).to_have_attribute("aria-selected", "true")


@pytest.mark.nightly
def test_a_line_that_became_nothing_says_so(page: Page):
    code(page, "n = q.shape").click()
    expect(page.locator(".stages [role=status]")).to_have_text(
        "4: No stage comes from this line: Python ran it when the function was traced, and the kernel computes "
        "nothing of it."
    )
    assert lit(page, "program") == ""
    code(page, "return p @ v").click()
    expect(page.locator(".stages [role=status]")).to_have_count(0)


@pytest.mark.nightly
def test_a_line_is_explained_by_the_stages_that_it_became(page: Page):
    code(page, "p = torch.softmax(").click()
    page.keyboard.press("x")
    panel = page.locator(".nx .explain")
    expect(panel).to_contain_text("This line of your function became 4 stages: p_max, p_exp, p_sum and p.")
    panel.get_by_role("button", name="Definition, lines").click()
    expect(page.locator("section[aria-label='kernel code'] .ln.own", has_text="p_max[").first).to_be_attached()
    tab(page, "Triton")
    page.locator("section[aria-label='kernel code'] .ln", has_text="tl.max(").first.click()
    page.keyboard.press("x")
    expect(panel).to_contain_text("p = torch.softmax(scores, dim=-1)")
    panel.get_by_role("button", name="Python, line 6: select").click()
    expect(code(page, "p = torch.softmax(")).to_have_attribute("aria-selected", "true")


@pytest.mark.nightly
def test_the_users_text_stays_text_and_is_found(page: Page):
    expect(code(page, "<img src=x onerror=")).to_be_visible()
    assert page.evaluate("window.hit") is None
    assert page.locator(".nx img").count() == 0
    page.get_by_label("search all stages").fill("onerror")
    page.keyboard.press("Enter")
    expect(code(page, "<img src=x onerror=")).to_have_attribute("aria-selected", "true")
    page.locator("section[aria-label=program]").get_by_role("tab", name="Definition", exact=True).click()
    expect(page.locator("section[aria-label=program] .ln", has_text="<img src=x")).to_be_visible()
