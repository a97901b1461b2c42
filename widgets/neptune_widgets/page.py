"""One self-contained page: the bundle, a payload, and the view, in a file that opens from disk without a network."""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

from neptune_lab.trace import Trace
from neptune_widgets import static_view
from neptune_widgets.payload import Payload

STATIC = Path(__file__).parent / "static"
BUNDLE = STATIC / "explorer.js"
STYLE = STATIC / "explorer.css"

# Nothing is loaded: not from the network, not from beside the file.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data: blob:; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


# The page has nothing else to show: no border, and all the height there is.
_WHOLE = (
    "main>.nx.nx{height:100vh;max-height:none;border:0;border-radius:0;resize:none}"
    "main>.nx.nx.thin{height:auto;min-height:100vh}"
)

_NOT_BUILT = """export default { render({ el }) {
  el.textContent = "The explorer's page is not built: run `npm install && npm run build` in widgets/.";
} };"""


def bundle_text() -> str:
    """The page's script; a stand-in that says so where it is not built."""
    return BUNDLE.read_text(encoding="utf-8") if BUNDLE.is_file() else _NOT_BUILT


def document(title: str, style: str, body: str, policy: str = POLICY) -> str:
    """A whole HTML document.

    Args:
        title: a text, without the package's name.
        style: of the document, CSS.
        body: HTML.
        policy: what the page may load.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(f"{title} - neptune_lab")}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def page(trace: Trace, data: Payload, view: dict[str, Any] | None = None) -> str:
    """The page as text.

    Args:
        trace: for the title and the view without script.
        data: for the page; the parts of a large record are elements of their own, which are read after the first view.
        view: what to show first.
    """
    bundle = base64.b64encode(bundle_text().encode()).decode()
    style = STYLE.read_text(encoding="utf-8").replace("</", "<\\/") if STYLE.is_file() else ""
    parts = [
        f'<script type="application/json" class="part" data-name="{data.name}">{inert(text)}</script>\n'
        for text in data.rest
    ]
    body = f"""<main id="explorer"></main>
<noscript>{static_view.html(trace)}</noscript>
<script type="application/json" id="payload">{inert(data.text)}</script>
<script type="application/json" id="view">{inert(json.dumps(view or {}))}</script>
{"".join(parts)}<script type="module">
{_START.replace("BUNDLE", bundle)}</script>"""
    return document(trace.operator.title, f"html{{color-scheme:light dark}}body{{margin:0}}{_WHOLE}{style}", body)


def inert(text: str) -> str:
    """JSON that cannot end its script element, or start a comment in it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# A model as anywidget gives one, without Python: what is set stays in the page.
_START = """const read = (id) => document.getElementById(id).textContent;
const state = new Map([["payload", read("payload")], ["view", JSON.parse(read("view"))], ["page", true]]);
const heard = new Map();
const model = {
  get: (name) => state.get(name),
  set: (name, value) => { state.set(name, value); for (const f of heard.get("change:" + name) ?? []) f(); },
  save_changes: () => {},
  send: (message) => {
    if (message.kind !== "rest") return;
    const parts = [...document.querySelectorAll("script.part")].map((e) => e.textContent);
    setTimeout(() => model.set("rest", { name: message.name, parts }));
  },
  on: (name, f) => { heard.set(name, [...(heard.get(name) ?? []), f]); },
  off: (name, f) => { heard.set(name, f ? (heard.get(name) ?? []).filter((g) => g !== f) : []); },
};
const { default: widget } = await import("data:text/javascript;base64,BUNDLE");
const parts = typeof widget === "function" ? await widget() : widget;
await parts.initialize?.({ model });
await parts.render({ model, el: document.getElementById("explorer") });
"""
