"""The story of an operator fits on a page of 1440 x 900: what each stop speaks of is in sight without scrolling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tvm import te
from weighted_square import weighted_square

import neptune_lab as nl
from neptune_lab.operators import attention, custom, norms, softmax

PARTS = ["Definition", "Fused: wrong", "Why", "Repaired: right", "Kernel"]


def figure1() -> nl.Schedule:
    schedule = nl.Schedule(softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    schedule.bind("s_max.i", "blockIdx.x")
    return schedule


def scaled_norm() -> nl.operators.Operator:
    """A sum of squares over the largest magnitude, of a user's own."""
    x = te.placeholder((4, 16), "float32", name="x")
    j, k = te.reduce_axis((0, 16), name="j"), te.reduce_axis((0, 16), name="k")
    largest = te.compute((4,), lambda i: te.max(te.abs(x[i, j]) + 1.0, axis=j), name="largest")
    norm = te.compute((4,), lambda i: te.sum((x[i, k] / largest[i]) * (x[i, k] / largest[i]), axis=k), name="norm")
    return custom("scaled_norm", [x], [norm])


CASES: dict[str, Callable[[nl.Kernel], Any]] = {
    "figure 1": lambda _: figure1(),
    "attention": lambda kernel: kernel,
    "split-k": lambda _: nl.compile(attention.full(1, 4, q_len=1, kv_len=2048, head_dim=64), validate="none"),
    "layer norm": lambda _: nl.compile(norms.layer_norm_statistics(64, 256), validate="none"),
    "refused": lambda _: nl.compile(weighted_square(), "rolling_update", block_kv=4, validate="none"),
    "scaled norm": lambda _: nl.compile(scaled_norm(), "rolling_update", block_kv=4, validate="none"),
}

# What has to be in sight at each stop, in the box of its pane and in the window: the first of each kind, and every line
# that the story marks itself.
IN_SIGHT = """selectors => {
  const root = document.querySelector(".nx");
  return selectors.filter(selector => {
    const found = [...root.querySelectorAll(selector)];
    return !found.length || (/own$/.test(selector) ? found : found.slice(0, 1)).some(el => {
    const r = el.getBoundingClientRect();
    for (let up = el.parentElement; up; up = up.parentElement) {
      const style = getComputedStyle(up);
      const b = up.getBoundingClientRect();
      if (/(auto|scroll|hidden)/.test(style.overflowY) && (r.top < b.top - 1 || r.bottom > b.bottom + 1)) return true;
    }
    return r.height === 0 || r.top < 0 || r.bottom > innerHeight;
  })});
}"""
PROGRAM = "section[aria-label=program] .ln.lit"
REPAIR = "section[aria-label=program] .ln.own"
DERIVATION = "section[aria-label=derivation] .sum"
WRONG = "section[aria-label=tags] td.early"


@pytest.fixture(scope="module")
def exported(kernel: nl.Kernel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("stories")

    def path(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            nl.explore(CASES[name](kernel)).export_html(file)
        return file

    return path


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", CASES)
def test_what_a_stop_speaks_of_is_in_sight(new_page: Callable[..., Page], exported: Callable[[str], Path], name: str):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(exported(name).as_uri())
    stops = page.locator(".story li button")
    titles = [t.partition(" ")[2] for t in stops.all_inner_texts()]
    parts = [*PARTS[:2], "Why not", PARTS[4]] if name == "refused" else PARTS
    assert titles == parts[: 4 if name == "figure 1" else 5]
    wanted = {
        "Definition": [PROGRAM],
        "Fused: wrong": [PROGRAM, WRONG],
        "Why": [DERIVATION],
        "Why not": [DERIVATION],
        "Repaired: right": [PROGRAM, REPAIR],
        "Kernel": [PROGRAM],
    }
    hidden = {}
    for n, title in enumerate(titles):
        stops.nth(n).click()
        expect(stops.nth(n)).to_have_attribute("aria-current", "step")
        hidden[title] = page.evaluate(IN_SIGHT, wanted[title])
    assert hidden == {title: [] for title in titles}


@pytest.mark.nightly
def test_the_kernel_s_stop_shows_two_stages(new_page: Callable[..., Page], exported: Callable[[str], Path]):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(exported("attention").as_uri())
    page.locator(".story li button").last.click()
    program = page.get_by_role("tablist", name="Program")
    code = page.get_by_role("tablist", name="Kernel code")
    expect(program.get_by_role("tab", selected=True)).to_have_text("Triton")
    expect(code.get_by_role("tab", selected=True)).to_have_text("HTile")
    expect(page.locator("section[aria-label='kernel code'] .ln.lit").first).to_be_in_viewport()
    code.get_by_role("tab", name="Triton").click()  # unless it is asked for
    expect(code.get_by_role("tab", selected=True)).to_have_text("Triton")


@pytest.mark.nightly
def test_keys_walk_through_the_story_and_leave_it(new_page: Callable[..., Page], exported: Callable[[str], Path]):
    page = new_page(viewport={"width": 1440, "height": 900})
    page.goto(exported("figure 1").as_uri())
    story = page.get_by_role("region", name="story")
    page.locator(".nx").first.focus()
    expect(story.locator("[aria-current=step]")).to_have_text("1 Definition")
    page.keyboard.press("]")
    expect(story.locator("[aria-current=step]")).to_have_text("2 Fused: wrong")
    expect(story.get_by_role("status")).to_contain_text("s_sum moves into the loop of s_max")
    page.keyboard.press("[")
    expect(story.locator("[aria-current=step]")).to_have_text("1 Definition")
    page.keyboard.press("s")
    expect(story).to_be_hidden()
    page.keyboard.press("s")
    expect(story).to_be_visible()
