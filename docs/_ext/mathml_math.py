"""Mathematics as MathML, which browsers draw by themselves: no script, no font and no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)
_ALIGNED = re.compile(r"(?<!\\)&|\\\\")
# A prime is raised by itself; as a superscript it would be raised twice.
_PRIME = re.compile(r"<msup>((?:(?!<msup>).)*?)<mi>&#x02032;</mi></msup>")

_TALL = ("<mfrac", "<mtable", "<munder", "<mover", "<msqrt", "<mroot")
_UNKNOWN = re.compile(r"<mi>(\\[a-zA-Z]+)")
# Of the styles of MathML, browsers draw "normal" alone; a script letter would look like any other.
_BOLD = re.compile(r'<mn mathvariant="bold">(\d)</mn>')
_STYLED = re.compile(r'mathvariant="(?!normal")([^"]*)"[^>]*>([^<]*)')


def mathml(latex: str, *, block: bool, where: Any = None) -> str:
    r"""`latex` as a `math` element; what cannot be read is a warning, and stands as text.

    >>> mathml("x", block=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>x</mi></mrow></math>'
    >>> "<mn>\N{MATHEMATICAL BOLD DIGIT ONE}</mn>" in mathml(r"\mathbf{1}", block=False)
    True
    """
    source = latex.strip().replace("{aligned}", "{align*}")
    if block and _ALIGNED.search(source) and "\\begin" not in source:
        source = rf"\begin{{align*}}{source}\end{{align*}}"
    try:
        made = convert(source, display="block" if block else "inline")
        if unknown := _UNKNOWN.search(made):
            _log.warning("mathematics with a command that cannot be drawn: %s", unknown[1], location=where)
        made = _BOLD.sub(lambda digit: f"<mn>{chr(0x1D7CE + int(digit[1]))}</mn>", made)
        if styled := _STYLED.search(made):
            _log.warning("mathematics in a style that browsers do not draw: %s %s", *styled.groups(), location=where)
        if not any(tall in made for tall in _TALL):  # else brackets grow with a letter's descender
            made = made.replace('stretchy="true"', 'stretchy="false"')
        return _PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', made)
    except Exception as error:  # noqa: BLE001 (its errors have no common root)
        _log.warning("mathematics that cannot be drawn: %r (%s)", latex, type(error).__name__, location=where)
        return f"<code>{nodes.unescape(latex)}</code>"


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), block=False, where=node))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{mathml(node.astext(), block=True, where=node)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the renderer "mathml"."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
