// The panel that explains a line: opened by a key on the selected line, or where the pointer rests on one.

import { TERMS } from "glossary:terms";
import type { Context } from "./context";
import { h, reveal } from "./dom";
import type { Change } from "./history";
import { type Explanation, explain } from "./explain";
import { type Row, rowAt } from "./listing_rows";
import { stopName } from "./record";
import { ranges } from "./ranges";

export interface Panel {
  el: HTMLElement;
  /** Explains the line that has the focus, else the first that is selected. */
  open(): void;
  /** Whether it was open. */
  close(): boolean;
  /** The view has changed: what was said of a line may be about another program. */
  update(): void;
  destroy(): void;
}

/** Milliseconds that the pointer rests on a line before it is explained, and that it may be away before the panel goes. */
const REST = 650;
const AWAY = 350;

export const EXPLAIN_STYLE = `
.nx .explain { position: absolute; z-index: 25; width: min(460px, calc(100% - 16px)); max-height: min(420px, calc(100% - 16px)); overflow: auto; background: var(--bg); border: 1px solid var(--edge); border-radius: 8px; padding: 9px 14px 11px; box-shadow: 0 6px 24px rgb(0 0 0 / .18); font-size: 12.5px; display: grid; gap: 6px; }
.nx .explain .top { display: flex; gap: 8px; align-items: baseline; }
.nx .explain .top code { flex: 1; min-width: 0; overflow-wrap: anywhere; font-weight: 600; font-size: 12px; }
.nx .explain p { overflow-wrap: anywhere; }
.nx .explain dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 12px; margin: 0; align-items: baseline; }
.nx .explain dl > * { float: none; width: auto; margin: 0; padding: 0; overflow-wrap: anywhere; }
.nx .explain dl > dt { color: var(--dim); }
.nx .explain dd code { font-size: 12px; }
.nx .explain dl > dd.many { display: flex; flex-wrap: wrap; gap: 2px 10px; }
.nx .explain button.link { font: 12.5px/1.45 var(--sans); text-decoration-skip-ink: auto; text-underline-offset: 3px; white-space: normal; text-align: left; }
.nx .explain .meaning { border-left: 3px solid var(--accent); padding-left: 8px; }
`;

export function explainPanel(ctx: Context): Panel {
  const el = h("div", { class: "explain", tabindex: -1, role: "dialog", hidden: true });
  let row: Row | null = null;
  let back: HTMLElement | null = null;
  let byKey = false;
  let view: unknown = null;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const off = () => ctx.view.panes.explain === "key";
  const focused = () => (ctx.root.getRootNode() as Document | ShadowRoot).activeElement as HTMLElement | null;

  /** A panel that the pointer opened goes with the first press in it that leads elsewhere. */
  function go(f: () => void): () => void {
    return () => {
      close();
      f();
    };
  }
  function select(stage: string, ids: string[]): void {
    if (stage === "Python" || stage === "Definition" || stage === "HTile" || stage === "Kernel code") {
      ctx.dispatch({ type: "show", slot: "code" });
      ctx.dispatch({ type: "tab", slot: "code", tab: { Python: "definition", Definition: "definition", HTile: "htile" }[stage as "HTile"] ?? "triton" });
      ctx.dispatch({ type: "tab", slot: "narrow", tab: "code" });
    }
    ctx.dispatch({ type: "clear" });
    ctx.dispatch({ type: "select", ids: ids.slice(0, 40) }, "explain");
  }

  function content(e: Explanation, line: Row): void {
    const title = h("code", { id: `${ctx.uid}-explained` }, e.title);
    const closing = h("button", { type: "button", class: "mini", "aria-label": "close the explanation", onclick: () => close() }, "✕");
    const meaning = h("p", { class: "meaning", role: "status" });
    meaning.hidden = true;
    const term = (name: string) => {
      const b = h("button", { type: "button", class: "link", "aria-expanded": "false", onclick: () => {
        const open = b.getAttribute("aria-expanded") !== "true";
        for (const other of terms) other.setAttribute("aria-expanded", String(other === b && open));
        meaning.hidden = !open;
        meaning.replaceChildren(h("b", {}, name), `: ${TERMS[name]}`);
        settle();
      } }, name);
      return b;
    };
    const terms = e.terms.filter((name) => TERMS[name]).map(term);
    const list = h("dl", {});
    const add = (name: string, css: string, ...what: (Node | string)[]) => list.append(h("dt", {}, name), h("dd", { class: css }, ...what));
    const jump = (text: string, f: () => void, label?: string) => h("button", { type: "button", class: "link", "aria-label": label ?? null, onclick: go(f) }, text);
    const user = ctx.index.python.get(line.line.node);
    if (e.definition.length && !line.line.node.startsWith("def:")) {
      const shown = e.definition.slice(0, 2);
      add(user ? (user.definition.length ? "became" : "computed in") : "comes from", "", ...shown.map((text) => h("div", {}, h("code", {}, text))), ...(e.definition.length > 2 ? [`and ${e.definition.length - 2} more stages`] : []));
    }
    if (e.python.length) {
      const shown = e.python.slice(0, 2);
      add("in your function", "", ...shown.map((text) => h("div", {}, h("code", {}, text))), ...(e.python.length > 2 ? [`and ${e.python.length - 2} more lines`] : []));
    }
    if (e.history.length) {
      const to = (c: Change) => jump(stopName(c.stop), () => ctx.dispatch({ type: "go", key: c.stop.key }));
      const [made, ...later] = e.history;
      add("made by", "", to(made!));
      // What happened last in the loops, and what the passes did after; the steps before, in short.
      const loops = later.filter((c) => c.stop.kind === "loops");
      const passes = later.filter((c) => c.stop.kind !== "loops");
      const last = loops[loops.length - 1];
      if (last) add(`last ${last.how} by`, "", to(last));
      if (passes.length) add("then by passes", "many", ...passes.map(to));
      if (loops.length > 1) add("before that", "many", ...loops.slice(0, -1).slice(-4).map(to));
    }
    if (e.repair) {
      const { stop, summary, rule } = e.repair;
      add("repair", "", h("div", {}, h("code", {}, summary)), `${rule}. `, jump("Show the derivation", () => {
        ctx.dispatch({ type: "show", slot: "derivation" });
        ctx.dispatch({ type: "tab", slot: "narrow", tab: "derivation" });
        ctx.dispatch({ type: "go", key: stop.key });
      }));
    }
    if (e.places.length) add("in the stages", "many", ...e.places.map((p) => jump(`${p.stage === "Kernel code" ? ctx.doc.language : p.stage} ${ranges(p.numbers)}`, () => select(p.stage, p.ids), `${p.stage}, ${p.numbers.length === 1 ? "line" : "lines"} ${ranges(p.numbers)}: select`)));
    if (terms.length) add("terms", "many", ...terms);
    const hover = h("button", { type: "button", class: "link dim", onclick: () => {
      ctx.dispatch({ type: "tab", slot: "explain", tab: off() ? "rest" : "key" });
      if (off() && !byKey) close();
      else hover.textContent = hoverText();
    } }, hoverText());
    el.replaceChildren(
      h("div", { class: "top" }, title, closing),
      h("p", { id: `${ctx.uid}-explanation` }, [...(line.first ? [line.first] : []), ...e.sentences].join(" ") || "The record says no more of this line than its links."),
      list,
      meaning,
      hover,
    );
    el.setAttribute("aria-labelledby", `${ctx.uid}-explained`);
    el.setAttribute("aria-describedby", `${ctx.uid}-explanation`);
  }
  const hoverText = (): string => (off() ? "Explain where the pointer rests, too" : "Explain by the key X only");

  /** Beside the line, inside the widget: below it where there is room, else above. */
  function settle(): void {
    if (!row) return;
    const area = ctx.root.getBoundingClientRect();
    const at = row.el.getBoundingClientRect();
    const box = row.box.getBoundingClientRect();
    const height = el.offsetHeight;
    const below = at.bottom - area.top + 2;
    const above = at.top - area.top - height - 4;
    const top = below + height <= area.height - 6 ? below : above >= 6 ? above : Math.max(6, area.height - height - 6);
    const left = Math.min(Math.max(8, box.left - area.left + 54), area.width - el.offsetWidth - 8);
    el.style.top = `${top}px`;
    el.style.left = `${left}px`;
  }

  function show(next: Row, key: boolean): void {
    clearTimeout(timer);
    row = next;
    byKey = key;
    view = ctx.stop;
    content(explain(ctx.doc, ctx.index, next.line.node, next.stop ?? ctx.stop, next.line.text), next);
    el.hidden = false;
    settle();
    if (key) {
      back = focused();
      el.focus();
    }
  }
  function close(): boolean {
    clearTimeout(timer);
    return hide();
  }
  function hide(): boolean {
    if (el.hidden) return false;
    const inside = el.contains(focused());
    el.hidden = true;
    row = null;
    if (inside) (back?.isConnected ? back : ctx.root).focus();
    back = null;
    return true;
  }

  /** Wherever the focus is, Escape ends what the pointer opened. */
  const escaped = (e: KeyboardEvent) => {
    if (e.key === "Escape" && !el.hidden && !ctx.root.contains(focused())) close();
  };
  /** Where the pointer was last: a page that scrolls puts lines under one that rests, which asks for no explanation. */
  let last = "";
  const over = (e: PointerEvent) => {
    const [before, now] = [last, `${e.screenX},${e.screenY}`];
    last = now;
    if (e.pointerType === "touch" || e.buttons || (before === now && !e.movementX && !e.movementY)) return;
    const target = e.composedPath()[0] as Element;
    if (el.contains(target)) return clearTimeout(timer);
    const found = off() ? null : rowAt(target);
    if (found && row && found.el === row.el) return clearTimeout(timer);
    clearTimeout(timer);
    if (found?.line.node) timer = setTimeout(() => { if ((!byKey || el.hidden) && found.el.matches(":hover")) show(found, false); }, el.hidden || byKey ? REST : AWAY);
    else if (!el.hidden && !byKey) timer = setTimeout(close, AWAY);
  };
  const leave = () => {
    clearTimeout(timer);
    if (!el.hidden && !byKey) timer = setTimeout(close, AWAY);
  };
  const down = (e: PointerEvent) => {
    clearTimeout(timer);
    if (!el.hidden && !el.contains(e.composedPath()[0] as Node)) close();
  };
  const scrolled = (e: Event) => {
    if (!el.contains(e.target as Node) && !byKey) hide();
  };
  document.addEventListener("keydown", escaped);
  ctx.root.addEventListener("pointermove", over);
  ctx.root.addEventListener("pointerleave", leave);
  ctx.root.addEventListener("pointerdown", down);
  ctx.root.addEventListener("scroll", scrolled, true);
  el.addEventListener("focusout", (e) => {
    if (byKey && e.relatedTarget && !el.contains(e.relatedTarget as Node)) close();
  });

  return {
    el,
    open() {
      if (!el.hidden && byKey) return void close();
      const now = focused();
      const active = now?.querySelector(":scope > .ln.act");
      const chosen = active ?? [...ctx.root.querySelectorAll(".ln.own")].find((x) => (x as HTMLElement).offsetParent !== null) ?? null;
      const found = chosen && rowAt(chosen);
      if (!found) return ctx.announce("Nothing to explain: select a line of code first");
      if (!found.line.node) return ctx.announce("This line belongs to no statement of the program");
      reveal(found.box, found.el);
      show(found, true);
    },
    close,
    update() {
      if (!el.hidden && (view !== ctx.stop || !row?.el.isConnected)) close();
    },
    destroy() {
      clearTimeout(timer);
      document.removeEventListener("keydown", escaped);
    },
  };
}
