"""Slides for a lecture, from the course's own figures: `python -m …course.slides notebooks build/slides`.

`slides.md` beside the notebooks has the text; `{{NOTEBOOK: part of a cell's source | kinds}}` puts in what the cell
shows.  The page needs no network and no server: styles, script and figures are in it.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from neptune_lab.errors import FileError
from neptune_lab.files import write_text

_SHOW = re.compile(r"^\{\{(\w+): (.+?)(?: \| ([\w ]+))?\}\}$", re.MULTILINE)
_NOTE = re.compile(r"^Note: (.+)$", re.MULTILINE)


def build(course: Path) -> str:
    """The slides as one page of HTML.

    Args:
        course: the folder of the notebooks and of slides.md.

    Raises:
        FileError: a cell that a slide names is not there, or shows nothing of the kind.
    """
    text = (course / "slides.md").read_text(encoding="utf-8")
    slides = [_slide(part.strip(), course) for part in re.split(r"^---$", text, flags=re.MULTILINE)]
    return _PAGE.replace("SLIDES", "\n".join(slides)).replace("TITLE", "From softmax to FlashAttention")


def _slide(text: str, course: Path) -> str:
    from markdown_it import MarkdownIt

    notes = "".join(f"<aside>{escape(note)}</aside>" for note in _NOTE.findall(text))
    shown: list[str] = []

    def put(found: re.Match[str]) -> str:
        shown.append("\n".join(_shown(course, found[1], found[2], (found[3] or "").split())))
        return f"\n\nSHOWN-{len(shown) - 1}\n\n"

    markdown = MarkdownIt("commonmark", {"html": True})
    html = markdown.render(_SHOW.sub(put, _NOTE.sub("", text)))
    for number, figure in enumerate(shown):
        html = html.replace(f"<p>SHOWN-{number}</p>", f'<div class="shown">{figure}</div>')
    return f"<section>{html}{notes}</section>"


def _shown(course: Path, notebook: str, source: str, kinds: list[str]) -> Iterator[str]:
    """What a cell shows: its figures, tables and printed text; `source` itself, if that is the kind asked for."""
    cells = json.loads((course / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    found = [cell for cell in cells if cell["cell_type"] == "code" and source in "".join(cell["source"])]
    if not found:
        raise FileError(f"slides.md names a cell of {notebook} with {source!r}, which is not there")
    cell = found[-1] if "last" in kinds else found[0]
    if "source" in kinds:
        yield f'<pre class="source">{escape("".join(cell["source"]))}</pre>'
        return
    wanted = {"figure", "table", "text"} & set(kinds) or {"figure", "table", "text"}
    pieces = [(kind, html) for output in cell["outputs"] for kind, html in _forms(output) if kind in wanted]
    if not pieces:
        raise FileError(f"the cell of {notebook} with {source!r} shows no {' or '.join(sorted(wanted))}")
    yield from (html for _, html in pieces)


def _forms(output: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and HTML of an output; a widget has none."""
    data = output.get("data", {})
    if output["output_type"] == "stream":
        yield "text", f"<pre>{escape(''.join(output['text']))}</pre>"
    elif svg := data.get("image/svg+xml"):
        coded = base64.b64encode("".join(svg).encode()).decode()
        alt = escape("".join(data.get("text/plain", "")))
        yield "figure", f'<img src="data:image/svg+xml;base64,{coded}" alt="{alt}">'
    elif table := data.get("text/markdown"):
        from markdown_it import MarkdownIt

        yield "table", MarkdownIt("commonmark").enable("table").render("".join(table))
    elif html := data.get("text/html"):
        yield "table", "".join(html)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>TITLE</title>
<style>
html{font-size:clamp(13px,min(1.72vw,3.05vh),64px)}
body{margin:0;font:1rem/1.45 system-ui,sans-serif;color:#1a1a1a;background:#fff}
section{display:none;box-sizing:border-box;min-height:100vh;padding:4vh 6vw;flex-direction:column;gap:1vh}
section.now{display:flex}h1{font-size:2.2em;margin:auto 0 0}h1+p{margin-bottom:auto;font-size:1.1em}
h2{font-size:1.5em;margin:0 0 .3em}p,ul{margin:.3em 0}section>p,section>ul{font-size:1.15em}li{margin:.4em 0}
section>p:has(>strong:only-child){font-size:1.8em;margin:.7em 0}
.shown{display:flex;flex-direction:column;align-items:flex-start;gap:1vh;max-width:100%;overflow:auto}
.shown img{width:88vw;max-height:66vh;object-fit:contain;object-position:left top}
.shown .nl-tags{font-size:.59rem}.shown table{zoom:1.35}.shown:only-of-type table:has(caption){zoom:2.1}
pre{font:.72em/1.4 ui-monospace,monospace;background:#f4f5f7;padding:.7em 1em;border-radius:6px;margin:0}
pre{white-space:pre-wrap}pre.source{font-size:.92em}
table{border-collapse:collapse;font-size:.8em}td,th{border:1px solid #ccc;padding:.25em .7em;text-align:right}
aside{display:none;border-top:2px solid #0072b2;margin-top:auto;padding:.5em 9em 0 0;font-size:.75em;color:#333}
body.notes aside{display:block}nav{position:fixed;right:1.5vw;bottom:1vh;font-size:max(13px,.64rem);color:#595959}
@media print{@page{size:13.33in 7.5in;margin:0}html{font-size:22px}nav{display:none}
section{display:flex;min-height:7.5in;break-after:page}section .shown img{width:11.5in;max-height:5in}}
</style></head><body>
SLIDES
<nav aria-live="polite"></nav>
<script>
const slides=[...document.querySelectorAll("section")];
function go(n){n=Math.max(0,Math.min(slides.length-1,n));slides.forEach((s,i)=>s.classList.toggle("now",i===n));
document.querySelector("nav").textContent=`${n+1} / ${slides.length}   ← → slides, N notes`;
history.replaceState(null,"","#"+(n+1));now=n}
let now=0;addEventListener("keydown",e=>{
if(["ArrowRight","PageDown"," "].includes(e.key)){go(now+1);e.preventDefault()}
else if(["ArrowLeft","PageUp"].includes(e.key)){go(now-1);e.preventDefault()}
else if(e.key==="Home")go(0);else if(e.key==="End")go(slides.length-1);
else if(e.key==="n"||e.key==="N")document.body.classList.toggle("notes")});
addEventListener("hashchange",()=>go(+location.hash.slice(1)-1||0));go(+location.hash.slice(1)-1||0);
</script></body></html>
"""


if __name__ == "__main__":
    target = write_text(Path(sys.argv[2]) / "index.html", build(Path(sys.argv[1])), parents=True)
    print(target)
