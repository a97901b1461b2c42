"""Records in parts, and large graphs: what is shown is the same as of a record that is sent whole."""

from __future__ import annotations

import pytest
from large_records import chained
from neptune_widgets import parts
from playwright.sync_api import Locator, expect

import neptune_lab as nl
from neptune_lab.operators import attention


def shown(root: Locator) -> list[str]:
    """What the rail, the program, the kernel's code and the story say."""
    return [
        root.locator(".rail").inner_text(),
        root.locator("section[aria-label=program] .lines").first.inner_text(),
        root.locator("section[aria-label='kernel code'] .lines").first.inner_text(),
        root.locator(".story").inner_text(),
        " ".join(sorted(root.locator(".dataflow title").all_text_contents())),
    ]


def at_each_stop(root: Locator) -> list[list[str]]:
    stops = root.locator(".rail li[role=treeitem]:not(.group)")
    found = []
    for n in range(0, stops.count(), 3):
        stops.nth(n).click()
        found.append(shown(root))
    return found


def test_a_record_in_parts_shows_what_a_whole_one_shows(live, monkeypatch):
    kernel = nl.compile(attention.causal(batch=1, heads=2, seq=128, head_dim=16), validate="none")
    whole = at_each_stop(live(kernel).root)
    monkeypatch.setattr(parts, "MANY", 0)
    drawn = live(kernel)
    assert [m["kind"] for m in drawn.asked].count("rest") == 1
    expect(drawn.root.locator("section[aria-label='kernel code'] .ln").first).to_be_visible()
    assert at_each_stop(drawn.root) == whole


@pytest.mark.parametrize("size", [72, 1440])
def test_an_exported_page_shows_the_first_view_and_reads_the_parts_then(new_page, tmp_path, size):
    record = chained(size, 12)
    path = tmp_path / "page.html"
    explorer = nl.explore(record)
    explorer.view = {"step": 1, "phase": "repaired"}
    explorer.export_html(path)
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(path.as_uri())
    root = page.locator(".nx").first
    expect(root.locator(".rail li[aria-selected=true]").first).to_contain_text("repaired")
    root.locator(".rail li", has_text="repaired").last.click()
    text = record.steps[-1].phases[-1].program[-1].text.strip()
    expect(root.locator("section[aria-label=program] .ln", has_text=text).first).to_be_attached()
    expect(
        root.locator("section[aria-label=program] .ln.change, section[aria-label=program] .ln.add").first
    ).to_be_visible()


def test_without_python_the_first_part_stays_readable(live, monkeypatch):
    monkeypatch.setattr(parts, "MANY", 0)
    drawn = live(chained(60, 6))
    drawn.page.evaluate("window.commIsGone = true")
    drawn.draw_again()
    second = drawn.page.locator(".nx").nth(1)
    expect(second.locator("section[aria-label=program] .ln").first).to_be_visible()
