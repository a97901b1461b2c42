// Columns, panes and the splitters between them; narrow pages get one column.

import type { Context, Pane } from "./context";
import { h } from "./dom";
import type { Slot } from "./state";

export interface Frame {
  el: HTMLElement;
  update(): void;
  destroy(): void;
}

const NARROW = 980;
const THIN = 620;
const MIDDLE = 1240;
const LABEL: Record<Slot, string> = { rail: "Steps", program: "Program", tags: "Tags", graph: "Graph", derivation: "Derivation", code: "Kernel" };
const WEIGHT: Record<string, number> = { program: 1.15, tags: 1, graph: 1.15, derivation: 0.8, code: 0.95 };

export const slotLabel = (s: Slot): string => LABEL[s];

export function frame(ctx: Context, panes: Record<Slot, Pane>): Frame {
  const left = h("div", { class: "col left" });
  const right = h("div", { class: "col right" });
  const strip = h("div", { class: "switch", role: "tablist", "aria-label": "pane" });
  const cols = h("div", { class: "cols" });
  const main = h("div", { class: "main" });
  const size = (name: string, fallback: number) => ctx.view.sizes[name] ?? fallback;

  function splitter(label: string, vertical: boolean, now: () => number, range: () => [number, number], set: (px: number) => void): HTMLElement {
    const s = h("div", { class: `split ${vertical ? "v" : "h"}`, role: "separator", tabindex: 0, "aria-label": label, "aria-orientation": vertical ? "vertical" : "horizontal", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 50 });
    const to = (px: number) => {
      const [low, high] = range();
      set(Math.min(Math.max(px, low), high));
      s.setAttribute("aria-valuenow", String(Math.round((100 * (now() - low)) / Math.max(1, high - low))));
    };
    s.addEventListener("keydown", (e) => {
      const by = (vertical ? { ArrowLeft: -24, ArrowRight: 24 } : { ArrowUp: -24, ArrowDown: 24 })[e.key as "ArrowLeft"];
      if (!by) return;
      to(now() + by);
      e.preventDefault();
      e.stopPropagation();
    });
    s.addEventListener("pointerdown", (e) => {
      const start = vertical ? e.clientX : e.clientY;
      const was = now();
      s.setPointerCapture(e.pointerId);
      s.classList.add("drag");
      const move = (m: PointerEvent) => to(was + (vertical ? m.clientX : m.clientY) - start);
      const end = () => {
        s.removeEventListener("pointermove", move);
        s.classList.remove("drag");
      };
      s.addEventListener("pointermove", move);
      s.addEventListener("pointerup", end, { once: true });
      s.addEventListener("pointercancel", end, { once: true });
      e.preventDefault();
    });
    return s;
  }

  const railSplit = splitter("width of the steps", true, () => panes.rail.el.offsetWidth, () => [140, 480], (px) => ctx.dispatch({ type: "size", name: "rail", value: px }));
  const colSplit = splitter("width of the program", true, () => left.offsetWidth, () => [220, cols.offsetWidth - 220], (px) => ctx.dispatch({ type: "size", name: "left", value: (100 * px) / cols.offsetWidth }));
  /** Between two panes of a column: what one gains the other loses. */
  function between(a: Slot, b: Slot): HTMLElement {
    const el = (s: Slot) => panes[s].el;
    const s = splitter(`height of ${LABEL[a].toLowerCase()}`, false, () => el(a).offsetHeight, () => [60, el(a).offsetHeight + el(b).offsetHeight - 60], (px) => {
      const both = size(a, WEIGHT[a]!) + size(b, WEIGHT[b]!);
      const part = (both * px) / (el(a).offsetHeight + el(b).offsetHeight);
      ctx.dispatch({ type: "size", name: a, value: part });
      ctx.dispatch({ type: "size", name: b, value: both - part });
    });
    s.dataset.a = a;
    s.dataset.b = b;
    return s;
  }
  const splits = [between("program", "tags"), between("graph", "derivation"), between("derivation", "code"), between("graph", "code")];
  left.append(panes.program.el, splits[0]!, panes.tags.el);
  right.append(panes.graph.el, splits[1]!, splits[3]!, panes.derivation.el, splits[2]!, panes.code.el);
  cols.append(left, colSplit, strip, right);
  main.append(panes.rail.el, railSplit, cols);

  const tabButtons = new Map(
    (["tags", "graph", "derivation", "code"] as Slot[]).map((s) => [
      s,
      h("button", { type: "button", role: "tab", "aria-selected": "false", onclick: () => ctx.dispatch({ type: "tab", slot: "narrow", tab: s }) }, LABEL[s]),
    ]),
  );
  strip.append(...tabButtons.values());
  strip.addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    const ids = [...tabButtons.keys()].filter((s) => !tabButtons.get(s)!.hidden);
    const to = ids[(ids.indexOf(ctx.view.panes.narrow as Slot) + by + ids.length) % ids.length]!;
    ctx.dispatch({ type: "tab", slot: "narrow", tab: to });
    tabButtons.get(to)!.focus();
    e.preventDefault();
    e.stopPropagation();
  });

  let narrow = false;
  const watch = new ResizeObserver(([entry]) => {
    const width = entry!.contentRect.width;
    const is = width < NARROW;
    const middle = width < MIDDLE;
    ctx.root.classList.toggle("thin", width < THIN);
    if (is !== narrow || middle !== ctx.root.classList.contains("mid") || !ctx.root.classList.contains("sized")) {
      narrow = is;
      ctx.root.classList.toggle("narrow", is);
      ctx.root.classList.toggle("mid", middle);
      ctx.root.classList.add("sized");
      ctx.refresh();
    }
  });
  watch.observe(main);

  return {
    el: main,
    destroy: () => watch.disconnect(),
    update() {
      const { view } = ctx;
      const shown = (s: Slot) => !view.hidden.includes(s);
      const lower = (["tags", "graph", "derivation", "code"] as Slot[]).filter(shown);
      const chosen = lower.includes(view.panes.narrow as Slot) ? (view.panes.narrow as Slot) : (lower.find((s) => s !== "tags" || ctx.payload.tags) ?? lower[0] ?? "code");
      for (const s of Object.keys(panes) as Slot[]) {
        const on = shown(s) && (!narrow || s === "rail" || s === "program" || s === chosen);
        panes[s].el.hidden = !on;
        if (s !== "rail") panes[s].el.style.flexGrow = panes[s].el.classList.contains("slim") && !narrow ? "0" : String(size(s, WEIGHT[s]!));
      }
      for (const [s, b] of tabButtons) {
        b.hidden = !shown(s);
        b.setAttribute("aria-selected", String(s === chosen));
        b.tabIndex = s === chosen ? 0 : -1;
      }
      strip.hidden = !narrow || !lower.length;
      panes.rail.el.style.width = `${size("rail", ctx.root.classList.contains("mid") ? 204 : 232)}px`;
      left.style.flexBasis = `${view.compare ? Math.max(68, size("left", 51)) : size("left", 51)}%`;
      left.hidden = !narrow && !shown("program") && !shown("tags");
      right.hidden = !narrow && !shown("graph") && !shown("derivation") && !shown("code");
      left.classList.toggle("alone", right.hidden);
      railSplit.hidden = !shown("rail");
      colSplit.hidden = narrow || left.hidden || right.hidden;
      const middle = shown("derivation");
      for (const s of splits) {
        const [a, b] = [s.dataset.a as Slot, s.dataset.b as Slot];
        s.hidden = narrow || !shown(a) || !shown(b) || (a === "graph" && b === "code" && middle);
      }
    },
  };
}
