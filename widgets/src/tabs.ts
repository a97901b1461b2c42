// A strip of tabs over a pane, with room for a few words and buttons at its end.

import type { Context } from "./context";
import { h } from "./dom";

export interface Tabs {
  el: HTMLElement;
  extra: HTMLElement;
  update(chosen: string): void;
  rename(id: string, label: string): void;
  show(id: string, on: boolean): void;
}

export function tabs(ctx: Context, slot: string, label: string, list: { id: string; label: string }[]): Tabs {
  const buttons = new Map(
    list.map(({ id, label: text }) => [
      id,
      h("button", { type: "button", role: "tab", "aria-selected": "false", tabindex: -1, onclick: () => pick(id) }, text),
    ]),
  );
  const pick = (id: string) => {
    if (slot === "program") ctx.dispatch({ type: "compareOff" });
    ctx.dispatch({ type: "tab", slot, tab: id });
  };
  const strip = h("div", { class: "strip", role: "tablist", "aria-label": label }, ...buttons.values());
  strip.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const ids = [...buttons.keys()].filter((id) => !buttons.get(id)!.hidden);
    const now = ids.findIndex((id) => buttons.get(id)!.getAttribute("aria-selected") === "true");
    const to = ids[(now + step + ids.length) % ids.length]!;
    pick(to);
    buttons.get(to)!.focus();
    e.preventDefault();
    e.stopPropagation();
  });
  const extra = h("div", { class: "extra" });
  return {
    el: h("div", { class: "tabs" }, strip, extra),
    extra,
    update(chosen) {
      for (const [id, b] of buttons) {
        b.setAttribute("aria-selected", String(id === chosen));
        b.tabIndex = id === chosen ? 0 : -1;
      }
    },
    rename(id, text) {
      const b = buttons.get(id);
      if (b && b.textContent !== text) b.textContent = text;
    },
    show(id, on) {
      const b = buttons.get(id);
      if (b) b.hidden = !on;
    },
  };
}
