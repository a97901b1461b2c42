"""The solver's panel in a real JupyterLab: a term is written by key, and its repair, or its refusal, is read below."""

from __future__ import annotations

import pytest
from axe import SERIOUS, violations
from in_lab import open_notebook, run_all, wait_until_run, write_notebook
from playwright.sync_api import Locator, expect


@pytest.fixture
def panel(page, lab) -> Locator:
    """The panel of a notebook of its own, drawn."""
    write_notebook(lab.folder / "solver.ipynb", "import neptune_lab as nl\n\nnl.solver()")
    open_notebook(page, lab, "solver.ipynb")
    run_all(page)
    wait_until_run(page)
    page.wait_for_selector(".ns")
    return page.locator(".ns")


def write(panel: Locator, field: str, words: str) -> None:
    """By key, as a person does."""
    box = panel.get_by_label(field)
    box.click()
    box.press("Control+a")
    box.press_sequentially(words)


def test_write_a_term_and_read_its_repair(panel, front_end_packages):
    status = panel.get_by_role("status")
    expect(status).to_contain_text("h(t, r, r') = t*exp(r - r')")
    expect(panel.page.locator(".neptune-static")).to_be_hidden()
    write(panel, "term g(r, c)", "(c/r)**2")
    expect(status).to_contain_text("t*r**2/r'**2")
    expect(panel.locator(".formula math")).to_be_visible()
    expect(panel.locator(".formula")).to_contain_text("′")
    proof = panel.locator("details", has_text="Prove Eq. 4")
    expect(proof.locator(".s.ok")).to_have_count(1)
    proof.locator("summary").press("Enter")
    expect(proof.locator(".rows").get_by_text("h is additive in t")).to_be_visible()

    # What was unfolded stays so while another term is written.
    write(panel, "term g(r, c)", "c*r")
    expect(status).to_contain_text("t*r'/r")
    expect(proof).to_have_attribute("open", "")

    # The reducer by arrow keys, and then what is known of r.
    panel.get_by_role("radio", name="sum").focus()
    for name in ("sum", "prod"):
        panel.get_by_role("radio", name=name).press("ArrowRight")
    expect(panel.get_by_role("radio", name="max")).to_be_checked()
    expect(status).to_contain_text("There is no repair")
    write(panel, "what is known", "r >= 0")
    expect(status).to_contain_text("h(t, r, r') = t*r'/r")


@pytest.mark.nightly
def test_a_refused_term_says_at_which_step_and_a_half_written_one_waits(panel):
    status = panel.get_by_role("status")
    write(panel, "term g(r, c)", "max(c, r")
    expect(status).to_contain_text("Not readable yet")
    expect(panel.locator(".refusal")).to_have_count(0)
    panel.get_by_label("term g(r, c)").press_sequentially(")")
    expect(status).to_contain_text("There is no repair")
    refusal = panel.locator(".refusal").first
    expect(refusal).to_contain_text("refused at the step “invert”")
    expect(refusal).to_contain_text("max forgets all but its largest argument")
    expect(refusal).to_contain_text("how to fix it")
    done = panel.locator("section").first
    expect(done.locator("details.step summary .n")).to_have_text(["Read", "Separate"])
    panel.get_by_role("button", name="deviation").click()
    expect(status).to_contain_text("a family of sums has one")
    expect(panel.get_by_label("term g(r, c)")).to_have_value("(c - r)**2")
    expect(panel.locator("section", has_text="family").locator(".s.ok").first).to_be_visible()


@pytest.mark.nightly
def test_axe_finds_nothing_serious(panel, front_end_packages):
    panel.get_by_role("button", name="deviation").click()  # a refusal, and a derivation
    expect(panel.get_by_role("status")).to_contain_text("a family of sums has one")
    expect(panel).not_to_have_class("ns stale")
    panel.locator("details summary").first.click()
    assert violations(panel.page, ".ns", impacts=("moderate", *SERIOUS)) == []


@pytest.mark.nightly
def test_a_question_that_takes_too_long_is_stopped(panel):
    write(panel, "term g(r, c)", "(c + r)**300")
    panel.get_by_role("button", name="Stop").click()
    status = panel.get_by_role("status")
    expect(status).to_contain_text("There is no repair")
    expect(panel.get_by_text("the derivation was stopped").first).to_be_visible()
    expect(panel.get_by_role("button", name="Stop")).to_be_hidden()
    write(panel, "term g(r, c)", "c/r")
    expect(status).to_contain_text("t*r/r'")
