"""A notebook that was saved with its widgets, and opened again with a new kernel."""

from __future__ import annotations

from in_lab import open_notebook, run_all, save, scrolled_to, wait_until_run, write_notebook
from playwright.sync_api import Page, expect

CELL = 'import neptune_lab as nl\nnl.solver("exp(c - r)")'


def test_the_static_view_is_shown_and_no_error(page: Page, lab):
    write_notebook(lab.folder / "reopened.ipynb", CELL)
    open_notebook(page, lab, "reopened.ipynb")
    run_all(page)
    wait_until_run(page)
    static = page.locator(".neptune-static")
    expect(scrolled_to(page, "nl.solver").get_by_role("group", name="reducer f")).to_be_visible()
    expect(static).to_be_hidden()
    save(page)
    lab.end_kernels()
    open_notebook(page, lab, "reopened.ipynb")
    scrolled_to(page, "nl.solver")
    expect(static).to_be_visible()
    error = page.get_by_text("model not found")
    expect(error).to_have_count(1)  # JupyterLab writes it, once it has looked for the widget
    expect(error).to_be_hidden()
