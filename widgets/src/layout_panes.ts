// Columns, panes and the splitters between them; narrow pages get one column.

import type { Context, Pane } from "./context";
import { h } from "./dom";
import { fitHeight } from "./fit_height";
import type { PaneKind } from "./pane";
import { PANES, PLACES } from "./registry";
import { compared } from "./state";

export interface Frame {
  el: HTMLElement;
  update(): void;
  destroy(): void;
}

const NARROW = 980;
const THIN = 620;
const MIDDLE = 1240;
/** How many times as much room a roomy tab gets. */
const ROOMY = 3;
/** Per cent of the columns that two programs side by side get, and the pixels that each of the two needs. */
const BESIDE = 68;
const SIDE = 400;

/** The panes of a column, from the top. */
const inColumn = (column: "rail" | "left" | "right"): PaneKind[] => PLACES.filter((kind) => "column" in kind.place && kind.place.column === column);
/** Of a narrow page: what is always there, and what its tabs choose from. */
const STAYS = PLACES.filter((kind) => "stays" in kind.place);
const CHOSEN = PLACES.filter((kind) => !STAYS.includes(kind));

export function frame(ctx: Context, places: Map<string, Pane>): Frame {
  const elOf = (kind: PaneKind) => places.get(kind.id)!.el;
  const shownTab = (kind: PaneKind) => PANES.find((tab) => "tabOf" in tab.place && tab.place.tabOf === kind.id && ctx.view.panes[kind.id] === tab.id);
  const roomy = (kind: PaneKind) => shownTab(kind)?.roomy ?? false;
  const wide = () => inColumn("right").some((kind) => !ctx.view.hidden.includes(kind.id) && shownTab(kind)?.wide);
  const weight = (kind: PaneKind) => size(kind.id, (("weight" in kind.place && kind.place.weight) || 1) * (roomy(kind) ? (narrow ? ROOMY / 2 : ROOMY) : 1));
  const [rail] = inColumn("rail");
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

  const railSplit = splitter("width of the steps", true, () => elOf(rail!).offsetWidth, () => [140, 480], (px) => ctx.dispatch({ type: "size", name: "rail", value: px }));
  const colSplit = splitter("width of the program", true, () => left.offsetWidth, () => [220, cols.offsetWidth - 220], (px) => ctx.dispatch({ type: "size", name: "left", value: (100 * px) / cols.offsetWidth }));
  /** Between two panes of a column: what one gains the other loses. */
  function between(a: PaneKind, b: PaneKind): HTMLElement {
    return splitter(`height of ${a.title.toLowerCase()}`, false, () => elOf(a).offsetHeight, () => [60, elOf(a).offsetHeight + elOf(b).offsetHeight - 60], (px) => {
      const both = weight(a) + weight(b);
      const part = (both * px) / (elOf(a).offsetHeight + elOf(b).offsetHeight);
      ctx.dispatch({ type: "size", name: a.id, value: part });
      ctx.dispatch({ type: "size", name: b.id, value: both - part });
    });
  }
  /** A splitter for each two panes of a column: the one between neighbours is shown, whichever they are. */
  const splits: { el: HTMLElement; a: PaneKind; b: PaneKind; middle: PaneKind[] }[] = [];
  for (const [column, kinds] of [[left, inColumn("left")], [right, inColumn("right")]] as const)
    kinds.forEach((a, n) => {
      const below = kinds.slice(n + 1).map((b, k) => ({ el: between(a, b), a, b, middle: kinds.slice(n + 1, n + 1 + k) }));
      splits.push(...below);
      column.append(elOf(a), ...below.map(({ el }) => el));
    });
  cols.append(left, colSplit, strip, right);
  main.append(elOf(rail!), railSplit, cols);

  const tabButtons = new Map(
    CHOSEN.map((kind) => [
      kind.id,
      h("button", { type: "button", role: "tab", "aria-selected": "false", title: kind.help, onclick: () => ctx.dispatch({ type: "tab", slot: "narrow", tab: kind.id }) }, kind.title),
    ]),
  );
  strip.append(...tabButtons.values());
  strip.addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    const ids = [...tabButtons.keys()].filter((s) => !tabButtons.get(s)!.hidden);
    const to = ids[(ids.indexOf(ctx.view.panes.narrow ?? "") + by + ids.length) % ids.length]!;
    ctx.dispatch({ type: "tab", slot: "narrow", tab: to });
    tabButtons.get(to)!.focus();
    e.preventDefault();
    e.stopPropagation();
  });

  /** Whether the programs of a comparison are shown as one, line by line, because there is no room for two. */
  const merged = () => {
    const pair = compared(ctx.view, ctx.doc);
    return pair !== null && pair.left.kind === pair.right.kind && (cols.clientWidth * BESIDE) / 100 < 2 * SIDE;
  };

  let narrow = false;
  let unfit = () => {};
  const watch = new ResizeObserver(([entry]) => {
    const width = entry!.contentRect.width;
    if (width && !ctx.root.classList.contains("sized")) unfit = fitHeight(ctx.root);
    const is = width < NARROW;
    const middle = width < MIDDLE;
    ctx.root.classList.toggle("thin", width < THIN);
    if (is !== narrow || middle !== ctx.root.classList.contains("mid") || !ctx.root.classList.contains("sized") || merged() !== ctx.root.classList.contains("merged")) {
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
    destroy: () => (watch.disconnect(), unfit()),
    update() {
      const { view } = ctx;
      const shown = (kind: PaneKind) => !view.hidden.includes(kind.id);
      const some = (column: "left" | "right") => inColumn(column).some(shown);
      const lower = CHOSEN.filter(shown);
      const chosen = lower.find((kind) => kind.id === view.panes.narrow) ?? lower.find((kind) => !kind.empty?.(ctx)) ?? lower[0];
      for (const kind of PLACES) {
        const el = elOf(kind);
        el.hidden = !shown(kind) || (narrow && kind !== chosen && !STAYS.includes(kind));
        if (kind !== rail) el.style.flexGrow = el.classList.contains("slim") && !narrow ? "0" : String(weight(kind));
      }
      for (const kind of CHOSEN) {
        const b = tabButtons.get(kind.id)!;
        b.hidden = !shown(kind);
        b.setAttribute("aria-selected", String(kind === chosen));
        b.tabIndex = kind === chosen ? 0 : -1;
      }
      strip.hidden = !narrow || !lower.length;
      elOf(rail!).style.width = `${size("rail", ctx.root.classList.contains("mid") ? 204 : 232)}px`;
      const one = merged();
      ctx.root.classList.toggle("merged", one);
      left.style.flexBasis = `${view.compare && !one ? Math.max(BESIDE, size("left", 51)) : size("left", wide() ? 33 : 51)}%`;
      left.hidden = !narrow && !some("left");
      right.hidden = !narrow && !some("right");
      left.classList.toggle("alone", right.hidden);
      railSplit.hidden = !shown(rail!);
      colSplit.hidden = narrow || left.hidden || right.hidden;
      for (const { el, a, b, middle } of splits) el.hidden = narrow || !shown(a) || !shown(b) || middle.some(shown);
    },
  };
}
