"""Sharing: the address of an exported page, Back and Forward, two explorers on one page, what was shown before."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from live_page import LivePage
from neptune_widgets import page as pages
from playwright.sync_api import Page, expect

import neptune_lab as nl
from neptune_lab.operators import softmax

ON = ".rail li.on"


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    schedule.bind("s_max.i", "blockIdx.x")
    return schedule


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "figure1.html"
    nl.explore(figure1()).export_html(path)
    return path


def test_the_address_follows_and_leads_back(new_page: Callable[..., Page], exported: Path):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(exported.as_uri())
    expect(page.locator(ON)).to_contain_text("definition")
    assert "#" not in page.url, "an address that nobody changed stays as it is"
    page.locator(".rail li", has_text="naive fusion").click()
    page.wait_for_url("**#step=1.naive")
    page.locator("section[aria-label=program] .ln", has_text="xsum[i] +=").first.click()
    page.wait_for_url("**#step=1.naive&select=store:s_sum")
    page.locator(".rail li", has_text="retire_tags").click()
    page.wait_for_url("**#step=2.retire_tags&select=store:s_sum")
    page.go_back()
    expect(page.locator(ON)).to_contain_text("naive fusion")
    expect(page.locator("section[aria-label=program] .ln.own")).to_have_count(1)
    page.go_back()
    expect(page.locator(ON)).to_contain_text("definition")
    page.go_forward()
    expect(page.locator(ON)).to_contain_text("naive fusion")


@pytest.mark.nightly
def test_a_step_is_in_the_address_at_once_and_back_settles(new_page: Callable[..., Page], exported: Path):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(exported.as_uri())
    page.locator(".nx").focus()
    seen = page.evaluate(
        """async () => {
            const nx = document.querySelector(".nx");
            const press = () => nx.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
            const hashes = [];
            press(); hashes.push(location.hash);
            await new Promise(r => setTimeout(r, 150));
            press(); hashes.push(location.hash);
            return hashes;
        }"""
    )
    assert seen == ["#step=1.dataflow", "#step=1.naive"]
    # Back before anything has settled, to the step before, where it stays.
    page.go_back()
    expect(page.locator(ON)).to_contain_text("dataflow")
    page.wait_for_timeout(400)
    assert page.url.endswith("#step=1.dataflow")
    page.go_forward()
    expect(page.locator(ON)).to_contain_text("naive fusion")
    page.wait_for_timeout(400)
    assert page.url.endswith("#step=1.naive")
    # The steps of a key that is held are one.
    before = page.evaluate("history.length")
    page.evaluate(
        """() => {
            const held = n => new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, repeat: n > 0 });
            for (let n = 0; n < 3; n++) document.querySelector(".nx").dispatchEvent(held(n));
        }"""
    )
    assert page.evaluate("history.length") == before + 1
    page.go_back()
    expect(page.locator(ON)).to_contain_text("naive fusion")


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["alone", "live"])
def test_a_page_opened_at_a_step_shows_what_the_step_changed(live, new_page, kernel, tmp_path: Path, how: str):
    if how == "live":
        page = live(kernel, {"step": 9, "phase": "repaired"}).page
    else:
        path = tmp_path / "attention.html"
        nl.explore(kernel).export_html(path)
        page = new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{path.as_uri()}#step=9.repaired")
    repair = page.locator("section[aria-label=program] .ln:not(.same)", has=page.locator(".rep")).first
    expect(repair).to_be_in_viewport()
    box = page.locator("section[aria-label=program] .code").first
    assert box.evaluate("b => b.scrollTop") > 0


@pytest.mark.nightly
def test_a_link_opens_there(new_page: Callable[..., Page], exported: Path):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{exported.as_uri()}#step=1.repaired&select=store:s_sum")
    expect(page.locator(ON)).to_contain_text("repaired program")
    expect(page.locator("section[aria-label=program] .ln.own").first).to_be_in_viewport()
    page.evaluate("location.hash = '#step=0.definition'")
    expect(page.locator(ON)).to_contain_text("definition")
    page.evaluate("location.hash = '#step=77.nothing'")  # names no stop: nothing happens
    page.wait_for_timeout(300)
    expect(page.locator(ON)).to_contain_text("definition")


@pytest.mark.nightly
def test_two_explorers_on_one_page_do_not_fight(new_page: Callable[..., Page]):
    page = new_page(viewport={"width": 1440, "height": 1900})
    text = nl.explore(nl.explore(figure1()).trace).payload
    bundle = base64.b64encode(pages.bundle_text().encode()).decode()
    inert = json.dumps(text).replace("<", "\\u003c")
    page.goto("about:blank")
    page.route(
        "http://page.test/**",
        lambda route: route.fulfill(
            content_type="text/html",
            body=(
                f'<!doctype html><meta charset=utf-8><script type="application/json" id=p>{inert}</script><main></main>'
                '<script type=module>const { mount } = await import("data:text/javascript;base64,' + bundle + '");'
                'const text = JSON.parse(document.getElementById("p").textContent);'
                'const main = document.querySelector("main");'
                'for (const n of [1, 2]) mount(main.appendChild(document.createElement("div")), text);'
                "</script>"
            ),
        ),
    )
    page.goto("http://page.test/#2.step=1.naive")
    first, second = page.locator(".nx").nth(0), page.locator(".nx").nth(1)
    expect(first.locator(ON)).to_contain_text("definition")
    expect(second.locator(ON)).to_contain_text("naive fusion")
    first.locator(".rail li", has_text="retire_tags").click()
    page.wait_for_url("**#2.step=1.naive&step=2.retire_tags")
    second.locator(".rail li", has_text="repaired program").click()
    page.wait_for_url("**#step=2.retire_tags&2.step=1.repaired")
    page.go_back()
    expect(second.locator(ON)).to_contain_text("naive fusion")
    expect(first.locator(ON)).to_contain_text("retire_tags")


@pytest.mark.nightly
def test_a_notebook_s_address_is_left_alone(live: Callable[..., LivePage]):
    page = live(figure1()).page
    before = page.url, page.evaluate("history.length")
    page.locator(".rail li", has_text="naive fusion").click()
    page.locator(".rail li", has_text="retire_tags").click()
    page.wait_for_timeout(600)
    assert (page.url, page.evaluate("history.length")) == before
    page.evaluate("location.hash = '#step=1.naive'")
    page.wait_for_timeout(300)
    expect(page.locator(ON)).to_contain_text("retire_tags")


@pytest.mark.nightly
def test_an_export_opens_at_everything_that_is_shown(live: Callable[..., LivePage], new_page, tmp_path: Path):
    drawn = live(figure1())
    page = drawn.page
    page.locator(".story li button").nth(2).click()
    page.get_by_role("tablist", name="Program").get_by_role("tab", name="Definition").click()
    page.locator(".rail li", has_text="rolling_update").first.locator(".fold").click()
    page.get_by_role("button", name="View", exact=True).click()
    page.get_by_role("group", name="panes shown").get_by_label("Kernel").uncheck()
    page.wait_for_timeout(400)
    # From Python, too, it is what is shown now.
    target = tmp_path / "here.html"
    drawn.explorer.view = page.evaluate("window.viewOfPage")
    drawn.explorer.export_html(target)
    alone = new_page(viewport={"width": 1440, "height": 900}, offline=True)
    alone.goto(target.as_uri())
    expect(alone.locator(".story [aria-current=step]")).to_have_text("3 Why")
    tab = alone.get_by_role("tablist", name="Program").get_by_role("tab", name="Definition")
    expect(tab).to_have_attribute("aria-selected", "true")
    expect(alone.locator(".rail li[aria-expanded=false]")).to_contain_text("rolling_update")
    expect(alone.locator("section[aria-label='kernel code']")).to_be_hidden()


@pytest.mark.nightly
def test_what_was_shown_before_comes_back(live: Callable[..., LivePage]):
    page = live(figure1()).page
    back = page.get_by_role("button", name="back to what was shown before")
    expect(back).to_be_disabled()
    page.locator(".rail li", has_text="naive fusion").click()
    page.wait_for_timeout(500)
    page.get_by_role("tablist", name="Program").get_by_role("tab", name="Definition").click()
    page.wait_for_timeout(500)
    page.locator(".nx").focus()
    page.keyboard.press("d")
    expect(page.locator(".choose")).to_be_visible()
    page.keyboard.press("z")
    expect(page.locator(".choose")).to_be_hidden()
    back.click()
    loops = page.get_by_role("tablist", name="Program").get_by_role("tab", name="Loops")
    expect(loops).to_have_attribute("aria-selected", "true")
    page.locator(".nx").focus()
    page.keyboard.press("z")
    expect(page.locator(ON)).to_contain_text("definition")
    expect(back).to_be_disabled()
    page.keyboard.press("y")
    expect(page.locator(ON)).to_contain_text("naive fusion")
