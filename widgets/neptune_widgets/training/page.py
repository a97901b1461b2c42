"""Both passes as one HTML page that opens from disk; each pass's explorer is one press away, without a network."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from neptune_lab.trace import TrainingRecord
from neptune_widgets.page import STATIC, document
from neptune_widgets.page_parts import opening, records, style
from neptune_widgets.payload import Payload
from neptune_widgets.training.html import html

BUNDLE = STATIC / "training.js"
NOT_BUILT = """const start = () => {};
export default { start, render({ el }) {
  el.textContent = "The page is not built: run `npm install && npm run build` in widgets/.";
} };"""
_BODY = "body{margin:0 auto;padding:10px;font:13px/1.5 system-ui,sans-serif;background:Canvas;color:CanvasText}"


def bundle_text() -> str:
    """The page's script; a stand-in that says so where it is not built."""
    return BUNDLE.read_text(encoding="utf-8") if BUNDLE.is_file() else NOT_BUILT


def page(record: TrainingRecord, payloads: Mapping[str, Payload]) -> str:
    """The page as text.

    Args:
        record: of both passes.
        payloads: of the explorer of each pass that was compiled, by "forward" and "backward".

    Returns:
        HTML with the scripts and records inside.
    """
    own = base64.b64encode(bundle_text().encode()).decode()
    start = f"""const {{ default: both }} = await import("data:text/javascript;base64,{own}");
both.start(document.querySelector(".nt"), null);
"""
    body = f"""<main>{html(record, places=True)}</main>
{records(payloads)}<script type="module">
{start}</script>
<script type="module">
{opening({name: name for name in payloads})}</script>"""
    return document(f"{record.title}, forward and backward", f"html{{color-scheme:light dark}}{style()}{_BODY}", body)


__all__ = ["BUNDLE", "bundle_text", "page"]
