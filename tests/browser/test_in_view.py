"""What of the explorer is in view: its lesson, headers, tables and graphs, in boxes and windows of every size."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import neptune_lab as nl


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(nl.operators.softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    return schedule


@pytest.mark.one_in(2)
@pytest.mark.parametrize("height", ["max-height", "height"])
def test_the_explorer_fits_a_box_that_scrolls(live, height: str):
    """As marimo's output area, and as JupyterLab's notebook around an output that scrolls sideways."""
    drawn = live(figure1())
    drawn.page.evaluate(
        """height => {
        window.end();
        document.querySelector("body > div").remove();
        const box = document.createElement("div");
        box.style = `${height}: 610px; overflow: auto`;
        document.body.append(box);
        const output = box.appendChild(document.createElement("div"));
        if (height === "height") output.style = "overflow-x: auto";
        const inner = output.appendChild(document.createElement("div"));
        window.draw(inner.attachShadow({ mode: "open" }));
    }""",
        height,
    )
    box = drawn.page.locator("body > div").first
    expect(box.locator(".nx.sized")).to_be_visible()
    assert box.evaluate("e => e.scrollHeight <= e.clientHeight")
    assert box.locator(".nx").evaluate("e => e.offsetHeight") > 560
    if height == "height":
        box.evaluate("e => e.style.height = '560px'")
        drawn.page.wait_for_function(
            "() => { const b = document.querySelector('body > div'); return b.scrollHeight <= b.clientHeight }"
        )


@pytest.fixture(scope="module")
def attention_page(tmp_path_factory):
    """Causal attention, compiled, as a page on its own."""
    path = tmp_path_factory.mktemp("page") / "attention.html"
    kernel = nl.compile(nl.operators.attention.causal(batch=1, heads=4, seq=256, head_dim=64))
    nl.explore(kernel).export_html(path)
    return path


def inside(locator, box: str) -> bool:
    """Whether the element is in view in the box that scrolls around it, whole."""
    return locator.evaluate(
        """(e, box) => {
            const [a, b] = [e.getBoundingClientRect(), e.closest(box).getBoundingClientRect()];
            return a.top >= b.top && a.bottom <= b.bottom && a.bottom <= innerHeight && a.left < b.right;
        }""",
        box,
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("phase", "nth", "rows"),
    [
        ("naive fusion", 1, ["s_exp_rolled[…, 1, j0 * 2]", "s_sum[…, 1]"]),
        ("repaired program", 0, ["repair of s_sum[…, 1]", "s_sum[…, 1]"]),
        ("naive fusion", 2, ["s_exp[…, 1, j0 * 2]", "acc[…, 1, 0]", "acc[…, 1, 1]"]),
        ("repaired program", 1, ["repair of acc[…, 1, 0]", "acc[…, 1, 0]"]),
    ],
)
def test_attention_shows_its_lesson_without_scrolling(new_page, attention_page, phase, nth, rows):
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto(attention_page.as_uri())
    page.locator(".rail li", has_text=phase).nth(nth).click()
    table = page.locator("table.tagtable")
    heads = table.locator("tbody tr:not(.fold) th")
    assert heads.nth(0).inner_text() == rows[0], "what is wrong or repaired comes first"
    for row in rows:
        expect(heads.get_by_text(row, exact=True)).to_have_count(1)
        assert inside(heads.get_by_text(row, exact=True), ".wide"), row
    assert inside(table.locator("td.early, td.fixed").first, ".wide")
    # Four columns and the names of their rows fit.
    right = page.locator(".wide").bounding_box()
    third = table.locator("thead th").nth(3).bounding_box()
    assert right is not None
    assert third is not None
    assert third["x"] + third["width"] <= right["x"] + right["width"] + 1
    # What is right is folded, by a line that says what it is; the note and the legend are in view.
    expect(table.locator(".fold")).to_contain_text("qk")
    expect(table.locator("th", has_text=re.compile(r"^qk\["))).to_have_count(0)
    expect(page.locator(".tagnote")).to_be_in_viewport()
    assert inside(page.locator(".tabled .key"), ".nx")
    # The line of the program that the phase is about.
    changed = page.locator("section[aria-label=program] .ln:is(.add, .change)")
    goal = changed.filter(has=page.locator(".rep")) if phase == "repaired program" else changed
    assert inside(goal.first, ".code")


@pytest.mark.nightly
def test_heads_of_the_tag_table_stay_and_rows_unfold(new_page, attention_page):
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto(attention_page.as_uri())
    page.locator(".rail li", has_text="naive fusion").nth(1).click()
    fold = page.locator(".tagtable .fold button")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    expect(page.locator(".tagtable .fold button")).to_be_focused()
    expect(page.locator(".tagtable th", has_text=re.compile(r"^qk\["))).to_have_count(2)
    wide = page.locator(".wide")
    wide.evaluate("e => e.scrollTo(1000, 1000)")
    assert wide.evaluate("e => e.scrollTop") > 0
    assert inside(page.locator(".tagtable thead th").nth(1), ".wide")
    name = page.locator(".tagtable tbody th", has_text=re.compile(r"^qk\[")).last
    box, own = wide.bounding_box(), name.bounding_box()
    assert box is not None
    assert own is not None
    assert own["x"] >= box["x"]


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1440, 900])
def test_the_header_and_the_rail_cut_nothing(new_page, attention_page, width):
    page = new_page(viewport={"width": width, "height": 900}, offline=True)
    page.goto(attention_page.as_uri())
    for element in [*page.locator("header .chip:visible").all(), *page.locator(".rail li code").all()]:
        assert element.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), element.inner_text()


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [1440, 1120])
def test_the_header_of_a_live_page_cuts_nothing(live, kernel, width):
    drawn = live(kernel, width=width)
    expect(drawn.root.locator(".chip.check")).to_contain_text("✓ equals the definition")
    for element in drawn.root.locator("header .chip:visible").all():
        assert element.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), element.inner_text()
    assert drawn.root.locator("header").evaluate("e => e.scrollWidth <= e.clientWidth")
    if width == 1440:
        assert drawn.root.locator("header").bounding_box()["height"] < 50, "one row"


@pytest.mark.nightly
def test_mathematics_is_typeset_and_one_phase_says_one_thing(new_page, attention_page):
    page = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    page.goto(attention_page.as_uri())
    page.locator(".rail li", has_text="repair function").first.click()
    expect(page.locator(".der .sum math")).to_contain_text("h")
    note = page.locator("section[aria-label=program] > .note")
    expect(note).to_contain_text("the program is still the naive one, which is wrong")
    expect(note).not_to_contain_text("on purpose")
    for name in page.locator("select[aria-label='left side'] option").all_text_contents():
        assert not name.endswith("· set scope"), name


@pytest.mark.nightly
def test_a_graph_opens_whole_or_says_that_it_does_not(live):
    hidden = "e => Math.max(e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight)"
    drawn = live(nl.Schedule(nl.operators.attention.causal(batch=1, heads=1, seq=64, head_dim=16)))
    assert drawn.root.locator(".gbox").evaluate(hidden) <= 1
    expect(drawn.root.get_by_text("Ctrl + wheel zooms")).to_be_hidden()
    drawn = live(nl.Schedule(wide(24)), {"sizes": {"zoom": 2}})
    expect(drawn.root.get_by_text("Ctrl + wheel zooms")).to_be_visible()
    expect(drawn.root.locator(".gbox.more-right, .gbox.more-down")).to_have_count(1)


@pytest.mark.nightly
def test_a_graph_has_room_and_lines_that_are_linked_are_in_view(live, kernel):
    drawn = live(kernel, width=1008)
    drawn.root.click(position={"x": 40, "y": 14})
    for _ in range(3):
        drawn.page.keyboard.press("]")
    expect(drawn.root.locator(".story")).to_contain_text("s_sum applies h")
    assert drawn.root.locator(".gbox").evaluate("e => e.clientHeight") > 130
    under = drawn.root.locator(".under").bounding_box()
    assert under["height"] < 60, "the key and the buttons are two rows"
    # At the kernel the program pane shows Triton, so this pane shows HTile; back at the loops, Triton at these lines.
    drawn.page.keyboard.press("]")
    expect(drawn.root.get_by_role("tab", name="HTile")).to_have_attribute("aria-selected", "true")
    drawn.root.locator(".rail li", has_text="repaired program").first.click()
    line = drawn.root.locator("section[aria-label='kernel code'] .ln.lit", has_text="repair = tl.exp2").first
    expect(line).to_be_in_viewport()


@pytest.mark.nightly
def test_a_graph_that_fits_can_be_read(live):
    deep = nl.compile(nl.operators.attention.causal(batch=1, heads=4, seq=256, head_dim=64))
    drawn = live(deep, {"sizes": {"zoom": 0.35}})
    names = drawn.root.locator(".dataflow .node > text:not(.t)")
    sizes = names.evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    assert min(sizes) >= 6, sizes
    fits = names.evaluate_all("""all => all.every(e => {
        const [name, box] = [e.getBoundingClientRect(), e.parentElement.querySelector("rect").getBoundingClientRect()];
        return name.width <= box.width + 1;
    })""")
    assert fits
    # "Fit" holds from step to step, where the key and the derivation leave the graph less room.
    drawn.root.get_by_role("button", name="fit the whole graph").click()
    box = drawn.root.locator(".gbox")
    for _ in range(18):
        drawn.root.press("ArrowRight")
        hidden = box.evaluate("e => Math.max(e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight)")
        assert hidden <= 1, drawn.root.locator(".rail li.on").inner_text()


def wide(stages: int) -> nl.operators.Operator:
    """One input, read by many stages side by side: its node is at half the height of the graph."""
    from tvm import te

    x = te.placeholder((4, 4), "float32", name="x")

    def total(n: int):
        j = te.reduce_axis((0, 4), name="j")
        return te.compute((4,), lambda i: te.sum(x[i, j] * float(n + 1), axis=j), name=f"s{n}")

    parts = [total(n) for n in range(stages)]
    last = te.compute((4,), lambda i: sum((part[i] for part in parts[1:]), parts[0][i]), name="last")
    return nl.operators.custom("wide", [x], [last])


@pytest.mark.nightly
def test_the_first_view_of_a_large_graph_begins_where_its_nodes_are(live):
    drawn = live(nl.Schedule(wide(24)))
    nodes = drawn.root.locator(".dataflow .node")
    assert nodes.count() > 20
    seen = nodes.evaluate_all("""all => all.filter(e => {
        const [a, b] = [e.getBoundingClientRect(), e.closest(".gbox").getBoundingClientRect()];
        return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
    }).map(e => e.querySelector("text").textContent)""")
    assert "x" in seen, seen
    assert len(seen) >= 5
