"""A saved explanation: each region's explorer is one press away, without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from playwright.sync_api import Page, expect
from torch_explain import models

import neptune_lab as nl


def test_a_saved_page_opens_an_explorer_per_region(new_page: Callable[..., Page], tmp_path: Path):
    found = nl.explain(models.Block().eval(), torch.randn(2, 16, 32), inference=True)
    text = found.export_html(tmp_path / "block.html")
    assert (tmp_path / "block.html").read_text(encoding="utf-8") == text
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto((tmp_path / "block.html").as_uri())
    opened = page.locator(".nx")
    for number, region in enumerate(found.regions, 1):
        page.get_by_role("button", name=f"Open region {number} in the explorer").click()
        expect(opened).to_have_count(1)
        expect(opened).to_contain_text(region.operator.title)
        page.get_by_role("button", name=f"Close region {number}").click()
        expect(opened).to_have_count(0)
