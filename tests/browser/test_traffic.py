"""The traffic pane: bytes by level of memory, the roofline and the table of steps, at a GPU that one chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe import violations
from playwright.sync_api import Locator, expect

import neptune_lab as nl

KERNEL = {"step": -1, "phase": "triton", "panes": {"graph": "traffic"}}


def widths(picture: Locator) -> list[float]:
    """How wide the stems of a picture's arrows are."""
    return picture.locator("polygon.flow").evaluate_all(
        "all => all.map(el => { const p = el.getAttribute('points').split(' ').map(x => +x.split(',')[0]);"
        " return p[p.length - 1] - p[0]; })"
    )


def show(page, name: str) -> None:
    page.root.locator(".tools").get_by_role("button", name=name, exact=True).click()


@pytest.mark.nightly
def test_it_is_asked_for_when_opened_and_again_after_an_edit(kernel, live):
    page = live(kernel)
    assert "traffic" not in [m["kind"] for m in page.asked]
    page.root.focus()
    page.page.keyboard.press("t")
    expect(page.root.locator(".traffic .lead")).to_contain_text("÷ 20")
    assert [m["kind"] for m in page.asked].count("traffic") == 1
    page.page.keyboard.press("t")  # and back to the graph
    expect(page.root.locator(".traffic")).to_have_count(0)


@pytest.mark.nightly
def test_arrows_are_as_wide_as_the_bytes(kernel, live):
    page = live(kernel, KERNEL)
    before, after = (page.root.locator("svg.memories").nth(n) for n in (0, 1))
    expect(after).to_be_visible()
    found = kernel.traffic("h200", blocks=1)
    (read, written, *_), (kernel_read, *_) = widths(before), widths(after)
    assert written / read == pytest.approx(found.definition.written / found.definition.read, rel=0.05)
    assert kernel_read / read == pytest.approx(found.kernel.read / found.definition.read, rel=0.1)
    expect(before).to_have_attribute(
        "aria-label",
        "Definition: 8 kernels, 10.5 MB of HBM: 6.43 MB read from HBM and "
        "4.07 MB written to it; 141 MB loaded from the L2 cache and 4.07 MB stored; 273 MB read and written on chip.",
    )


@pytest.mark.nightly
def test_the_gpu_is_chosen_and_kept_in_the_view(kernel, live):
    page = live(kernel, KERNEL)
    expect(page.root.locator(".lead")).to_contain_text("Least time on the H200: 2.19 µs → 0.109 µs")
    page.root.get_by_label("GPU", exact=True).select_option("a100")
    expect(page.root.locator(".lead")).to_contain_text("Least time on the A100")
    expect(page.root.locator("svg.memories").first).to_contain_text("40 MiB")
    page.page.wait_for_function("window.viewOfPage?.panes.gpu === 'a100'")


def test_the_roofline_has_the_definition_what_is_wrong_and_the_kernel(kernel, live):
    page = live(kernel, {**KERNEL, "step": 9, "phase": "repaired"})
    show(page, "Roofline")
    for kind, count in (("stage", 7), ("definition", 1), ("wrong", 2), ("here", 1), ("kernel", 1)):
        expect(page.root.locator(f".roofline .point.{kind}")).to_have_count(count)
    expect(page.root.locator(".roofline .point.kernel")).to_have_attribute(
        "aria-label",
        "kernel: 43 M operations, 524 kB of HBM, 82 operations per byte, at most 394 TFLOP/s, bound by bytes",
    )
    page.root.locator(".roofline .point.wrong").first.focus()
    page.page.keyboard.press("Enter")
    expect(page.root.locator(".lead")).to_contain_text("wrong on purpose")
    expect(page.root.locator(".rail li[aria-selected=true]").first).to_contain_text("naive fusion")


@pytest.mark.nightly
def test_labels_of_the_roofline_do_not_cover_each_other(kernel, live):
    page = live(kernel, {**KERNEL, "panes": {"graph": "traffic", "traffic": "roofline"}})
    expect(page.root.locator(".roofline .point.kernel")).to_be_visible()
    boxes = [t.bounding_box() for t in page.root.locator(".roofline .point > text").all()]
    for n, a in enumerate(boxes):
        for b in boxes[n + 1 :]:
            apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert apart or a["y"] + a["height"] <= b["y"] + 2 or b["y"] + b["height"] <= a["y"] + 2, (a, b)


@pytest.mark.nightly
def test_the_table_goes_to_a_step(kernel, live):
    page = live(kernel, KERNEL)
    show(page, "Steps")
    table = page.root.locator("table.steps")
    expect(table.locator("tbody tr")).to_have_count(15)
    expect(table.locator("tr[aria-current]")).to_contain_text("kernel")
    table.get_by_role("button", name="8. rolling_update, dataflow").click()
    expect(page.root.locator(".rail li[aria-selected=true]").first).to_contain_text("dataflow")
    expect(table.locator("tr[aria-current]")).to_contain_text("8. rolling_update, dataflow")
    expect(page.root.locator(".traffic caption")).to_contain_text("step 8")


@pytest.mark.nightly
def test_a_saved_page_shows_it_without_python(kernel, new_page, tmp_path: Path):
    file = tmp_path / "attention.html"
    nl.explore(kernel).export_html(file)
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(file.as_uri())
    page.locator(".nx").focus()
    page.keyboard.press("t")
    expect(page.locator(".traffic .lead")).to_contain_text("10.5 MB → ")


@pytest.mark.nightly
def test_a_record_without_it_says_so(kernel, live):
    page = live(kernel.trace, KERNEL)
    expect(page.root.locator(".traffic .lead")).to_contain_text("This record has no traffic")


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe(kernel, live, front_end_packages, scheme):
    page = live(kernel, KERNEL, color_scheme=scheme)
    for name in ("Memory", "Roofline", "Steps"):
        show(page, name)
        assert violations(page.page, ".traffic") == [], name
