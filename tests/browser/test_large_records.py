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


@pytest.mark.nightly
def test_a_record_in_parts_shows_what_a_whole_one_shows(live, monkeypatch):
    kernel = nl.compile(attention.causal(batch=1, heads=2, seq=128, head_dim=16), validate="none")
    whole = at_each_stop(live(kernel).root)
    monkeypatch.setattr(parts, "MANY", 0)
    drawn = live(kernel)
    assert [m["kind"] for m in drawn.asked].count("rest") == 1
    expect(drawn.root.locator("section[aria-label='kernel code'] .ln").first).to_be_visible()
    assert at_each_stop(drawn.root) == whole


@pytest.mark.one_in(2)
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
    old, new = (record.steps[-1].phases[n].program for n in (0, -1))
    (text,) = {line.text.strip() for line in new} - {line.text.strip() for line in old}
    expect(root.locator("section[aria-label=program] .ln", has_text=text).first).to_be_visible()


@pytest.mark.nightly
def test_without_python_the_first_part_stays_readable(live, monkeypatch):
    monkeypatch.setattr(parts, "MANY", 0)
    drawn = live(chained(60, 6))
    drawn.page.evaluate("window.commIsGone = true")
    drawn.draw_again()
    second = drawn.page.locator(".nx").nth(1)
    expect(second.locator("section[aria-label=program] .ln").first).to_be_visible()


def graph_elements(root: Locator) -> int:
    return root.locator(".gbox *").count()


def names(root: Locator) -> list[str]:
    """The nodes and folded groups of the graph that are in the page."""
    return root.locator(".dataflow .node:not(.head) > text:not(.t):not(.sign):not(.plus)").all_text_contents()


@pytest.fixture
def large(live):
    """A record of a chain of 1,440 nodes, all parts read."""
    drawn = live(chained(1440, 12))
    expect(drawn.root.locator(".rail .quiet")).to_be_visible()  # what changes nothing is known once the parts are there
    return drawn


@pytest.mark.nightly
def test_a_large_graph_starts_in_groups_that_can_be_read(large):
    found = names(large.root)
    assert 2 <= len(found) <= 24
    assert all(name.startswith("▸ ") for name in found)
    boxes = large.root.locator(".dataflow .node.group > text:not(.t)").evaluate_all(
        """all => all.map(e => {
            const name = e.getBoundingClientRect();
            const box = e.parentElement.querySelector('rect').getBoundingClientRect();
            return [name.height, name.width - box.width, box.right - e.closest('.gbox').getBoundingClientRect().right];
        })"""
    )
    assert min(height for height, *_ in boxes) >= 9
    assert max(more for _, more, _ in boxes) <= 0
    assert max(cut for *_, cut in boxes) <= 0  # whole boxes: none is cut at the right
    assert graph_elements(large.root) < 600


@pytest.mark.nightly
def test_groups_unfold_and_fold_by_click_and_by_key(large):
    root = large.root
    root.locator(".dataflow .node.group").first.click()
    expect(root.locator(".dataflow .head")).to_have_count(1)
    inner = root.locator(".dataflow .node.group", has_text="▸ l1").first
    inner.click()
    expect(root.locator(".dataflow .node", has_text="l1_sum").first).to_be_visible()
    expect(root.locator(".dataflow .head:focus")).to_have_attribute("aria-expanded", "true")
    root.page.keyboard.press("ArrowDown")
    assert "l1_max" in (root.locator(".dataflow .node:focus").text_content() or "")
    root.page.keyboard.press("-")
    expect(root.locator(".dataflow .node:focus")).to_have_attribute("aria-expanded", "false")
    root.page.keyboard.press("Enter")
    expect(root.locator(".dataflow .head")).to_have_count(2)
    root.get_by_role("button", name="fold all groups").click()
    expect(root.locator(".dataflow .head")).to_have_count(0)


@pytest.mark.nightly
def test_what_is_unfolded_stays_from_step_to_step_and_in_the_view(large):
    root = large.root
    root.locator(".dataflow .node.group").first.click()

    def places() -> dict[str, str]:
        read = "all => all.map(e => [e.getAttribute('data-id'), e.getAttribute('transform')])"
        return dict(root.locator(".dataflow [data-id]").evaluate_all(read))

    before = places()
    root.locator(".rail li", has_text="naive").nth(2).click()
    after = places()
    assert {k: v for k, v in after.items() if k in before} == {k: v for k, v in before.items() if k in after}
    assert len(after) > 10
    root.page.wait_for_function("() => window.viewOfPage && window.viewOfPage.panes.unfolded === '0'")


@pytest.mark.nightly
def test_what_is_selected_is_marked_in_its_folded_group_and_what_is_found_unfolds(large):
    root = large.root
    root.locator("section[aria-label=program] .ln", has_text="l2_max[i, k] =").first.click()
    group = root.locator(".dataflow .node.group.lit")
    expect(group).to_have_count(1)
    expect(group.locator(".t")).to_contain_text("1 of")
    box = root.get_by_label("search all stages")
    box.fill("l200_sum[i, k] =")
    box.press("Enter")
    node = root.locator(".dataflow .node.lit", has_text="l200_sum")
    expect(node.first).to_be_visible()
    expect(root.locator(".dataflow .head", has_text="l200").first).to_be_visible()


@pytest.mark.nightly
def test_only_what_is_near_is_in_the_page_of_an_unfolded_graph(large):
    root = large.root
    root.get_by_role("button", name="unfold all groups").click()
    expect(root.locator(".dataflow .head").first).to_be_visible()
    assert graph_elements(root) < 4000
    assert not any("l239" in name for name in names(root))
    root.locator(".gbox").evaluate("e => e.scrollTo(0, e.scrollHeight)")
    expect(root.locator(".dataflow .node", has_text="l239_out").first).to_be_visible()
    assert graph_elements(root) < 4000


@pytest.mark.nightly
def test_the_lines_of_a_long_program_are_made_as_they_come_into_view(large):
    root = large.root
    program = root.locator("section[aria-label=program]")
    rows = program.locator(".ln")
    assert rows.count() > 4000
    assert program.locator("code").count() < 400
    program.locator(".code").first.evaluate("e => e.scrollTo(0, e.scrollHeight)")
    expect(rows.last).to_contain_text("l239_out[i, k] =")
    assert program.locator("code").count() < 800
    rows.last.click()
    expect(program.locator(".ln.own")).to_have_count(1)
    program.locator(".lines").press("ArrowUp")
    expect(program.locator(".ln.act")).to_contain_text("l239_out")


@pytest.mark.nightly
def test_rows_that_stay_say_what_rows_that_are_drawn_anew_say(live):
    schedule = nl.compile(attention.causal(batch=1, heads=2, seq=128, head_dim=16), validate="none").schedule
    stepped = live(schedule).root
    items = stepped.locator(".rail li[role=treeitem]:not(.group)")
    read = """all => all.map(e => [e.innerText, e.className, e.getAttribute('aria-selected'), e.hidden])"""

    def drawn(root: Locator) -> list[list[str]]:
        return root.locator("section[aria-label=program] .ln").evaluate_all(read)

    stops = [8, 3, 17, 16, 9]
    for n in stops:
        items.nth(n).click()
        shown = drawn(stepped)
        phase = stepped.page.evaluate("() => new Promise(go => setTimeout(() => go(window.viewOfPage), 300))")
        fresh = live(schedule, {"step": phase["step"], "phase": phase["phase"]}).root
        assert drawn(fresh) == shown, n
