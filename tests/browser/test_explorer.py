"""The explorer in a real JupyterLab: what a person does, by mouse and by key, and what the page shows then."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from in_lab import open_notebook, run_all, save, wait_until_run, write_notebook
from playwright.sync_api import Locator, expect

FIGURE1, ATTENTION = 0, 1


CELLS = (
    """import neptune_lab as nl

sch = nl.Schedule(nl.operators.softmax.figure1(rows=2, cols=4))
sch.rolling_update("s_sum", "s_max.j", maps="keep")
sch.retire_tags("s_max")
nl.explore(sch)""",
    """nl.explore(nl.compile(nl.operators.attention.causal(batch=1, heads=4, seq=256, head_dim=64)))""",
)


@pytest.fixture
def explorers(page, lab) -> Locator:
    """The explorers of a notebook of two, drawn."""
    write_notebook(lab.folder / "explorers.ipynb", *CELLS)
    open_notebook(page, lab, "explorers.ipynb")
    run_all(page)
    wait_until_run(page)
    page.wait_for_selector(".nx >> nth=1")
    return page.locator(".nx")


def stops(explorer: Locator) -> list[str]:
    """The rail's entries that can be chosen, in order."""
    return explorer.locator(".rail li[role=treeitem]:not(.group)").all_text_contents()


def selected(explorer: Locator, name: str) -> None:
    """Waits until the rail's entry `name` is the chosen one."""
    expect(explorer.locator(".rail li[aria-selected=true]").first).to_have_text(name)


def tab(explorer: Locator, name: str) -> None:
    explorer.get_by_role("tab", name=name, exact=True).first.click()


def lines(explorer: Locator, pane: str) -> Locator:
    return explorer.locator(f"section[aria-label={pane!r}] .ln:not(.gap)")


@pytest.mark.nightly
def test_every_phase_by_mouse_and_by_key(explorers):
    explorer = explorers.nth(FIGURE1)
    explorer.scroll_into_view_if_needed()
    names = stops(explorer)
    assert len(names) >= 6
    rail = explorer.locator(".rail li[role=treeitem]:not(.group)")
    for n, name in enumerate(names):
        rail.nth(n).click()
        expect(rail.nth(n)).to_have_attribute("aria-selected", "true")
        selected(explorer, name)
    by_phase = dict(zip(names, range(len(names)), strict=True))
    naive = next(n for n in names if "naive" in n)
    assert "! wrong" in naive
    rail.nth(by_phase[naive]).click()
    expect(lines(explorer, "program").filter(has_text="xsum[i] += xexp[i, j]").first).to_be_visible()
    explorer.locator(".rail").get_by_role("button", name="first phase").click()
    selected(explorer, names[0])
    explorer.locator(".rail [role=tree]").first.focus()
    for name in names[1:]:
        explorer.page.keyboard.press("ArrowRight")
        selected(explorer, name)
    for key, name in (("Home", names[0]), ("End", names[-1]), ("ArrowLeft", names[-2])):
        explorer.page.keyboard.press(key)
        selected(explorer, name)


@pytest.mark.nightly
def test_a_triton_line_lights_its_loop_line(explorers):
    explorer = explorers.nth(ATTENTION)
    explorer.scroll_into_view_if_needed()
    explorer.locator(".rail li", has_text="retire_tags").first.click()
    code = reveal_code(explorer, "Triton")
    code.locator(".ln", has_text="repair = tl.exp").first.click()
    lit = explorer.locator("section[aria-label=program] .ln.lit code")
    expect(lit.filter(has_text="s_sum").first).to_be_visible()
    assert not any("acc_tile[" in text and "+=" in text for text in lit.all_inner_texts())
    explorer.page.keyboard.press("Escape")
    expect(explorer.locator("section[aria-label=program] .ln.lit")).to_have_count(0)


def reveal_code(explorer: Locator, name: str) -> Locator:
    """The pane of emitted code, at its tab `name`; where the window is narrow it is behind a tab of its own."""
    kernel = explorer.get_by_role("tab", name="Kernel", exact=True)
    if kernel.count() and kernel.first.is_visible():
        kernel.first.click()
    tab(explorer, name)
    return explorer.locator("section[aria-label='kernel code']")


# The sources of the notebook's cells, and which one is active.
NOTEBOOK = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    return [notebook.widgets.map(cell => cell.model.type + cell.model.sharedModel.source), notebook.activeCellIndex];
}"""


@pytest.mark.nightly
def test_keys_pressed_in_the_explorer_leave_the_notebook_alone(explorers):
    explorer, page = explorers.nth(FIGURE1), explorers.page
    explorer.scroll_into_view_if_needed()
    for name in ("section[aria-label=program] .ln", ".dataflow .node", ".tagtable td button", ".der summary"):
        # Some of the keys open another tab, or go back to an earlier view.
        explorer.locator(".rail li", has_text="repaired program").first.click()
        for tab in ("Graph", "Tags"):
            explorer.get_by_role("tab", name=tab, exact=True).click()
        explorer.locator(name).first.click()
        before = page.evaluate(NOTEBOOK)
        for key in ("x", "a", "b", "m", "y", "z", "ArrowDown", "ArrowUp", "Shift+m", "d", "d"):
            page.keyboard.press(key)
        assert page.evaluate(NOTEBOOK) == before, name


@pytest.mark.nightly
def test_a_restarted_kernel_is_told(explorers):
    explorer, page = explorers.nth(FIGURE1), explorers.page
    explorer.scroll_into_view_if_needed()
    check = explorer.locator(".chip.check")
    expect(check).to_contain_text("✓ equals the definition")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(check).to_have_text("✗ Python is gone: run the cell again")
    expect(explorer.get_by_role("button", name="Export")).to_be_hidden()
    run_all(page)
    wait_until_run(page)
    expect(page.locator(".nx").nth(FIGURE1).locator(".chip.check")).to_contain_text("✓ equals the definition")


def edit_a_tile_then_an_illegal_edit_and_undo(explorers):
    explorer = explorers.nth(ATTENTION)
    explorer.scroll_into_view_if_needed()
    explorer.get_by_role("button", name=re.compile("^Edit schedule")).click()
    explorer.get_by_role("button", name="Text", exact=True).click()
    editor = explorer.locator(".cm-content")
    expect(editor).to_be_visible()
    text = explorer.page.evaluate("e => e.cmTile?.view?.state.doc.toString() ?? e.innerText", editor.element_handle())
    assert "sch.tile('qk', i=64, j=64)" in text
    explorer.get_by_role("button", name="Cards", exact=True).click()
    card = explorer.locator(".card", has=explorer.page.locator("code", has_text=re.compile(r"^tile\("))).first
    card.locator("button.call").click()
    choice = card.locator("select[aria-label*='j']").first
    expect(choice).to_be_visible()
    expect(choice.locator("option", has_text=re.compile("^32$"))).to_have_count(1)
    expect(choice.locator("option", has_text=re.compile("^77$"))).to_have_count(0)  # legal choices only
    choice.select_option(label="32")
    code = reveal_code(explorer, "Triton")
    expect(code.locator(".ln", has_text="j0 * 32").first).to_be_visible()
    expect(explorer.locator(".chip.check")).to_contain_text("equals the definition")

    tab_editor(explorer)
    explorer.get_by_role("button", name="Text", exact=True).click()
    replace_text(explorer, lambda t: t.replace("sch.retire_tags('s_max')", "sch.retire_tags('s_mix')"))
    error = explorer.locator(".cmbad")  # it stands at its line
    expect(error).to_contain_text("there is no block 's_mix'")
    expect(error).to_contain_text("s_max")  # the suggestion
    explorer.get_by_role("button", name="undo").click()
    expect(error).to_have_count(0)
    explorer.get_by_role("button", name="undo").click()
    code = reveal_code(explorer, "Triton")
    expect(code.locator(".ln", has_text="j0 * 64").first).to_be_visible()


@pytest.mark.nightly
def test_a_remark_is_a_note_and_the_partition_shows_its_proof(explorers):
    explorer = explorers.nth(ATTENTION)
    explorer.scroll_into_view_if_needed()
    note = explorer.locator(".rail li .remark")
    expect(note).to_contain_text("rolling_update: j has 4 tiles of 64")
    explorer.get_by_role("button", name=re.compile("^Edit schedule")).click()
    card = explorer.locator(".card", has=explorer.page.locator(".remark"))
    card.locator("button.call").click()
    card.get_by_role("textbox", name="text of remark").fill("Chosen by hand.")
    expect(note).to_have_text("Chosen by hand.")

    explorer.locator(".rail li", has_text="partition masked loops").first.click()
    proof = explorer.locator("section[aria-label='derivation'] .proof")
    for claim in ("becomes interior 0 .. i0", "score is masked by"):
        expect(proof.get_by_text(claim)).to_be_visible()  # what is folded out says its claim, too


def tab_editor(explorer: Locator) -> None:
    """Brings the schedule editor back to the front."""
    schedule = explorer.get_by_role("tab", name="Schedule", exact=True)
    if schedule.count() and schedule.first.is_visible():
        schedule.first.click()


def replace_text(explorer: Locator, change) -> None:
    """The editor's text, changed as by selecting all and pasting."""
    editor = explorer.locator(".cm-content")
    editor.click()
    before = "\n".join(explorer.locator(".cm-line").all_inner_texts())
    explorer.page.keyboard.press("Control+a")
    explorer.page.keyboard.insert_text(change(before))


@pytest.mark.nightly
def test_the_tag_table_is_scrubbed_and_edited(explorers):
    explorer = explorers.nth(FIGURE1)
    explorer.scroll_into_view_if_needed()
    explorer.locator(".rail li", has_text="repaired program").first.click()
    tab(explorer, "Tags")
    table = explorer.locator("table.tagtable")
    expect(table).to_be_visible()
    expect(table.locator("tr", has_text="repair of xsum[0]")).to_contain_text("↻")
    where = explorer.locator("output.at")
    first = where.inner_text()
    explorer.locator(".rail [role=tree]").first.focus()
    explorer.page.keyboard.press("k")
    expect(where).not_to_have_text(first)
    explorer.page.keyboard.press("j")
    expect(where).to_have_text(first)
    last = table.locator("tr", has_text=re.compile(r"^xsum\[0\]")).locator("td").last
    expect(last).to_contain_text("✓")
    before = last.inner_text()
    tab(explorer, "Inputs")
    cell = explorer.locator(".matrix input").first
    cell.fill("9")
    cell.press("Enter")
    explorer.get_by_role("tab", name="Tags", exact=True).last.click()
    expect(table.locator("tr", has_text="xmax[0]").first.locator("td").last).to_contain_text("9")
    expect(last).to_contain_text("✓")
    expect(last).not_to_have_text(before)


@pytest.mark.nightly
def test_exported_page_opens_from_disk(explorers, new_page, tmp_path):
    explorer = explorers.nth(FIGURE1)
    explorer.scroll_into_view_if_needed()
    with explorers.page.expect_download() as caught:
        explorer.get_by_role("button", name="Export").click()
    target = tmp_path / "explorer.html"
    caught.value.save_as(target)
    assert not re.search(r"""(src|href)=["']https?:""", target.read_text(encoding="utf-8"))
    fresh = new_page(offline=True)
    fresh.goto(target.as_uri())
    alone = fresh.locator(".nx")
    expect(alone).to_be_visible()
    names = stops(alone)
    alone.locator(".rail [role=tree]").first.focus()
    for _ in names[1:]:
        fresh.keyboard.press("ArrowRight")
    selected(alone, names[-1])


def test_an_edit_is_undone_and_a_reloaded_notebook_shows_a_static_view(explorers, lab):
    """Together, since JupyterLab and a kernel take many times as long as what is done with them."""
    edit_a_tile_then_an_illegal_edit_and_undo(explorers)
    page = explorers.page
    explorers.first.scroll_into_view_if_needed()
    save(page)
    saved = Path(lab.folder / "explorers.ipynb")
    data = json.loads(saved.read_text(encoding="utf-8"))
    every = [o["data"] for c in data["cells"] for o in c.get("outputs", []) if "data" in o]
    shown = [data for data in every if "".join(data.get("text/html", ""))]  # the line of a slow compile is empty
    assert len(shown) == 2, "each explorer's output carries HTML of its own"
    html = unescape("".join(shown[0]["text/html"]))
    assert "<script" not in html
    for expected in ("rolling_update", "xsum[i]", "exp(xmax - xmax')"):
        assert expected in html
    assert saved.stat().st_size < 1_500_000 * 2  # two explorers
    page.reload()
    page.wait_for_selector(".jp-OutputArea-output")
    expect(page.locator(".jp-OutputArea-output", has_text="rolling_update").first).to_be_visible()
