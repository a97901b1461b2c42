"""An explanation as one fragment of HTML without script: the graph, and its parts in order."""

from __future__ import annotations

from html import escape

from neptune_lab.pipeline.layout import MOST_EDGES, MOST_NODES, Drawing, draw
from neptune_lab.torch_explain import Explanation, Part, byte_text, count

_LINE = (12.0, 20.0)  # height of a line of a box, and what is around its two lines
_WIDTHS = (7.4, 6.2, 24.0)  # of a character of the first and of the second line, and what is around them
_MOST_WORDS = 34  # characters of a line of a box

STYLE = (
    ".neptune-explanation{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:1100px;color-scheme:light dark}"
    ".neptune-explanation h3{font-size:15px;font-weight:600;margin:4px 0}"
    ".neptune-explanation h4{font-size:13px;font-weight:600;margin:10px 0 2px}"
    ".neptune-explanation p{margin:2px 0 8px}"
    ".neptune-explanation .graph{overflow-x:auto;margin:6px 0 10px}"
    ".neptune-explanation svg{display:block;color:inherit}"
    ".neptune-explanation ol{list-style:none;margin:0;padding:0}"
    ".neptune-explanation .part{border-left:3px solid rgba(128,128,128,.45);padding:3px 0 5px 12px;margin:5px 0}"
    ".neptune-explanation .part.fused{border-color:#0a9a60}"
    ".neptune-explanation .part p{margin:1px 0}"
    ".neptune-explanation .why{opacity:.8;white-space:pre-wrap}"
    ".neptune-explanation code{font:12px ui-monospace,monospace;background:none;color:inherit;overflow-wrap:anywhere}"
    ".neptune-explanation summary{cursor:pointer}"
    ".neptune-explanation pre{font:12px/1.55 ui-monospace,monospace;overflow-x:auto;margin:4px 0;padding:8px 12px;"
    "background:rgba(128,128,128,.09);border-radius:6px;color:inherit;white-space:pre}"
)


def html(explanation: Explanation, *, buttons: bool = False) -> str:
    """The explanation as HTML.

    Args:
        explanation: what is shown.
        buttons: whether each region has a button and a place for its explorer, which the script of a page fills.

    Returns:
        One element.
    """
    parts = [
        f'<div class="neptune-explanation"><style>{STYLE}</style>',
        f"<h3>{escape(explanation.title)}</h3><p>{escape(explanation.summary())}</p>",
    ]
    for number, graph in enumerate(explanation.graphs, 1):
        if len(explanation.graphs) > 1:
            parts.append(f"<h4>Graph {number} of {len(explanation.graphs)}</h4>")
        parts.append(f'<div class="graph">{_svg(graph)}</div><ol>')
        parts += [_part(part, buttons=buttons) for part in graph]
        parts.append("</ol>")
    if explanation.breaks:
        items = "".join(f"<li>{escape(reason)}</li>" for reason in explanation.breaks)
        parts.append(f"<h4>Why torch traced several graphs</h4><ol>{items}</ol>")
    return "".join([*parts, "</div>"])


def _part(part: Part, *, buttons: bool) -> str:
    if part.region is None:
        reasons = "".join(
            f"<p><b>apart</b> <code>{escape(r.operations)}</code>{f' ({escape(r.holds)})' if r.holds else ''}</p>"
            f'<p class="why">{escape(r.text)}</p>{_lines(r.lines)}'
            for r in part.reasons
        )
        return f'<li class="part">{reasons}</li>'
    region = part.region
    kernels = count(len(region.kernel.htile.kernels), "kernel")
    open_it = (
        f'<p><button type="button" data-region="{part.number}">Open region {part.number} in the explorer</button></p>'
        f'<div class="explorer" data-region="{part.number}"></div>'
        if buttons
        else ""
    )
    outline = escape(region.kernel.outline.rstrip())
    return (
        f'<li class="part fused"><p><b>{part.number} fused: {escape(region.title)}</b> '
        f"<code>{escape(part.operations)}</code></p>"
        f"<p>memory traffic {byte_text(region.before)} before, {byte_text(region.after)} after; {kernels}</p>"
        f"{_lines(region.lines)}"
        f"<details><summary>Outline of its kernels</summary><pre>{outline}</pre></details>"
        f"{open_it}</li>"
    )


def _lines(lines: tuple[object, ...]) -> str:
    """The user's lines: where each is, and its code."""
    shown = []
    for line in lines:
        place, _, code = str(line).partition(": `")
        shown.append(f"<p>{escape(place)}{f': <code>{escape(code[:-1])}</code>' if code else ''}</p>")
    return "".join(shown)


def _svg(parts: tuple[Part, ...]) -> str:
    """The graph of the parts: a box each, a line from each to those that read it."""
    edges = tuple((str(source), str(n)) for n, part in enumerate(parts) for source in part.reads)
    if len(parts) > MOST_NODES or len(edges) > MOST_EDGES:
        return f"<p>The graph has {len(parts)} parts, too many to draw; they are listed in order.</p>"
    words = [_words(part) for part in parts]
    sizes = tuple((str(n), _size(*both)) for n, both in enumerate(words))
    drawing = draw(sizes, edges)
    shown = [
        f'<polyline points="{_points(drawing, edge)}" fill="none" stroke="currentColor" opacity=".45"/>'
        for edge in edges
    ]
    for n, (part, (head, detail)) in enumerate(zip(parts, words, strict=True)):
        (x, y), (width, height) = drawing.nodes[str(n)], dict(sizes)[str(n)]
        stroke = 'stroke="#0a9a60" stroke-width="2"' if part.region else 'stroke="currentColor" stroke-dasharray="4 3"'
        fill = "#0a9a60" if part.region else "currentColor"
        corner = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"'
        centred = f'x="{x:.1f}" text-anchor="middle" fill="currentColor"'
        shown.append(
            f'<g><rect {corner} rx="5" fill="{fill}" fill-opacity=".08" {stroke}/>'
            f'<text {centred} y="{y - 3:.1f}" font-size="12" font-weight="600">{escape(head)}</text>'
            f'<text {centred} y="{y + 12:.1f}" font-size="11" opacity=".8">{escape(detail)}</text></g>'
        )
    return (
        f'<svg role="img" aria-label="graph of {len(parts)} parts" width="{drawing.width:.0f}" '
        f'height="{drawing.height:.0f}" viewBox="0 0 {drawing.width:.1f} {drawing.height:.1f}" '
        f'font-family="system-ui,sans-serif">{"".join(shown)}</svg>'
    )


def _words(part: Part) -> tuple[str, str]:
    """The two lines of a box."""
    if part.region is not None:
        region = part.region
        return _cut(f"{part.number} {region.title}"), f"{byte_text(region.before)} → {byte_text(region.after)}"
    return "apart", _cut(part.operations)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_WORDS else f"{text[: _MOST_WORDS - 1]}…"


def _size(head: str, detail: str) -> tuple[float, float]:
    width = max(len(head) * _WIDTHS[0], len(detail) * _WIDTHS[1]) + _WIDTHS[2]
    return round(width, 1), _LINE[0] * 2 + _LINE[1]


def _points(drawing: Drawing, edge: tuple[str, str]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in drawing.edges[edge])


__all__ = ["STYLE", "html"]
