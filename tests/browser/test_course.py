"""Notebooks of the course in a real JupyterLab: run whole, and an exercise answered wrongly, then rightly.

tests/notebooks runs all of them in a kernel; here, at night, the tour and two more.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from in_lab import open_notebook, run_all, save, scrolled_to, wait_until_run
from playwright.sync_api import Locator, Page, expect


def run_whole(page: Page, lab, name: str) -> Path:
    """Opens and runs a notebook to its last cell, and saves it; its path."""
    path = lab.folder / f"{name}.ipynb"
    marks(path)
    open_notebook(page, lab, path.name)
    run_all(page)
    wait_until_run(page)
    page.get_by_text("this is the last cell", exact=True).wait_for(state="attached")
    save(page)
    return path


def marks(path: Path) -> None:
    """Takes the outputs away, so that what is seen is new, and adds a last cell that says that it is the last."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["cells"] = [cell for cell in data["cells"] if cell.get("id") != "last"]
    for cell in data["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    last = {"cell_type": "code", "id": "last", "metadata": {}, "outputs": [], "execution_count": None}
    data["cells"].append({**last, "source": "print('this is the', 'last cell')"})
    path.write_text(json.dumps(data), encoding="utf-8")


def answered(page: Page, cell: Locator, source: str) -> Locator:
    """Replaces the cell's code, runs it by the keyboard, and gives its verdict."""
    before = cell.locator(".jp-InputPrompt").first.inner_text()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")
    expect(cell.locator(".jp-InputPrompt").first).to_have_text(re.compile(rf"^(?!{re.escape(before)}$)\[\d+\]:$"))
    return cell.locator(".neptune-verdict")


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "widgets"), [("00_tour", ".nx"), ("02_algebra", ".ns"), ("05_schedules", ".nx")])
def test_a_notebook_runs_whole_and_its_widgets_are_drawn(page, lab, name, widgets):
    path = run_whole(page, lab, name)
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    failed = [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    assert not failed, failed
    live = [c for c in cells for o in c["outputs"] if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    assert live, "no widget in the notebook"
    cell = scrolled_to(page, "".join(live[0]["source"]).splitlines()[-1])
    expect(cell.locator(widgets).first).to_be_visible()
    if name == "00_tour":
        an_exercise_wrongly_then_rightly(page)


def an_exercise_wrongly_then_rightly(page: Page) -> None:
    """In the tour, which has run."""
    cell = scrolled_to(page, "exercises.lucky_row(numbers)")
    expect(cell.locator(".neptune-verdict")).to_contain_text("○ Not answered yet")

    verdict = answered(page, cell, "numbers = [1, 4, 2, 3]\nexercises.lucky_row(numbers)")
    expect(verdict).to_contain_text("✗ Not yet")
    hints = verdict.locator("details")
    expect(hints.nth(0).locator("> p")).not_to_be_visible()
    hints.nth(0).locator("> summary").click()
    expect(hints.nth(0).locator("> p")).to_be_visible()
    expect(hints.nth(1).locator("> summary")).to_be_visible()
    expect(hints.nth(1).locator("> p")).not_to_be_visible()

    verdict = answered(page, cell, "numbers = [9, 4, 2, 3]\nexercises.lucky_row(numbers)")
    expect(verdict).to_contain_text("✓ Right")
    expect(verdict.locator("details")).to_have_count(0)
