"""`%%explore` and `nl.explain` in a real JupyterLab: the explorer of a cell's function, and of a region at a press."""

from __future__ import annotations

import pytest
from in_lab import open_notebook, run_all, scrolled_to, wait_until_run, write_notebook
from playwright.sync_api import Page, expect

SET_UP = """import torch
import neptune_lab as nl
%load_ext neptune_lab"""
EXPLORED = """%%explore q=float32[1,1,32,16] k=float32[1,1,32,16] v=float32[1,1,32,16]
def attention(q, k, v):
    scores = q @ k.mT / 4
    return torch.softmax(scores, -1) @ v"""
EXPLAINED = """q = torch.randn(1, 1, 32, 16)
nl.explain(attention, q, q, q)"""


@pytest.mark.nightly
def test_a_cell_and_a_region_open_in_the_explorer(page: Page, lab):
    write_notebook(lab.folder / "magic.ipynb", SET_UP, EXPLORED, EXPLAINED)
    open_notebook(page, lab, "magic.ipynb")
    run_all(page)
    wait_until_run(page)
    explored = scrolled_to(page, "%%explore").locator(".nx")
    expect(explored).to_have_count(1)
    explored.get_by_role("tab", name="Definition").first.click()
    expect(explored.get_by_text("scores = q @ k.mT / 4").first).to_be_visible()
    explained = scrolled_to(page, "nl.explain")
    expect(explained.locator(".neptune-explanation svg")).to_be_visible()
    expect(explained.locator(".nx")).to_have_count(0)
    explained.get_by_role("button", name="1 attention").click()
    opened = explained.locator(".nx")
    expect(opened).to_have_count(1)
    opened.get_by_role("tab", name="Triton", exact=True).click()
    expect(opened.get_by_text("@triton.jit").first).to_be_visible()
    expect(explained.locator(".neptune-explanation svg")).to_be_visible()
