"""An explanation as one HTML page that opens from disk: each region's explorer is one press away, without a network."""

from __future__ import annotations

import base64
from html import escape

from neptune_lab.torch_explain import Explanation
from neptune_widgets import payload
from neptune_widgets.explanation.html import html
from neptune_widgets.page import POLICY, STYLE, bundle_text, inert

_BODY = "body{margin:0 auto;padding:12px 20px;max-width:1400px;font:13px/1.5 system-ui,sans-serif}"
_SHOWN = (
    "main>.neptune-explanation{max-width:none}main .part>p{max-width:1100px}.explorer>.nx{height:86vh}"
    "main button{font:inherit;color:inherit;background:rgba(128,128,128,.12);border:1px solid rgba(128,128,128,.5);"
    "border-radius:6px;padding:3px 12px;cursor:pointer;margin:3px 0}"
    "main .explorer:not(:empty){margin:6px 0 12px}"
)


def page(explanation: Explanation) -> str:
    """The page as text.

    Args:
        explanation: what is shown.

    Returns:
        HTML with the explorer's script once, and the record of each distinct kernel once.
    """
    records: dict[int, int] = {}
    scripts = []
    places = []
    for number, region in enumerate(explanation.regions, 1):
        at = records.get(id(region.kernel))
        if at is None:
            at = records[id(region.kernel)] = number
            made = payload.saved(region.kernel.trace)
            scripts.append(f'<script type="application/json" id="payload-{number}">{inert(made.text)}</script>\n')
            scripts += [
                f'<script type="application/json" data-of="{number}" data-name="{made.name}">{inert(text)}</script>\n'
                for text in made.rest
            ]
        places.append(f'"{number}": "{at}"')
    style = STYLE.read_text(encoding="utf-8").replace("</", "<\\/") if STYLE.is_file() else ""
    bundle = base64.b64encode(bundle_text().encode()).decode()
    script = _START.replace("PLACES", ", ".join(places)).replace("BUNDLE", bundle)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(f"{explanation.title} - neptune_lab")}</title>
<style>html{{color-scheme:light dark}}{style}{_BODY}{_SHOWN}</style>
</head>
<body>
<main>{html(explanation, buttons=True)}</main>
{"".join(scripts)}<script type="module">
{script}</script>
</body>
</html>
"""


# A model of each explorer as anywidget gives one, without Python: what is set stays in the page.
_START = """const places = {PLACES};
const { default: widget } = await import("data:text/javascript;base64,BUNDLE");
const parts = typeof widget === "function" ? await widget() : widget;

function modelOf(id) {
  const text = document.getElementById("payload-" + id).textContent;
  const state = new Map([["payload", text], ["view", {}], ["page", true]]);
  const heard = new Map();
  const model = {
    get: (name) => state.get(name),
    set: (name, value) => {
      state.set(name, value);
      for (const f of [...(heard.get("change:" + name) ?? [])]) f();
    },
    save_changes: () => {},
    send: (message) => {
      if (message.kind !== "rest") return;
      const rest = [...document.querySelectorAll(`script[data-of="${id}"]`)].map((e) => e.textContent);
      setTimeout(() => model.set("rest", { name: message.name, parts: rest }));
    },
    on: (name, f) => { heard.set(name, [...(heard.get(name) ?? []), f]); },
    off: (name, f) => { heard.set(name, f ? (heard.get(name) ?? []).filter((g) => g !== f) : []); },
  };
  return model;
}

for (const button of document.querySelectorAll("button[data-region]")) {
  const place = document.querySelector(`div.explorer[data-region="${button.dataset.region}"]`);
  const label = button.textContent;
  let end = null;
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", async () => {
    if (end) {
      end.call?.();
      end = null;
      place.replaceChildren();
      button.textContent = label;
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const model = modelOf(places[button.dataset.region]);
    await parts.initialize?.({ model });
    end = (await parts.render({ model, el: place })) ?? (() => {});
    button.textContent = label.replace("Open", "Close").replace(" in the explorer", "");
    button.setAttribute("aria-expanded", "true");
  });
}
"""

__all__ = ["page"]
