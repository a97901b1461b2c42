"""The slides: every figure that they name is in the notebooks, and the page needs nothing from a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest
from neptune_widgets.course import slides
from notebook_checks import NOTEBOOKS

from neptune_lab.errors import FileError


@pytest.fixture(scope="module")
def page() -> str:
    return slides.build(NOTEBOOKS)


def test_every_slide_shows_what_it_names(page: str):
    text = (NOTEBOOKS / "slides.md").read_text(encoding="utf-8")
    assert page.count("<section>") == len(re.findall(r"^---$", text, re.MULTILINE)) + 1
    assert page.count('<div class="shown">') == text.count("{{")
    assert "SHOWN-" not in page
    assert page.count("<aside>") == text.count("\nNote: ")
    assert page.count("<img ") >= 6
    assert "1.553" in page


def test_the_lesson_plan_names_the_right_slides(page: str):
    """docs/teaching.md refers to slides by number."""
    titles = dict(enumerate(re.findall(r"<section><h[12]>(.*?)</h", page), 1))
    plan = (NOTEBOOKS.parent / "docs" / "teaching.md").read_text(encoding="utf-8")
    named = [int(n) for found in re.findall(r"slides? (\d+)(?: to (\d+)| and (\d+))?", plan) for n in found if n]
    assert named == [1, 6, 7, 11, 13, 14, 15, 18]
    assert titles[6].startswith("Fusion")
    assert titles[7] == "The dependency"
    assert titles[11] == "A longer row"
    assert "on chip" in titles[13]
    assert "FlashAttention's loop" in titles[14]
    assert "prove" in titles[15]
    assert len(titles) == 18


def test_nothing_comes_from_a_network(page: str):
    class Loads(HTMLParser):
        found: ClassVar[list[str]] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href")]

    Loads().feed(page)
    assert Loads.found
    assert all(value.startswith(("data:", "#")) for value in Loads.found)
    assert "@import" not in page


def test_a_cell_that_is_gone_is_named(tmp_path: Path):
    (tmp_path / "slides.md").write_text("# A\n\n{{00_tour: no such cell}}\n")
    (tmp_path / "00_tour.ipynb").write_bytes((NOTEBOOKS / "00_tour.ipynb").read_bytes())
    with pytest.raises(FileError, match="no such cell"):
        slides.build(tmp_path)
