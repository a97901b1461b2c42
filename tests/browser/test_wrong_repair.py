"""A repair that is not proved, in a real JupyterLab: it is marked, its first wrong iteration is found, and mended."""

from __future__ import annotations

import re

import pytest
from in_lab import open_notebook, run_all, wait_until_run, write_notebook
from playwright.sync_api import Locator, expect

CELL = """import neptune_lab as nl

sch = nl.Schedule(nl.operators.softmax.figure1(rows=1, cols=4))
sch.rolling_update("s_sum", "s_max.j", repair="t * exp(xmax_now - xmax_before)", proved=False)
nl.explore(sch)"""


@pytest.fixture
def explorer(page, lab) -> Locator:
    write_notebook(lab.folder / "wrong_repair.ipynb", CELL)
    open_notebook(page, lab, "wrong_repair.ipynb")
    run_all(page)
    wait_until_run(page)
    page.wait_for_selector(".nx")
    found = page.locator(".nx").first
    found.scroll_into_view_if_needed()
    return found


def give(explorer: Locator, *row: float) -> None:
    """Types a row of the input, and goes back to the tag table."""
    explorer.get_by_role("tab", name="Inputs", exact=True).first.click()
    for n, value in enumerate(row):
        cell = explorer.locator(".matrix input").nth(n)
        cell.fill(str(value))
        cell.press("Enter")
    explorer.get_by_role("tab", name="Tags", exact=True).last.click()


@pytest.mark.nightly
def test_the_first_wrong_iteration_is_found_and_the_repair_mended(explorer):
    rail = explorer.locator(".rail")
    expect(rail.locator("li", has_text="repair function, not proved").first).to_contain_text("not proved✗")
    expect(rail.locator("li", has_text="repaired program, not proved").first).to_contain_text("! wrong")
    expect(explorer.locator(".chip.check")).to_contain_text("does NOT equal the definition")

    for phase in ("repair function, not proved", "repaired program, not proved"):
        title = rail.locator("li", has_text=phase).first.locator(".tt")
        assert title.evaluate("e => e.scrollWidth <= e.clientWidth"), f"{phase!r} is cut off"

    rail.locator("li", has_text="repaired program, not proved").first.click()
    explorer.get_by_role("tab", name="Tags", exact=True).first.click()
    table = explorer.locator("table.tagtable")
    total = table.locator("tr", has_text=re.compile(r"^xsum\[0\]"))
    expect(total).to_be_visible()

    # The largest number comes first: the factor is 1 at every iteration, and nothing is wrong.
    give(explorer, 4, 3, 2, 1)
    jump = explorer.get_by_role("button", name=re.compile("first wrong at"))
    expect(total.locator("td").last).to_contain_text("✓")
    expect(jump).to_have_count(0)

    give(explorer, 3, 1, 4, 2)
    expect(jump).to_have_text("✗ first wrong at j = 2")
    place = jump.bounding_box()
    jump.click()
    expect(explorer.locator("output.at")).to_contain_text("j = 2")
    assert jump.bounding_box() == place, "the table may scroll sideways, its legend may not"
    cells = total.locator("td")
    for n, sign in enumerate(("✓", "✓", "✗", "✗")):
        expect(cells.nth(n)).to_contain_text(sign)
    expect(cells.nth(2)).to_contain_text("≠ 1.418")  # exp(3 - 4) + exp(1 - 4) + 1
    expect(cells.nth(1)).not_to_contain_text("≠")

    # Mended in the editor, it is proved, and no mark is left but that of naive fusion.
    explorer.get_by_role("button", name=re.compile("^Edit schedule")).click()
    card = explorer.locator(".card").first
    card.locator("button.call").click()
    proved = card.get_by_role("combobox", name="proved of rolling_update")
    expect(proved).to_be_visible()  # its choices have come
    repair = card.get_by_role("textbox", name="repair of rolling_update")
    repair.fill("t * exp(xmax_before - xmax_now)")
    repair.press("Enter")
    expect(explorer.locator(".chip.check")).to_contain_text("✓ equals the definition")
    expect(rail.locator("li", has_text="not proved")).to_have_count(0)
    expect(rail.locator("li", has_text="repaired program").first).not_to_contain_text("wrong")

    # What is proved needs no leave, and the card can drop it.
    proved.select_option(label="default")
    expect(card.locator("button.call")).not_to_contain_text("False")
    expect(explorer.locator(".chip.check")).to_contain_text("✓ equals the definition")
