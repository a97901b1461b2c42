// A place that several panes share as tabs: one of them is shown, with its tools beside the tabs.

import type { Context, Pane } from "./context";
import { h } from "./dom";
import type { PaneKind } from "./pane";
import { tabs } from "./tabs";

/** "Graph, schedule and timing". */
function listed(kinds: PaneKind[]): string {
  const [first, ...rest] = kinds.map((kind) => kind.title);
  const words = [first!, ...rest.map((title) => title.toLowerCase())];
  return words.length < 2 ? words[0]! : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

/** The place of the first of these panes; the others are there while they are available. */
export function sharedPlace(ctx: Context, shared: { kind: PaneKind; pane: Pane }[]): Pane {
  const [owner, ...others] = shared as [(typeof shared)[0], ...typeof shared];
  const slot = owner.kind.id;
  const label = listed(shared.map(({ kind }) => kind));
  const bar = tabs(ctx, slot, label, shared.map(({ kind }) => ({ id: kind.id, label: kind.title })));
  const body = h("div", { class: "body", role: "tabpanel" });
  const el = h("section", { class: "pane", "aria-label": label.toLowerCase() }, bar.el, body);
  return {
    el,
    update() {
      const there = others.filter(({ kind }) => kind.available?.(ctx) ?? true);
      for (const { kind } of others) bar.show(kind.id, there.some((other) => other.kind === kind));
      bar.el.querySelector(".strip")!.toggleAttribute("data-one", !there.length);
      const now = there.find(({ kind }) => kind.id === ctx.view.panes[slot]) ?? owner;
      bar.update(now.kind.id);
      if (body.firstChild !== now.pane.el) {
        body.replaceChildren(now.pane.el);
        bar.extra.replaceChildren(...(now.pane.tools ? [now.pane.tools] : []));
      }
      now.pane.update();
      for (const { kind, pane } of shared) if (kind.behind && pane !== now.pane) pane.update();
    },
  };
}
