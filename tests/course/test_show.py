"""Listings of the course, as nbconvert draws them."""

from __future__ import annotations

import re

import pytest
from nbconvert.filters import markdown2html
from neptune_widgets.course import show


@pytest.mark.parametrize("draw", [lambda: show.show_code("a = 1"), lambda: show.show_changes("a = 1", "a = 2")])
def test_a_listing_has_a_fixed_width_in_pages_of_nbconvert(draw, monkeypatch):
    """Its pages set `pre` in the font of what is around it."""
    shown: list[str] = []
    monkeypatch.setattr(show, "show_markdown", shown.append)
    draw()
    page = markdown2html(shown[0])
    assert re.search(
        r'<div style="font-family: monospace">\s*<div class="highlight"><pre>.*</pre></div>\s*</div>', page, re.S
    )
