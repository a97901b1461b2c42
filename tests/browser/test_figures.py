"""Figures as files: the graph, the pictures of the memory and the roofline, as SVG that stands alone and as PNG."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

SVG = "{http://www.w3.org/2000/svg}"


def saved(drawn, name: str) -> tuple[str, bytes]:
    with drawn.page.expect_download() as found:
        drawn.root.get_by_role("button", name=name, exact=True).click()
    return found.value.suggested_filename, Path(found.value.path()).read_bytes()


OUTSIDE = """([width, height]) => {
    const paper = document.querySelector("svg").getBoundingClientRect();
    return [...document.querySelectorAll("svg text, svg polygon")].filter(el => {
        const box = el.getBoundingClientRect();
        return box.width && (box.left < paper.left - 1 || box.right > paper.left + width + 1
            || box.top < paper.top - 1 || box.bottom > paper.top + height + 1);
    }).map(el => el.textContent);
}"""
VIEWS = {
    "graph": ({"panes": {"graph": "graph"}}, "the graph", ["qk", "s_max"]),
    "memory": (
        {"panes": {"graph": "traffic", "traffic": "memory"}},
        "the figure",
        ["HBM", "L2 cache", "Definition: 8 kernels"],
    ),
    "a step": (
        {"step": 9, "phase": "naive", "panes": {"graph": "traffic", "traffic": "memory"}},
        "the figure",
        ["HBM", "Definition: 8 kernels", "1.06 MB of HBM"],
    ),
    "roofline": (
        {"panes": {"graph": "traffic", "traffic": "roofline"}},
        "the figure",
        ["operations per byte of HBM", "kernel"],
    ),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_figure_is_saved_as_svg_and_png(kernel, live, new_page, view, scheme):
    state, what, words = VIEWS[view]
    drawn = live(kernel, {"step": -1, "phase": "triton", **state}, color_scheme=scheme)
    name, data = saved(drawn, f"download {what} as SVG")
    assert re.fullmatch(r"attention_causal[\w.-]*\.svg", name), name
    text = data.decode()
    root = ElementTree.fromstring(text)
    shown = "".join(root.itertext())
    for word in words:
        assert word in shown
    # It needs no style sheet, and its colours are those that any reader knows.
    assert "var(" not in text
    assert "color(" not in text
    assert not root.findall(".//*[@class]")
    paper = root.find(f"{SVG}rect")
    assert paper is not None
    dark = [int(x) < 128 for x in re.findall(r"\d+", paper.get("style", ""))[:3]]
    assert dark == [scheme == "dark"] * 3
    # Opened alone, nothing that is drawn is outside of it.
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    page = new_page()
    page.set_content(text)
    outside = page.evaluate(OUTSIDE, [width, height])
    assert not outside
    name, data = saved(drawn, f"download {what} as PNG")
    assert name.endswith(".png")
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == pytest.approx((2 * width, 2 * height), abs=2)


@pytest.mark.nightly
def test_the_table_of_steps_is_no_figure(kernel, live):
    drawn = live(kernel, {"step": -1, "phase": "triton", "panes": {"graph": "traffic", "traffic": "steps"}})
    expect(drawn.root.locator(".traffic table").first).to_be_visible()
    expect(drawn.root.get_by_role("button", name="download the figure as SVG")).to_be_hidden()
