"""Listings of the course as nbconvert draws them, and figures for light and dark pages."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from nbconvert.filters import markdown2html
from neptune_widgets.course import show
from neptune_widgets.course.folding import folded_code

import neptune_lab as nl
from neptune_lab import figure_colours as colours
from neptune_lab.operators import softmax

PLOTLY = "application/vnd.plotly.v1+json"


@pytest.mark.parametrize(
    ("draw", "width", "listing"),
    [
        (lambda: show.show_code("a = 1\nb = 234"), 5, r'<div class="highlight"><pre>.*</pre></div>'),
        (
            lambda: show.show_changes("a = 1\n\nb", "a = 2 < 3\n\nb", context=2),
            7,
            r"<pre><span style=[^>]*>-a = 1</span>\n<span style=[^>]*>\+a = 2 &lt; 3</span>\n \n b</pre>",
        ),
    ],
)
def test_a_listing_has_a_fixed_width_and_room_for_its_lines(draw, width, listing, monkeypatch):
    """Pages of nbconvert set `pre` in the font of what is around it; JupyterLab breaks lines that are too long."""
    shown: list[str] = []
    monkeypatch.setattr(show, "show_markdown", shown.append)
    draw()
    page = markdown2html(shown[0])
    assert re.search(rf'<div style="font-family: monospace; min-width: {width}em">\s*{listing}\s*</div>', page, re.S), (
        page
    )


def test_messages_are_folded_between_words_and_keep_their_indentation(capsys):
    show.show_text("refused: " + "word " * 14 + "x" * 80 + "\n  help: " + "a-b " * 18 + "\n\nend")
    assert capsys.readouterr().out.splitlines() == [
        "refused: " + "word " * 11 + "word",
        "    word word",
        "    " + "x" * 80,
        "  help: " + "a-b " * 14 + "a-b",
        "      a-b a-b a-b",
        "",
        "end",
    ]


def _displayed(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], None]) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    draw()
    return shown[0]


def _lowest(colour: str) -> float:
    return min(colours.contrast(colour, ground) for ground in colours.GROUNDS)


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of Graphviz draws it")
def test_a_graph_has_no_ground_and_is_read_on_light_and_dark_pages(monkeypatch):
    graph = nl.explore(nl.Schedule(softmax.figure1())).trace.steps[0].phases[0].graph
    data = _displayed(monkeypatch, lambda: show.show_graph(graph, "Figure 1"))
    drawing = ElementTree.fromstring(data["image/svg+xml"])
    svg = "{http://www.w3.org/2000/svg}"
    assert drawing.findall(f".//{svg}g[@class='edge']/{svg}text")
    grounds = drawing.findall(f"./{svg}g/{svg}polygon")
    assert [g.get("fill") for g in grounds if g.get("fill") not in ("none", "transparent")] == []
    beside_boxes = [*drawing.findall(f".//{svg}g[@class='edge']/{svg}text"), *drawing.findall(f"./{svg}g/{svg}text")]
    assert {_lowest(t.get("fill", "#000000")) >= colours.TEXT for t in beside_boxes} == {True}
    assert all(_lowest(colour) >= colours.TEXT for _, _, colour, _ in show._EDGES.values())
    assert base64.b64decode(data["image/png"])[25] == 6, "RGB with alpha"


def test_a_figure_has_no_ground_and_its_colours_are_toned(monkeypatch):
    black = {"size": 12, "color": "#000000"}
    line = {"type": "scatter", "x": [1], "y": [2], "line": {"color": "#000000"}, "marker": {"color": "#E69F00"}}
    figure = {"data": [line], "layout": {"annotations": [{"text": "a", "font": black}]}}
    layout = (data := _displayed(monkeypatch, lambda: show.show_figure(figure, "")))[PLOTLY]["layout"]
    assert layout["template"]["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert _lowest(layout["template"]["layout"]["font"]["color"]) >= colours.TEXT
    assert _lowest(layout["annotations"][0]["font"]["color"]) >= colours.TEXT
    (drawn,) = data[PLOTLY]["data"]
    assert min(_lowest(drawn["line"]["color"]), _lowest(drawn["marker"]["color"])) >= colours.DRAWN


def test_a_figure_takes_the_width_of_the_page_and_its_drawing_fits_a_narrow_one(monkeypatch):
    """JupyterLab has 568 pixels beside its files in a window of 1000; a figure of a fixed width scrolls there."""
    data = _displayed(monkeypatch, lambda: show.show_figure({"data": [], "layout": {"title": {"text": "a"}}}, ""))
    layout = data[PLOTLY]["layout"]
    assert layout["autosize"] is True
    assert "width" not in layout
    assert layout["title"] == {"text": "a", "font": {"size": 13}}
    assert show.DRAWN_WIDTH <= 568


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("short = f(a, b)", ["short = f(a, b)"]),
        ("    x[i, j] = exp(score[i, j] - s_max[i])", ["    x[i, j] = exp(score[i, j]", "        - s_max[i])"]),
        ("    exp(a[i, j] - b[i]) * c[i, j] + d[i, j],", ["    exp(a[i, j] - b[i]) * c[i, j]", "        + d[i, j],"]),
        ("+   p[i * 32 + j] = max(p[i * 32 + j], q)", ["+   p[i * 32 + j] = max(p[i * 32 + j],", "+       q)"]),
        ("  # a remark of many words in one line of it", ["  # a remark of many words in one line", "  # of it"]),
        ("name = 'a string of many words, and, commas'", ["name = 'a string of many words, and, commas'"]),
        ("total = first_of_all + second_of_all + last", ["total = first_of_all + second_of_all + last"]),
        pytest.param(
            "y = f(a, b) # rows, (of 16 columns at a time)",
            ["y = f(a,", "    b) # rows, (of 16 columns at a time)"],
            id="a comment behind one space",
        ),
    ],
)
def test_long_lines_of_code_go_on_in_the_next(line: str, parts: list[str]):
    assert folded_code(line, 38) == parts
