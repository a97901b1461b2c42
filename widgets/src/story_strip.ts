// The story above the panes: its stops as buttons, and a sentence on the current one.

import type { Context } from "./context";
import { h } from "./dom";
import { type StoryStop, storyOf } from "./story";
import { firstWrong } from "./tag_cells";

export interface Strip {
  el: HTMLElement;
  update(): void;
  /** Shows the story, or leaves it. */
  toggle(): void;
  /** To the stop that is `by` further. */
  move(by: number): void;
}

export const STORY_STYLE = `
.nx .story { flex: none; display: flex; align-items: center; gap: 6px 12px; padding: 6px 14px; border-bottom: 1px solid var(--line); background: var(--soft); }
.nx .story ol { display: flex; gap: 4px; flex: none; }
.nx .story li button { padding: 2px 9px; font-size: 12.5px; border-radius: 99px; }
.nx .story li button[aria-current="step"] { background: var(--accent); border-color: var(--accent); color: var(--bg); outline-offset: 1px; }
.nx .story p { flex: 1; min-width: 0; font-size: 13px; max-height: 4.6em; overflow: auto; }
.nx .story .do { flex: none; display: flex; gap: 6px; }
.nx.mid .story { flex-wrap: wrap; }
.nx.narrow .story ol { flex: 0 1 auto; flex-wrap: wrap; }
.nx.mid .story .do { margin-left: auto; }
.nx.mid .story p { flex: 1 1 100%; order: 3; max-height: none; }
`;

export function storyStrip(ctx: Context): Strip {
  const steps = h("ol", {});
  const text = h("p", { role: "status" });
  const back = h("button", { type: "button", class: "small", title: "stop before ([)", onclick: () => move(-1) }, "Back");
  const next = h("button", { type: "button", class: "small p", title: "next stop (])", onclick: () => move(1) }, "Next");
  const leave = h("button", { type: "button", class: "small", title: "explore freely; S shows the story again", onclick: () => toggle() }, "Leave");
  const el = h("section", { class: "story", "aria-label": "story" }, steps, text, h("div", { class: "do" }, back, next, leave));
  let of: unknown = null;
  let stops: StoryStop[] = [];
  let buttons: HTMLElement[] = [];
  /** The stop that was chosen last, a part of the view: two of them may be at one place of the record. */
  const last = (): number => Number(ctx.view.panes.storyStop ?? -1);

  const at = (): number => {
    const chosen = last();
    return stops[chosen]?.key === ctx.stop.key ? chosen : stops.findIndex((s) => s.key === ctx.stop.key);
  };
  const off = (): boolean => ctx.view.panes.story === "off";
  /** The text of a stop; one that was reached through the list of steps has marked nothing. */
  const told = (n: number): string => {
    const { text: said, marks, select, title } = stops[n]!;
    const marked = select.every((id) => ctx.view.selection.includes(id));
    return !marks ? said : `${said} ${marked ? `Marked: ${marks}.` : `Press "${n + 1} ${title}" to mark ${marks}.`}`;
  };

  function show(n: number): void {
    const stop = stops[n];
    if (!stop) return;
    ctx.dispatch({ type: "tab", slot: "storyStop", tab: String(n) });
    ctx.dispatch({ type: "compareOff" });
    ctx.dispatch({ type: "go", key: stop.key });
    ctx.dispatch({ type: "clear" });
    if (stop.select.length) ctx.dispatch({ type: "select", ids: stop.select });
    const table = ctx.tags.get(ctx.stop);
    const wrong = table && firstWrong(table);
    if (wrong) ctx.dispatch({ type: "iteration", to: wrong.column });
    if (stop.part === "kernel") ctx.dispatch({ type: "tab", slot: "narrow", tab: "code" });
    else ctx.dispatch({ type: "tab", slot: "narrow", tab: stop.part === "why" ? "derivation" : "tags" });
  }
  function move(by: number): void {
    if (off()) return toggle();
    const now = at();
    show(now < 0 ? Math.max(0, last()) : Math.min(Math.max(now + by, 0), stops.length - 1));
  }
  function toggle(): void {
    if (!stops.length) return;
    ctx.dispatch({ type: "tab", slot: "story", tab: off() ? "on" : "off" });
    if (!off() && at() < 0) show(0);
  }

  return {
    el,
    toggle,
    move,
    update() {
      if (of !== ctx.doc) {
        of = ctx.doc;
        stops = storyOf(ctx.doc);
        buttons = stops.map((stop, n) => h("button", { type: "button", onclick: () => show(n) }, `${n + 1} ${stop.title}`));
        steps.replaceChildren(...buttons.map((b) => h("li", {}, b)));
      }
      el.hidden = off() || !stops.length;
      if (el.hidden) return;
      const now = at();
      buttons.forEach((b, n) => (n === now ? b.setAttribute("aria-current", "step") : b.removeAttribute("aria-current")));
      const said = now < 0 ? "Not a stop of the story: Next returns to it." : told(now);
      if (text.textContent !== said) text.textContent = said;
      back.disabled = now === 0;
      next.disabled = now === stops.length - 1;
    },
  };
}
