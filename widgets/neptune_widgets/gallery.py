"""A gallery: an explorer page for every operator and preset, and an index, which open from disk without a network.

`python -m neptune_widgets.gallery build/docs/gallery` writes it (`make docs`), and the solver's live page (`live.py`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from neptune_lab.files import write_text
from neptune_lab.operators import OPERATORS, PRESETS, find, gemm_chain
from neptune_lab.pipeline import Kernel, TileConfig, compile
from neptune_widgets import live
from neptune_widgets.explorer import explore
from neptune_widgets.page import document

# Sizes, where an operator's own are those of an example. Figure 1 stays as it is in the paper, in tiles of two columns:
# in one tile nothing has to be repaired.
_ATTENTION = {"heads": 16, "seq": 2048}
_PREFILL, _DECODE = {"seq": 2048}, {"seq": 8192}
_ROWS = {"rows": 256, "cols": 1024}
_TEMPLATES = {"softmax.figure1": ("rolling_update", TileConfig(block_kv=2))}

# The pages have the machine code for this: 60 to 90 KB each of 2 MB.
_TARGET = "sm_90"

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); }
tbody th { padding-top: 1.6rem; font-size: 1.1em; }
tbody th small { font-weight: normal; opacity: .8; padding-left: .5em; }
td:nth-child(3) code { overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .93em; }
/* A narrow window: what a row has stands below its name. */
@media (max-width: 640px) {
  thead, .n { display: none; }
  tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0; }
  td, tbody th { display: block; border: 0; padding: .1rem 0; }
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the index.

    Args:
        name: of the operator or preset.
        kernel: it, compiled at `sizes(name)`.
    """

    name: str
    kernel: Kernel

    @property
    def file(self) -> str:
        """Name of the page."""
        return f"{self.name}.html"


def names() -> tuple[str, ...]:
    """Every operator and preset; `attention.general`, which needs a mod, is the base of the others."""
    return tuple(n for n in (*OPERATORS, *PRESETS, *gemm_chain.PRESETS) if n != "attention.general")


def sizes(name: str) -> dict[str, int]:
    """The sizes that an operator of the gallery has, where they are not its own.

    Args:
        name: of an operator or preset.

    Returns:
        Arguments by name.
    """
    if name.startswith("attention."):
        return _ATTENTION | ({"kv_heads": 4} if name == "attention.gqa" else {})
    if name in PRESETS:
        taken = inspect.signature(find(name)).parameters
        return {} if "seq" not in taken else _DECODE if name.endswith("_dc") else _PREFILL
    if name == "performer":
        return {"seq": 1024}
    if name == "mla":
        return {"kv_len": 1024}
    return _ROWS if name.startswith(("norms.", "rows.")) else {}


def _compiled(name: str) -> Kernel:
    template, config = _TEMPLATES.get(name, (None, None))
    return compile(find(name)(**sizes(name)), template, config=config)


def write(
    folder: Path,
    chosen: Iterable[str] | None = None,
    *,
    with_live: bool = False,
    machine_code: str | None = None,
    home: str = "",
) -> list[Entry]:
    """Compiles operators and writes a page each, and index.html.

    Args:
        folder: where to; it is made if it is not there.
        chosen: names of operators; default: all of `names()`.
        with_live: whether the index links the live page.
        machine_code: a target for which each page has the machine code, such as "sm_90"; None: none.
        home: where the index links to as the documentation; "": it has no such link.

    Returns:
        The entries of the index, in order.

    Raises:
        DefinitionError: there is no operator of that name.
        FileError: a file cannot be written.
    """
    entries = []
    for name in names() if chosen is None else chosen:
        entry = Entry(name, _compiled(name))
        write_text(folder / entry.file, explore(entry.kernel).export_html(machine_code=machine_code), parents=True)
        entries.append(entry)
    write_text(folder / "index.html", index(entries, with_live=with_live, home=home), parents=True)
    return entries


# What a reader opens first, and what then.
_FIRST = ("softmax.figure1", "attention.causal")


def index(entries: Sequence[Entry], *, with_live: bool = False, home: str = "") -> str:
    """The index as a page; with `with_live` it links the live page, and with `home` the documentation."""
    back = f'<p><a href="{escape(home)}">Documentation</a></p>\n' if home else ""
    first = 'Begin with <a href="{}.html">Figure 1</a>, then open <a href="{}.html">causal attention</a>. '.format(
        *_FIRST
    )
    solver = (
        '<p>The <a href="live.html">live solver</a> has Python inside: write a term of your own, and read how its '
        "repair is derived, or which step refuses it.</p>\n"
    )
    rows = "\n".join(
        f"<tbody>\n{_HEAD.format(*group)}\n" + "\n".join(map(_row, of)) + "\n</tbody>"
        for group, of in groupby(entries, lambda entry: _group(entry.name))
    )
    body = f"""{back}<h1>Gallery</h1>
<p>Every operator and preset, compiled: each page is an explorer with the whole record, from the definition to the
kernel. {first if {e.name for e in entries} >= {*_FIRST} else ""}A page needs no network and no Python; what it cannot
do is compile an edited schedule.</p>
{solver if with_live else ""}<table>
<thead><tr><th>operator</th><th>what it is</th><th>inputs</th><th class="n">kernels</th></tr></thead>
{rows}
</table>"""
    return document("Gallery", _STYLE, body)


_HEAD = '<tr><th colspan="4" scope="rowgroup">{}<small>{}</small></th></tr>'


def _group(name: str) -> tuple[str, str]:
    """The heading that an operator or preset is listed under, and a remark beside it."""
    if name in gemm_chain.PRESETS:
        return "Chains of matrix products", "sizes of MCFuser, Table II"
    if name not in PRESETS:
        return "Operators", "at sizes of an example"
    if PRESETS[name].takes_seq:
        return "Attention of models", f"sizes of {PRESETS[name].paper}; pf: prefill, dc: decoding, with one query"
    return "Self-attention modules", f"sizes of {PRESETS[name].paper}"


def _row(entry: Entry) -> str:
    op = entry.kernel.operator
    model = f" · {PRESETS[entry.name].model}" if entry.name in PRESETS else ""
    inputs = ", ".join(f"{t.name}[{', '.join(map(str, t.shape))}]" for t in op.inputs)
    return (
        f'<tr><td><a href="{escape(entry.file)}"><code>{escape(entry.name)}</code></a></td>'
        f"<td>{escape(op.title + model)}</td><td><code>{escape(inputs)}</code></td>"
        f'<td class="n">{len(entry.kernel.htile.kernels)}</td></tr>'
    )


def main(folder: Path) -> None:
    """Writes the whole gallery; the live page is left out, with the reason, if Pyodide cannot be had."""
    try:
        print(live.write(folder))
        with_live = True
    except live.NoPyodide as error:
        print(f"warning: the gallery has no live page: {error}", file=sys.stderr)
        with_live = False
    home = "../index.html" if (folder.parent / "index.html").exists() else ""  # beside it, as `make docs` writes it
    written = write(folder, with_live=with_live, machine_code=_TARGET, home=home)
    print(f"{len(written)} pages; {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
