"""Listings, formulas, graphs and figures in the notebook's own colours; each carries a form that needs no script."""

from __future__ import annotations

import base64
import difflib
import json
import math
import re
import shutil
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

import graphviz

from neptune_lab.figure_colours import INK, TEMPLATE, on_both
from neptune_widgets.course.folding import folded_code

# Buttons that plotly draws over a figure's title; to drag zooms, and a double click shows all again.
_HIDDEN_BUTTONS = ["zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"]
DRAWN_WIDTH = 560  # pixels of a figure drawn as SVG or PNG: what JupyterLab has beside its files in a window of 1000
_COLUMNS = 70  # characters of a line in that width, in the font of JupyterLab's outputs
_LISTING = 84  # characters of a line of code: what JupyterLab has in a window of 1000 without its files
_TITLE = {"size": 13}  # pixels: a title of 67 characters is no wider than such a drawing
_READABLE = 0.7  # scaled further down, a wide graph is drawn from the top to the bottom if it is larger so

if TYPE_CHECKING:
    from neptune_lab.repair import RepairTerm, VectorRepair
    from neptune_lab.trace import Graph

_EDGES = {  # what an edge says: sign, words, colour (also of its text, which has no ground but the page's), line
    "plain": ("", "", INK, "solid"),
    "fused": ("", " (same loop)", "#1f7ec0", "bold"),
    "early": (" !", " (read too early)", "#bd6000", "dashed"),
    "repaired": (" ↻", " (repaired)", "#118a58", "bold"),
}

_ADVANCE = 0.61  # em per character of the widest usual monospaced fonts, 0.602, and a little more

# The grounds of lines that are added and removed, over the whole width.
_LINE = "display:inline-block;min-width:100%;background:rgba("
_GROUND = {"+": "46,160,67,.2)", "-": "248,81,73,.17)"}


def folded(text: object) -> str:
    """A text of messages whose long lines go on in the next, indented; no word is broken, as JupyterLab would."""
    return "\n".join(
        textwrap.fill(
            line,
            _COLUMNS,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in str(text).splitlines()
    )


def show_text(text: object) -> None:
    """Prints messages so that they fit a notebook beside JupyterLab's files."""
    print(folded(text))


def show_code(text: str, language: str = "python") -> None:
    """A listing in the notebook's own colours.

    Pages made by nbconvert draw Markdown in a proportional font, and JupyterLab breaks lines inside words; the element
    around the listing has another font, and room for the longest line, in units that JupyterLab keeps in notebooks that
    are not trusted. JupyterLab has no colours for "diff", so its lines bring their own. Long lines go on in
    the next.
    """
    text = "\n".join(part for line in str(text).rstrip().splitlines() for part in folded_code(line, _LISTING))
    listing = _coloured(text) if language == "diff" else f"```{language}\n{text}\n```"
    width = math.ceil(_ADVANCE * max(map(len, text.splitlines()), default=0))
    show_markdown(f'<div style="font-family: monospace; min-width: {width}em">\n\n{listing}\n\n</div>')


def _coloured(changes: str) -> str:
    """Lines of a diff as HTML, added ones on green and removed ones on red, on light and dark pages."""
    rows = [
        f'<span style="{_LINE}{_GROUND[line[:1]]}">{escape(line, quote=False)}</span>'
        if line[:1] in _GROUND
        else escape(line, quote=False)
        for line in changes.splitlines()
    ]
    return "<pre>" + "\n".join(rows) + "</pre>"


def show_changes(before: str, after: str, context: int = 0) -> None:
    """The lines that differ, with so many lines around them."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=context, lineterm="")
    kept = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    show_code("\n".join(kept) or "(no difference)", "diff")


def show_maths(term: RepairTerm | VectorRepair) -> None:
    """A derivation as formulas, step by step."""
    from neptune_lab import repair

    text = []
    for step in term.steps:
        text.append(f"\n**{_escaped(step.title)}**\n")
        for line in step.lines:
            formula = "" if line.expr is None else f"${repair.latex(line.expr)}$"
            text.append(f"- {': '.join(filter(None, (_escaped(line.note), formula)))}")
    show_markdown("\n".join(text))


def show_graph(graph: Graph, title: str = "") -> None:
    """A dataflow graph: with the program `dot` as a drawing, without it as a list of arrows.

    Args:
        graph: of a phase of the record.
        title: under the drawing.
    """
    from IPython.display import display

    text = "\n".join(f"{e.source} → {e.target}: {e.tensor}{_EDGES[e.kind][1]}{_EDGES[e.kind][0]}" for e in graph.edges)
    if shutil.which("dot") is None:
        print(text if not title else f"{title}\n{text}")
        return
    # No ground: the drawing is read on the page's own, light or dark. No wider, in inches, than a
    # notebook in a window of 1000 pixels.
    page = {"bgcolor": "transparent", "fontcolor": INK, "size": "8.5,40"}
    dot = graphviz.Digraph(graph_attr={"rankdir": "LR", "label": title, "fontsize": "12", **page})
    box = {"style": "rounded,filled", "fillcolor": "#eef2f7", "color": "#8899aa", "fontcolor": "#1a1a1a"}
    dot.attr("node", shape="box", fontsize="12", **box)
    dot.attr("edge", fontsize="11")
    dot.attr(fontname="sans-serif")
    for n in graph.nodes:
        dot.node(n.id, f"{n.label}\n{n.detail}" if n.detail != n.label else n.label, fontname="sans-serif")
    for e in graph.edges:
        sign, _, colour, line = _EDGES[e.kind]
        label = f" {e.tensor}{sign} "
        dot.edge(e.source, e.target, label, color=colour, fontcolor=colour, style=line, fontname="sans-serif")
    drawing = dot.pipe("svg").decode()
    if _scale(drawing) < _READABLE:
        dot.graph_attr["rankdir"] = "TB"
        if _scale(other := dot.pipe("svg").decode()) > _scale(drawing):
            drawing = other
        else:
            dot.graph_attr["rankdir"] = "LR"
    dot.graph_attr["dpi"] = "96"
    # GitHub leaves out some outputs that are SVG only. The formatter gd would draw a black ground.
    picture = base64.b64encode(dot.pipe("png", renderer="cairo", formatter="cairo")).decode()
    display({"image/svg+xml": drawing, "image/png": picture, "text/plain": text}, raw=True)


def _scale(svg: str) -> float:
    """What the drawing was scaled by to fit the page."""
    found = re.search(r"scale\(([\d.]+)", svg)
    return float(found[1]) if found else 1.0


def show_figure(figure: Any, alt: str) -> None:
    """A plotly figure, as wide as the page lets it be.

    The committed notebook holds it as SVG and PNG too (`make notebooks` draws them), of `DRAWN_WIDTH` pixels.

    Args:
        figure: `plotly.graph_objects.Figure`, or its JSON form.
        alt: what it shows, in words and figures, for those who do not see it.
    """
    import plotly.graph_objects as go
    from IPython.display import display

    made = go.Figure(figure)
    margins = {"l": 60, "r": 20, "t": 50, "b": 50}
    font, modebar = {"family": "sans-serif"}, {"remove": _HIDDEN_BUTTONS}
    made.update_layout(width=None, autosize=True, font=font, title_font=_TITLE, margin=margins, modebar=modebar)
    data = on_both(json.loads(made.to_json() or "{}"))
    data["layout"]["template"] = TEMPLATE  # in place of plotly's, 7 kB for white pages
    display({"application/vnd.plotly.v1+json": data, "text/plain": alt}, raw=True)


def show_markdown(text: str) -> None:
    """Text in Markdown."""
    from IPython.display import Markdown, display

    display(Markdown(text))


def _escaped(words: str) -> str:
    """Words in which Markdown finds no marks of its own."""
    return re.sub(r"([\\`*_<>$\[\]])", r"\\\1", words)
