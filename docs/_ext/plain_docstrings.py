"""Docstrings as this project writes them, for the two languages of the site.

Ours have Google's sections (Args, Returns, Raises), Markdown's single backticks, `>>>` examples, and blocks that are
indented under a line, such as "before ⇒ after:".  `to_rest` turns one into what napoleon and autodoc read,
`to_markdown` into what the pages that are written from the code hold.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes):$")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Part:
    """A run of lines of one kind, without its blank lines around and without its common indentation."""

    kind: Literal["prose", "block", "doctest", "section"]
    lines: tuple[str, ...]
    title: str = ""


def parts(docstring: str) -> Iterator[Part]:
    """A docstring in parts; a section's title is "Args" and so on.

    >>> [p.kind for p in parts("Sums.\\n\\n    x => y\\n\\nArgs:\\n    x: a number.\\n")]
    ['prose', 'block', 'section']
    """
    lines = inspect.cleandoc(docstring).expandtabs().splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if not line.strip():
            pass
        elif found := _SECTION.match(line):
            end = _indented(lines, end)
            yield Part("section", _dedented(lines[at + 1 : end]), found[1])
        elif line.startswith(" "):
            end = _indented(lines, at)
            yield Part("block", _dedented(lines[at:end]))
        elif line.startswith(">>>"):
            while end < len(lines) and lines[end].strip():
                end += 1
            yield Part("doctest", tuple(lines[at:end]))
        else:
            while end < len(lines) and lines[end].strip() and not _SECTION.match(lines[end]) and _goes_on(lines, end):
                end += 1
            yield Part("prose", tuple(lines[at:end]))
        at = end


def _goes_on(lines: list[str], at: int) -> bool:
    """Whether a line belongs to the prose before it: an item's second line does, an indented block does not."""
    if lines[at].startswith(">>>"):
        return False
    if not lines[at].startswith(" "):
        return True
    start = at
    while start and lines[start].startswith(" "):
        start -= 1
    return lines[start].startswith(("- ", "* ")) and not lines[start].endswith(":")


def _indented(lines: list[str], start: int) -> int:
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
    return end


def _dedented(lines: list[str]) -> tuple[str, ...]:
    return tuple(inspect.cleandoc("\n" + "\n".join(lines)).splitlines())


# -- reStructuredText, for autodoc ------------------------------------------------------------------------------------


def to_rest(docstring: str) -> list[str]:
    """Lines for napoleon: literals in double backticks, blocks as literal blocks, other marks escaped."""
    made: list[str] = []
    for part in parts(docstring):
        made.append("")
        if part.kind == "prose":
            made += _rest(part.lines)
        elif part.kind == "doctest":
            made += part.lines
        elif part.kind == "block":
            made += ["::", "", *(f"    {line}" for line in part.lines)]
        else:
            made += [f"{part.title}:", *(f"    {line}" for line in _rest(part.lines))]
    return [*made[1:], ""]


def _rest(lines: tuple[str, ...]) -> list[str]:
    text = "\n".join(lines)
    made, at = [], 0
    for found in _CODE.finditer(text):
        made.append(_escape_rest(text[at : found.start()]))
        after = text[found.end() : found.end() + 1]
        before = text[found.start() - 1 : found.start()]
        glue_before = "\\ " if before.isalnum() else ""
        made.append(f"{glue_before}``{found[1]}``" + ("\\ " if after.isalnum() or after in ("'", "’") else ""))
        at = found.end()
    return "".join([*made, _escape_rest(text[at:])]).split("\n")


def _escape_rest(text: str) -> str:
    text = re.sub(r"(?<!^)(?<!\n)([*|])(?! )", r"\\\1", text.replace("\\", "\\\\"))
    return re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", text)


# -- Markdown, for the pages that are written from the code -----------------------------------------------------------


def to_markdown(docstring: str, *, skip_sections: tuple[str, ...] = ()) -> str:
    """The same as MyST Markdown; sections are lists under their bold titles."""
    made: list[str] = []
    for part in parts(docstring):
        if part.kind == "prose":
            made.append("\n".join(map(escape_markdown, part.lines)))
        elif part.kind in ("block", "doctest"):
            made.append("\n".join([f"```{'pycon' if part.kind == 'doctest' else 'text'}", *part.lines, "```"]))
        elif part.title not in skip_sections:
            made += [f"**{part.title}**", "\n".join(_items(part.lines))]
    return "\n\n".join(made) + "\n"


def _items(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        if line.startswith(" "):
            yield f"  {escape_markdown(line.strip())}"
            continue
        name, colon, text = line.partition(": ")
        if colon and re.fullmatch(r"[\w, .*]+", name):
            yield f"- `{name}`: {escape_markdown(text)}"
        else:
            yield f"- {escape_markdown(line)}"


def escape_markdown(text: str) -> str:
    """`text` in which Markdown finds code between backticks, and no other marks.

    >>> print(escape_markdown("a*b <= `a*b`"))
    a\\*b \\<= `a*b`
    """
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(p if n % 2 else re.sub(r"([\\*_<\[\]|$`])", r"\\\1", p) for n, p in enumerate(pieces))


def summary(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    doc = inspect.getdoc(thing) or ""
    return " ".join(doc.split("\n\n")[0].split())


def _rewrite(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    # (napoleon takes what precedes a colon in a property's first line for its type: an empty comment goes before it)
    first = ["..", ""] if what in ("property", "attribute", "data") and any(lines) else []
    lines[:] = [*first, *to_rest("\n".join(lines))]


# Names in annotations that several modules have, and what each page means by them ("" for every other page).
_MEANT = {
    "Kernel": {"": "neptune_lab.Kernel", "api/htile": "neptune_lab.htile.nodes.Kernel"},
    "Program": {"": "neptune_lab.loop_ir.nodes.Program", "api/htile": "neptune_lab.htile.nodes.Program"},
    "Row": {"": "neptune_lab.pipeline.timing.TimingRow"},
    "Step": {"": "neptune_lab.loop_schedule.schedule.Step", "api/repair": "neptune_lab.repair.Step"},
    "Store": {
        "": "neptune_lab.records.Store",
        "api/htile": "neptune_lab.htile.nodes.Store",
        "api/loop_ir": "neptune_lab.loop_ir.nodes.Store",
    },
}


def _finish(app: Sphinx, document: nodes.document) -> None:
    """Says which of several is meant, and writes the dash between a parameter and its text as one."""
    for text in list(document.findall(nodes.Text)):
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" – "))
    for reference in document.findall(addnodes.pending_xref):
        meant = _MEANT.get(reference.get("reftarget", ""))
        if meant is not None and reference.get("refdomain") == "py":
            reference["reftarget"] = meant.get(app.env.docname, meant[""])


def setup(app: Sphinx) -> dict[str, Any]:
    """Rewrites docstrings before napoleon reads them."""
    app.connect("doctree-read", _finish)
    app.connect("autodoc-process-docstring", _rewrite, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
