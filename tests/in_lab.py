"""What a person does in JupyterLab: open a notebook, run its cells, type into one, read what a cell shows."""

from __future__ import annotations

from pathlib import Path

import nbformat
from playwright.sync_api import Page

TOKEN = "neptune"


def write_notebook(path: Path, *sources: str) -> None:
    """A notebook of code cells, for a test of its own."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def open_notebook(page: Page, lab, name: str) -> None:
    """Opens it alone, and waits until its kernel is there."""
    page.goto(f"{lab.address}/lab/tree/{name}?reset&token={TOKEN}")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=60_000)
    page.wait_for_timeout(2_000)  # an idle sign is not enough: a Run pressed at once is lost


def run_all(page: Page) -> None:
    """Run > Run All Cells; does not wait for the end."""
    page.get_by_role("menuitem", name="Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).first.click()
