"""Listings of the course, as nbconvert draws them."""

from __future__ import annotations

import re

import pytest
from nbconvert.filters import markdown2html
from neptune_widgets.course import show


@pytest.mark.parametrize(
    ("draw", "listing"),
    [
        (lambda: show.show_code("a = 1"), r'<div class="highlight"><pre>.*</pre></div>'),
        (
            lambda: show.show_changes("a = 1\n\nb", "a = 2 < 3\n\nb", context=2),
            r"<pre><span style=[^>]*>-a = 1</span>\n<span style=[^>]*>\+a = 2 &lt; 3</span>\n \n b</pre>",
        ),
    ],
)
def test_a_listing_has_a_fixed_width_in_pages_of_nbconvert(draw, listing, monkeypatch):
    """Its pages set `pre` in the font of what is around it."""
    shown: list[str] = []
    monkeypatch.setattr(show, "show_markdown", shown.append)
    draw()
    page = markdown2html(shown[0])
    assert re.search(rf'<div style="font-family: monospace">\s*{listing}\s*</div>', page, re.S), page


def test_a_graph_as_png_ends_in_no_half_pixel():
    """gd draws such a column or row in grey: 749 points are 998.67 pixels at 96 dots per inch."""
    for size in ("749.00 118.80", "360.00 44.00", "543.20 901.60"):
        dots = show._dots_per_inch(f'<svg viewBox="0.00 0.00 {size}">')
        assert 72 <= dots <= 96
        assert all(float(points) * dots / 72 % 1 < 0.5 for points in size.split())
    assert show._dots_per_inch('<svg viewBox="0.00 0.00 360.00 48.00">') == 96
