"""Explorers inside a larger saved page: a button opens each below it, without Python and without a network."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from neptune_widgets.page import STYLE, bundle_text, inert
from neptune_widgets.payload import Payload


def records(payloads: Mapping[str, Payload]) -> str:
    """The records as elements that no script runs.

    Args:
        payloads: by a name of letters and digits.

    Returns:
        HTML.
    """
    scripts = []
    for name, made in payloads.items():
        scripts.append(f'<script type="application/json" id="payload-{name}">{inert(made.text)}</script>\n')
        scripts += [
            f'<script type="application/json" data-of="{name}" data-name="{made.name}">{inert(text)}</script>\n'
            for text in made.rest
        ]
    return "".join(scripts)


def opening(places: Mapping[str, str]) -> str:
    """The script that makes each `<button data-region="NAME">` open an explorer in `<div class="explorer">` of the
    same name.

    Args:
        places: by region, the name of its record.
    """
    bundle = base64.b64encode(bundle_text().encode()).decode()
    pairs = ", ".join(f'"{region}": "{name}"' for region, name in places.items())
    return _START.replace("PLACES", pairs).replace("BUNDLE", bundle)


def style() -> str:
    """The explorer's style sheet, if it is a file of its own."""
    return STYLE.read_text(encoding="utf-8").replace("</", "<\\/") if STYLE.is_file() else ""


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
  // In a root of its own: rules of the page around, such as one for "main", would meet the explorer's own names.
  const inside = place.attachShadow({ mode: "open" });
  const sheet = ":host{display:block}.opened{margin:6px 0 12px}.opened>.nx.nx{height:86vh}";
  const label = button.textContent;
  let end = null;
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", async () => {
    if (end) {
      end.call?.();
      end = null;
      inside.replaceChildren();
      button.textContent = label;
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const model = modelOf(places[button.dataset.region]);
    await parts.initialize?.({ model });
    const el = Object.assign(document.createElement("div"), { className: "opened" });
    inside.replaceChildren(Object.assign(document.createElement("style"), { textContent: sheet }), el);
    end = (await parts.render({ model, el })) ?? (() => {});
    button.textContent = label.replace("Open", "Close").replace(" in the explorer", "");
    button.setAttribute("aria-expanded", "true");
  });
}
"""

__all__ = ["opening", "records", "style"]
