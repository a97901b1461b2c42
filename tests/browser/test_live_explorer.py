"""The explorer with Python behind it, in a bare page: keys, redraws, a lost kernel, refused edits."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

import neptune_lab as nl

# Keys that mean something in JupyterLab's command mode, and some that mean something here.
PLAIN = ("x", "a", "b", "m", "y", "z", "d", "d", "c", "v", "1", "0", "Shift+m", "ArrowDown", "ArrowUp", "PageDown", " ")
# Of these, the keys that open another tab, or go back to an earlier view.
MOVES = ("m", "y", "z", "c")
# From the tip of each arrow of a tag table to the text at its height in the same cell, in pixels.
GAPS = """tips => {
    const texts = [...tips[0].closest(".tagbox").querySelectorAll("td small")].map(small => {
        const range = document.createRange();
        range.selectNodeContents(small);
        return range.getBoundingClientRect();
    });
    return tips.flatMap(tip => {
        const { right, top, height } = tip.getBoundingClientRect();
        const y = top + height / 2;
        const beside = texts.filter(t => t.top < y && t.bottom > y && t.right > right);
        return beside.length ? [Math.min(...beside.map(t => t.left)) - right] : [];
    });
}"""
# What can have the focus: selector, and what to press first to see it.
FOCUSED = {
    "a line": "section[aria-label=program] .lines",
    "the graph": ".gbox",
    "a node of the graph": ".dataflow .node",
    "a cell of the tag table": ".tagtable td button[tabindex='0']",
    "the tag table": "[aria-label='tag table']",
    "a step of the derivation": ".der summary",
    "the steps": ".rail [role=tree]",
    "a button": ".rail button",
    "a checkbox": ".rail input[type=checkbox]",
    "a splitter": ".split:not([hidden])",
    "the scrubber": "input[aria-label=iteration]",
    "the search": "input[type=search]",
}


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(nl.operators.softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    return schedule


def at(phase: str) -> dict[str, object]:
    return {"step": 1, "phase": phase}


def show_repaired(root: Locator) -> None:
    root.locator(".rail li", has_text="repaired program").first.click()
    for tab in ("Graph", "Tags"):
        root.get_by_role("tab", name=tab, exact=True).click()


@pytest.mark.nightly
def test_no_plain_key_reaches_the_page_around(live):
    drawn = live(figure1(), at("repaired"))
    page = drawn.page
    page.evaluate("""() => {
        window.heard = [];
        document.addEventListener("keydown", e => window.heard.push((e.ctrlKey ? "Ctrl+" : "") + e.key));
    }""")
    for name, selector in FOCUSED.items():
        drawn.root.locator(selector).first.focus()
        focused = drawn.root.locator(selector).first
        for key in PLAIN:
            focused.focus()
            page.keyboard.press("Space" if key == " " else key)
            if key in MOVES:
                show_repaired(drawn.root)
        focused.focus()
        heard = [key for key in page.evaluate("window.heard") if not key.startswith("Ctrl")]
        assert not heard, f"with the focus on {name}: {heard}"
        # To save the notebook is not the explorer's business.
        page.evaluate("window.heard = []")
        page.keyboard.press("Control+s")
        assert "Ctrl+s" in page.evaluate("window.heard"), name
        page.evaluate("window.heard = []")


@pytest.mark.nightly
def test_an_arrow_on_the_scrubber_moves_it_and_nothing_else(live):
    drawn = live(figure1(), at("repaired"))
    scrubber = drawn.root.locator("input[aria-label=iteration]")
    stop = drawn.root.locator(".rail li.on").inner_text()
    scrubber.focus()
    for key, value in (("Home", "0"), ("ArrowRight", "1"), ("ArrowUp", "2"), ("ArrowLeft", "1")):
        drawn.page.keyboard.press(key)
        expect(scrubber).to_have_value(value)
    drawn.page.keyboard.press("End")
    assert scrubber.input_value() == scrubber.get_attribute("max")
    assert drawn.root.locator(".rail li.on").inner_text() == stop
    drawn.page.keyboard.press("j")  # the explorer's own keys stay
    assert int(scrubber.input_value()) == int(scrubber.get_attribute("max") or 0) - 1


@pytest.mark.nightly
def test_a_derivation_without_algebra_is_one_line(live):
    drawn = live(figure1(), at("repaired"))
    pane = drawn.root.get_by_role("region", name="derivation")
    assert pane.bounding_box()["height"] > 150
    drawn.root.locator(".rail li", has_text="definition").first.click()
    expect(pane).to_contain_text("No algebra in this phase")
    assert pane.bounding_box()["height"] < 110
    # A line whose reduction was repaired has algebra to show.
    drawn.root.locator("section[aria-label=program] .ln", has_text="xsum").last.click()
    expect(pane.locator(".der")).to_be_visible()
    assert pane.bounding_box()["height"] > 150


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [900, 1440])
def test_the_names_of_phases_are_shown_whole(live, width):
    drawn = live(figure1(), at("repaired"), width=width)
    for title in drawn.root.locator(".rail .tt").all():
        assert title.evaluate("e => e.scrollWidth <= e.clientWidth")
        assert title.evaluate("e => e.getBoundingClientRect().right <= e.closest('li').getBoundingClientRect().right")


@pytest.mark.nightly
def test_a_redraw_with_the_text_editor_open(live):
    drawn = live(figure1(), {"panes": {"graph": "schedule", "editor": "text"}})
    expect(drawn.root.locator(".chip.check")).to_contain_text("✓ equals the definition")
    expect(drawn.root.locator(".cm-content")).to_contain_text("rolling_update")
    drawn.draw_again()
    second = drawn.page.locator(".nx").nth(1)
    second.locator(".cm-content").click()
    drawn.page.keyboard.press("Control+End")
    drawn.page.keyboard.type("# more")
    expect(second.locator(".cm-content")).to_contain_text("# more")
    expect(drawn.page.get_by_text("cannot show this")).to_have_count(0)


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["jupyter", "throws"])
def test_a_lost_kernel_is_told(live, how):
    drawn = live(figure1(), {"panes": {"graph": "schedule"}})
    check = drawn.root.locator(".chip.check")
    expect(check).to_contain_text("✓ equals the definition")
    if how == "jupyter":  # its model tells as the kernel is restarted, and what is sent gets no answer
        drawn.silent = True
        drawn.tell("comm_live_update")
    else:
        drawn.page.evaluate("window.commIsGone = true")
        drawn.root.get_by_role("button", name="Export").click()
    expect(check).to_have_text("✗ Python is gone: run the cell again")
    expect(check).to_have_class(re.compile(r"\bbad\b"))
    expect(drawn.root.get_by_role("button", name="Export")).to_be_hidden()
    expect(drawn.root.locator(".schedule .error")).to_contain_text("run the cell again to edit")
    assert drawn.root.locator(".cards").evaluate("e => e.inert")
    expect(drawn.root.get_by_role("button", name="undo")).to_be_disabled()
    # What was computed can still be read.
    drawn.root.locator(".rail li", has_text="repaired program").first.click()
    expect(drawn.root.locator("section[aria-label=program]")).to_contain_text("exp(xmax")
    if how == "jupyter":
        drawn.silent = False
        drawn.tell("comm_live_update")
        expect(check).to_contain_text("✓ equals the definition")
        expect(drawn.root.locator(".schedule .error")).to_be_hidden()


REMARKS = [f"sch.remark('line {n}')" for n in range(1, 31)]
TILED = "\n".join([*REMARKS, "sch.rolling_update('s_sum', 's_max.j', maps='keep')"])


def test_a_refused_edit_is_not_green(live):
    schedule = figure1()
    drawn = live(schedule, {"panes": {"graph": "schedule", "editor": "text"}})
    check = drawn.root.locator(".chip.check")
    expect(check).to_contain_text("✓ equals the definition")
    drawn.root.locator(".cm-content").click()
    drawn.page.keyboard.press("Control+a")
    drawn.page.keyboard.insert_text(TILED.replace("sch.remark('line 11')", "sch.retire_tags('nothing')"))
    expect(check).to_have_text("✗ edit refused at line 11")
    expect(check).to_have_class(re.compile(r"\bbad\b"))
    error = drawn.root.locator(".schedule .error")
    expect(error).to_contain_text("line 11: there is no block 'nothing'")
    at_line = drawn.root.locator(".cmbad")
    expect(at_line).to_be_in_viewport()  # the caret is at the last line, which is far below
    drawn.page.keyboard.press("Control+End")
    expect(at_line).not_to_be_in_viewport()
    error.get_by_role("button", name="show line 11").click()
    expect(at_line).to_be_in_viewport()
    drawn.root.get_by_role("button", name="undo").click()
    expect(check).to_contain_text("✓ equals the definition")
    expect(error).to_be_hidden()


def test_a_refused_edit_that_was_undone_can_be_redone(live):
    drawn = live(figure1(), {"panes": {"graph": "schedule", "editor": "cards"}})
    check = drawn.root.locator(".chip.check")
    undo, redo = (drawn.root.get_by_role("button", name=name, exact=True) for name in ("undo", "redo"))
    expect(check).to_contain_text("✓ equals the definition")
    cards = drawn.root.locator(".cards .card")
    count = cards.count()
    expect(redo).to_be_disabled()
    drawn.root.get_by_role("button", name="remove: step 1,").click()
    expect(check).to_contain_text("✗ edit refused")
    expect(cards).to_have_count(count - 1)
    undo.click()
    expect(check).to_contain_text("✓ equals the definition")
    expect(cards).to_have_count(count)
    redo.click()
    expect(check).to_contain_text("✗ edit refused")
    expect(cards).to_have_count(count - 1)
    expect(redo).to_be_disabled()
    undo.click()
    expect(redo).to_be_enabled()
    expect(check).to_contain_text("✓ equals the definition")


@pytest.mark.nightly
def test_text_that_is_no_python_is_not_green_either(live):
    drawn = live(figure1(), {"panes": {"graph": "schedule", "editor": "text"}})
    check = drawn.root.locator(".chip.check")
    expect(check).to_contain_text("✓")
    drawn.root.locator(".cm-content").click()
    drawn.page.keyboard.press("Control+a")
    drawn.page.keyboard.insert_text("sch.remark('a'\n")
    expect(check).to_contain_text("✗ edit refused at line")


@pytest.mark.nightly
def test_a_refused_card_comes_into_view(live):
    schedule = nl.Schedule(nl.operators.softmax.figure1(rows=2, cols=4))
    for n in range(40):
        schedule.remark(f"remark {n}")
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    drawn = live(schedule, {"panes": {"graph": "schedule"}})
    # Without the fusion the last step has nothing to retire.
    remove = drawn.root.get_by_role("button", name="remove: step 41, rolling_update")
    remove.click()
    expect(drawn.root.locator(".chip.check")).to_have_text("✗ edit refused at step 41")
    expect(drawn.root.locator(".cardbad [role=alert]")).to_be_in_viewport()


@pytest.mark.nightly
def test_no_kernel_has_a_chip_of_its_own(live):
    drawn = live(figure1())
    chip = drawn.root.locator(".chip.bad", has_text="✗ makes no kernel yet")
    expect(chip).to_be_visible()
    assert chip.evaluate("e => e.scrollWidth <= e.clientWidth")
    expect(drawn.root.locator(".chip.check")).not_to_contain_text("no kernel")
    chip.press("Enter")
    expect(drawn.root.get_by_text("This schedule makes no kernel yet")).to_be_in_viewport()


def card(drawn, primitive: str):
    """The card of a step, unfolded."""
    found = drawn.root.locator(".card", has=drawn.page.locator("code", has_text=re.compile(rf"^{primitive}\("))).first
    found.locator("button.call").click()
    return found


@pytest.mark.nightly
def test_choices_do_not_depend_on_time(live, monkeypatch):
    monkeypatch.setattr("neptune_widgets.choices.PATIENCE", 0.0)  # one trial per answer: the page asks again
    schedule = nl.compile(nl.operators.softmax.figure1(4, 8), block_q=2, block_kv=4).schedule
    drawn = live(schedule, {"panes": {"graph": "schedule"}})
    sizes = card(drawn, "tile").get_by_role("combobox", name=re.compile("^tiles of tile: j"))
    expect(sizes.locator("option")).to_have_text(["–", "1", "2", "4", "8"])
    asked = [m for m in drawn.asked if m["kind"] == "choices"]
    assert len(asked) > 2
    assert len({m["seq"] for m in asked}) == len(asked)


def test_the_card_of_a_wrong_repair_offers_what_its_error_says(live):
    drawn = live(figure1(), {"panes": {"graph": "schedule"}})
    found = card(drawn, "rolling_update")
    field = found.get_by_role("textbox", name="repair of rolling_update")
    field.fill("t * exp(xmax_now - xmax_before)")
    expect(found.locator(".cardbad")).to_contain_text("proved=False")
    proved = found.get_by_role("combobox", name="proved of rolling_update")
    expect(proved.locator("option", has_text="False")).to_have_count(1)
    expect(field).to_be_focused()  # who types goes on typing
    # The reason is whole, in the error and in the derivation, which names no reducer that there is not.
    drawn.root.locator(".rail li", has_text="repair function").first.click()
    derivation = drawn.root.locator("section[aria-label=derivation]")
    expect(derivation).to_contain_text("refused: t * exp(xmax_now - xmax_before)")
    expect(derivation).not_to_contain_text("reducer of")
    reason = derivation.locator(".step.refused .rows").get_by_text("should give 0.606531")
    expect(reason).to_be_visible()
    assert reason.locator("xpath=../..").evaluate("e => e.scrollWidth <= e.clientWidth")

    proved.select_option(label="False")
    expect(drawn.root.locator(".chip.check")).to_contain_text("does NOT equal the definition")
    expect(found.locator(".cardbad")).to_be_hidden()


@pytest.mark.nightly
def test_an_export_opens_at_the_view(live, new_page, tmp_path):
    drawn = live(figure1())
    drawn.root.locator(".rail li", has_text="naive fusion").first.click()
    drawn.root.locator("section[aria-label=program] .ln", has_text="xsum[i] +=").first.click()
    with drawn.page.expect_download() as caught:
        drawn.root.get_by_role("button", name="Export").click()
    target = tmp_path / "explorer.html"
    caught.value.save_as(target)
    alone = new_page(viewport={"width": 900, "height": 800}, offline=True)
    alone.goto(target.as_uri())
    expect(alone.locator(".rail li[aria-selected=true]").first).to_contain_text("naive fusion")
    expect(alone.locator("section[aria-label=program] .ln.lit.own").first).to_contain_text("xsum[i] +=")
    # The page is as high as the window, with the footer in it, narrow as it is.
    footer = alone.locator(".nx footer")
    box = footer.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] == pytest.approx(800, abs=1)
    assert footer.evaluate("e => e.scrollWidth <= e.clientWidth")
    assert alone.evaluate("document.documentElement.scrollHeight <= innerHeight")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("text", ["no JSON", "[]", '{"foo": 1}', '{"format": "neptune_lab view", "version": 9}'])
def test_a_bad_view_file_is_told_where_it_can_be_seen(live, text):
    drawn = live(figure1())
    chooser = drawn.root.locator("input[type=file]")
    file = {"name": "mine.json", "mimeType": "application/json", "buffer": text.encode()}
    chooser.set_input_files(file)
    notice = drawn.root.get_by_role("alert").filter(has_text="mine.json: ")
    expect(notice).to_be_in_viewport()
    notice.get_by_role("button").click()
    expect(notice).to_be_hidden()


def test_the_page_and_python_read_each_other_s_views(live, tmp_path):
    drawn = live(figure1())
    drawn.root.locator(".rail li", has_text="naive fusion").first.click()
    drawn.root.get_by_role("button", name="View", exact=True).click()
    with drawn.page.expect_download() as caught:
        drawn.root.get_by_role("button", name="Save view").click()
    target = tmp_path / "view.json"
    caught.value.save_as(target)
    drawn.explorer.open_view(target)
    assert (drawn.explorer.view["step"], drawn.explorer.view["phase"]) == (1, "naive")
    drawn.explorer.view = {"step": 0, "phase": "definition"}
    drawn.explorer.save_view(target)
    drawn.root.locator("input[type=file]").set_input_files(target)
    expect(drawn.root.locator(".rail li[aria-selected=true]").first).to_contain_text("definition")


@pytest.mark.nightly
def test_the_tag_table_is_one_tab_stop(live):
    drawn = live(figure1(), at("repaired"))
    table = drawn.root.locator("table.tagtable")
    stops = table.locator("button[tabindex='0']")
    expect(stops).to_have_count(1)
    stops.focus()
    drawn.page.keyboard.press("ArrowDown")
    expect(stops).to_have_count(1)
    expect(stops).to_be_focused()
    drawn.page.keyboard.press("k")
    expect(stops).to_have_count(1)
    drawn.page.keyboard.press("Tab")
    assert not table.evaluate("e => e.contains(document.activeElement)")
    # An arrow ends before the line that it leads to, which has an arrow of its own.
    drawn.root.locator(".rail li", has_text="naive fusion").first.click()
    expect(table.locator("small", has_text="←")).not_to_have_count(0)
    expect(drawn.root.locator(".arrows path.tip")).not_to_have_count(0)
    gaps = drawn.root.locator(".arrows path.tip").evaluate_all(GAPS)
    assert gaps
    assert min(gaps) >= 2, gaps


@pytest.mark.nightly
def test_a_refused_step_leaves_the_nodes_where_they_are(live):
    drawn = live(figure1(), at("repaired"))

    def places() -> dict[str, str]:
        nodes = drawn.root.locator(".dataflow .node")
        read = "all => all.map(e => [e.querySelector('text').textContent, e.getAttribute('transform')])"
        return dict(nodes.evaluate_all(read))

    before = places()
    wrong = {"block": "s_sum", "loop": "s_max.j", "repair": "t * exp(xmax_now - xmax_before)"}
    drawn.root.get_by_role("button", name="Edit schedule").click()
    field = card(drawn, "rolling_update").get_by_role("textbox", name="repair of rolling_update")
    field.fill(wrong["repair"])
    expect(drawn.root.locator(".chip.check")).to_contain_text("✗ edit refused")
    drawn.root.get_by_role("tab", name="Graph", exact=True).click()
    drawn.root.locator(".rail li", has_text="naive fusion").first.click()
    after = places()
    assert {name: before[name] for name in after if name in before} == {n: p for n, p in after.items() if n in before}
    assert len(after) >= 3
