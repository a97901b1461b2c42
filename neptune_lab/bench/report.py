"""A run's report: one HTML page that needs no network, Markdown, and the part of the README between its markers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from neptune_lab.bench.measured import BLOCK_ROWS, BOUND, DEFAULT, NO_RECORD, OURS, SAMPLED, BenchmarkResults
from neptune_lab.bench.tables import (
    SECTIONS,
    TARGETS_HEADER,
    axis,
    markdown,
    microseconds,
    ratio,
    summary,
    target_rows,
)
from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text
from neptune_lab.strict.files import MIB, read_text

MOST_README = 16 * MIB
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"

# Figures have no ground of their own, and tones that are read on both grounds; their texts, and lines and marks in
# black, take the ink of the page (plotly writes colours as `rgb(…)` into the style of each element).
_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1a1a1a; --line: #dddddd; --band: #f4f4f4;
  --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #111111; --ink: #e6e6e6; --line: #3a3a3a; --band: #1f1f1f; --link: #8ab4f8; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: var(--ink);
  background: var(--ground); }
a { color: var(--link); }
h1, h2, h3 { line-height: 1.2; }
nav a { margin-right: 1.2em; display: inline-block; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: var(--band); }
.wide { overflow-x: auto; max-height: 40rem; overflow-y: auto; border: 1px solid var(--line); }
.plot { overflow-x: auto; }
.plot > div { min-width: 60rem; }
.plot :is(.infolayer, .cartesianlayer, .xaxislayer-above, .yaxislayer-above) text { fill: var(--ink) !important; }
.plot [style*="stroke: rgb(0, 0, 0)"] { stroke: var(--ink) !important; }
.plot [style*="fill: rgb(0, 0, 0)"] { fill: var(--ink) !important; }
code { background: var(--band); padding: 0 .2em; }
"""

# How figures and tables were measured.
_METHOD = f"""
All contestants of a setup get the same tensors (standard normal, fp16) and are timed in turns; a figure is the median.
Prefill, norms, performer and chains: launches replayed from a CUDA graph, L2 as the launch before left it.
Decoding: one launch at a time, after a buffer larger than L2 was written and another, clean one read.
An answer is right if the relative error (Frobenius norm) of its worst block of {BLOCK_ROWS} rows of a head, against \
float64, is at most {BOUND:g}; with more than 2^33 scores, {SAMPLED} blocks of rows are checked.
Compilers are given the operator: FlexAttention, torch.compile of the plain definition, and FlashAttention-2 written \
by hand in Triton (the fastest of eight configurations, with pointers and with descriptors).
Libraries contain it: the backends of scaled_dot_product_attention, and PyTorch's own kernels in sequence.
What limits a setup: the least time for its products at the measured rate of a large product, and for reading its \
inputs and writing its outputs once at the measured copy rate; the larger of the two as a share of our time.
“{OURS}” is what compile chooses, “{NO_RECORD}” what it chooses if no record of these very sizes is \
known, and “{DEFAULT}” has the template's own tiles, without any choice.
"""


def to_html(results: BenchmarkResults) -> str:
    """The whole report, with plotly's script.

    Raises:
        MeasureError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs

        from neptune_lab.bench.figures import figures
    except ImportError as error:
        raise MeasureError("the report needs plotly, which is not installed here", help="pip install plotly") from error
    drawn = figures(results)
    title = f"Benchmark on {results.device.get('name')}"
    parts = [f"<h1>{html.escape(title)}</h1>", _paragraphs(summary(results).splitlines())]
    first = SECTIONS[0]
    sections = [(first[0], _table(*first[1](results)))]
    for one in drawn:
        plot = one.figure.to_html(
            full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True}
        )
        sections.append((one.title, f'<p>{html.escape(one.text)}</p><div class="plot"><div>{plot}</div></div>'))
    sections += [
        (name, _table(header, rows)) for name, make in SECTIONS[1:] for header, rows in [make(results)] if rows
    ]
    sections.append(("How it was measured", _paragraphs(_METHOD.splitlines())))
    parts.append(
        "<nav>" + " ".join(f'<a href="#s{n}">{html.escape(t)}</a>' for n, (t, _) in enumerate(sections)) + "</nav>"
    )
    parts += [f'<h2 id="s{n}">{html.escape(t)}</h2>\n{body}' for n, (t, body) in enumerate(sections)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{_inline(line.strip())}</p>\n" for line in lines if line.strip())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _inline(text: str) -> str:
    """HTML of a Markdown cell with bold text and code."""
    safe = html.escape(text)
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", safe)


def for_readme(results: BenchmarkResults) -> str:
    """The targets and the attention times, with the command that repeats them."""
    attention = results.group("attention")
    lengths = sorted({axis(s) for s in attention})
    rows = []
    for row in dict.fromkeys(s.row for s in attention):
        cells = {axis(s): s for s in attention if s.row == row}
        shown = []
        for length in lengths:
            setup = cells.get(length)
            if setup is None or not setup.ours:
                shown.append("-")
                continue
            shown.append(
                f"{microseconds(setup.ours)} ({ratio(setup.speedup('compiler'))}, {ratio(setup.speedup('library'))})"
            )
        rows.append([row, *shown])
    return (
        f"{summary(results)}\n{markdown(TARGETS_HEADER, target_rows(results))}\n"
        "Attention, microseconds, and in brackets the speedup over the best compiler and over the best library:\n\n"
        f"{markdown(['operator', *map(str, lengths)], rows)}"
    )


def write_readme(path: Path, results: BenchmarkResults) -> None:
    """Replaces the text between the markers in the file.

    Raises:
        MeasureError: the file cannot be read, or does not have each marker once, in order.
    """
    text = read_text(path, MOST_README, MeasureError, help=f"give a text with a line {BEGIN} and below it a line {END}")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise MeasureError(f"{path} has no place for the table", help=f"a line {BEGIN} and below it a line {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    write_text(path, f"{before}{BEGIN}\n{for_readme(results)}{END}{after}")
