"""All stages at once, stages side by side and linked, differences to walk through, and the code that makes it again."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

CODE = "section[aria-label='kernel code'] .ln"


def test_a_line_lights_definition_loops_htile_triton_graph_and_derivation_at_once(live, kernel):
    page = live(kernel, {"step": 23, "phase": "set_scope"}).page
    page.locator(CODE, has_text="s_sum = repair * s_sum").first.click()
    expect(page.locator("section[aria-label=program] .ln.lit").first).to_contain_text("# s_sum")
    expect(page.locator(".dataflow .node.lit")).to_have_count(1)
    stages = page.get_by_role("group", name="the same in the other stages").get_by_role("button")
    expect(stages).to_have_count(2)
    expect(stages.nth(0)).to_contain_text("HTile")
    expect(stages.nth(1)).to_contain_text("s_sum[b, h, i] = sum(s_exp[b, h, i, j] for j in range(256))")
    derivation = page.locator("section[aria-label=derivation]")
    expect(derivation.locator(".der.lit")).to_be_visible()
    expect(derivation).to_contain_text("repair of s_sum, selected")
    expect(derivation).to_contain_text("from 8 c · repair function")
    # Another reduction, its own derivation; one that was not repaired, none.
    page.locator(CODE, has_text="acc = tl.dot(").first.click()
    expect(derivation).to_contain_text("from 9 c · repair function")
    page.locator(CODE, has_text="qk = tl.dot(").first.click()
    expect(derivation.locator(".der")).to_have_count(0)
    stages.nth(0).click()
    tab = page.get_by_role("tablist", name="Kernel code").get_by_role("tab", name="HTile", exact=True)
    expect(tab).to_have_attribute("aria-selected", "true")


@pytest.mark.nightly
def test_loops_beside_triton_are_aligned_by_their_links_and_nothing_is_red(live, kernel):
    view = {"step": 23, "phase": "set_scope", "compare": {"left": "23.set_scope", "right": "triton"}}
    page = live(kernel, view).page
    expect(page.locator(".choose")).to_contain_text("two stages: linked lines stand side by side")
    expect(page.locator(".cmp .ln.add, .cmp .ln.del, .cmp .ln.change")).to_have_count(0)
    first = page.locator(".cmp .lines").nth(1).locator(".ln", has_text="s_max_0 = tl.full")
    expect(first).to_be_in_viewport()
    beside = first.evaluate(
        "e => { const n = [...e.parentElement.children].indexOf(e);"
        " return document.querySelector('.cmp .lines').children[n].innerText; }"
    )
    assert "s_max_start" in beside or "s_max_0" in beside


@pytest.mark.nightly
def test_differences_are_walked_through(live, kernel):
    compare = {"left": "10.reverse_compute_at", "right": ""}
    view = {"step": 13, "phase": "decompose_reduction", "compare": compare}
    page = live(kernel, view).page
    here = page.locator(".cmp .ln.here")
    page.get_by_role("button", name="next difference").click()
    expect(here).to_have_count(1)
    expect(here).to_be_in_viewport()
    top = here.evaluate("e => [...e.parentElement.children].indexOf(e)")
    page.get_by_role("button", name="next difference").click()
    assert here.evaluate("e => [...e.parentElement.children].indexOf(e)") > top
    expect(here).to_be_in_viewport()
    page.get_by_role("button", name="previous difference").click()
    assert here.evaluate("e => [...e.parentElement.children].indexOf(e)") == top


@pytest.mark.nightly
def test_the_help_has_versions_and_the_code_that_makes_it_again(live, kernel):
    page = live(kernel).page
    page.locator(".nx").focus()
    page.keyboard.press("?")
    code = page.get_by_label("code that makes it again")
    expect(code).to_contain_text("op = nl.operators.attention.causal(")
    expect(code).to_contain_text("sch.rolling_update('acc', 'qk.j0')")
    expect(code).to_contain_text("kernel = nl.compile(sch)")
    expect(page.locator(".help")).to_contain_text("apache-tvm")
    expect(page.locator(".help")).to_contain_text("in its pane, Space plays and pauses")
    page.get_by_role("dialog", name="help").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("dialog", name="help").get_by_role("button", name="Copied")).to_be_visible()
