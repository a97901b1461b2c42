"""An explanation as one HTML page that opens from disk: each region's explorer is one press away, without a network."""

from __future__ import annotations

from neptune_lab.torch_explain import Explanation
from neptune_widgets import payload
from neptune_widgets.explanation.html import html
from neptune_widgets.page import document
from neptune_widgets.page_parts import opening, records, style

_BODY = "body{margin:0 auto;padding:12px 20px;max-width:1400px;font:13px/1.5 system-ui,sans-serif}"
_SHOWN = (
    "main>.neptune-explanation{max-width:none}main .part>p{max-width:1100px}"
    "main button{font:inherit;color:inherit;background:rgba(128,128,128,.12);border:1px solid rgba(128,128,128,.5);"
    "border-radius:6px;padding:3px 12px;cursor:pointer;margin:3px 0}"
)


def page(explanation: Explanation) -> str:
    """The page as text.

    Args:
        explanation: what is shown.

    Returns:
        HTML with the explorer's script once, and the record of each distinct kernel once.
    """
    names: dict[int, str] = {}
    payloads: dict[str, payload.Payload] = {}
    places: dict[str, str] = {}
    for number, region in enumerate(explanation.regions, 1):
        name = names.setdefault(id(region.kernel), str(number))
        if name not in payloads:
            payloads[name] = payload.saved(region.kernel.trace)
        places[str(number)] = name
    body = f"""<main>{html(explanation, buttons=True)}</main>
{records(payloads)}<script type="module">
{opening(places)}</script>"""
    return document(explanation.title, f"html{{color-scheme:light dark}}{style()}{_BODY}{_SHOWN}", body)


__all__ = ["page"]
