// Numbered lines of code: signs of change, colours, and presses that select. One tab stop, arrows inside.

import type { Context } from "./context";
import { type Op, SIGN, SPOKEN } from "./diff";
import { h, reveal } from "./dom";
import type { Stop } from "./record";
import { matcher } from "./search";
import { type Token, tokenise } from "./tokens";

export interface Shown {
  node: string;
  text: string;
  number: number | null;
  op: Op;
  /** Parts that changed, and the part that is a repair term. */
  spans?: [number, number][];
  repair?: [number, number] | null;
  /** How many things the line belongs to: of those lit, the one with the fewest is brought into view. */
  weight?: number;
  /** Nothing stands here on this side of a comparison. */
  gap?: boolean;
}

/** A line as it is drawn, with the stop of the record that it belongs to; `box` is what scrolls. */
export interface Row {
  el: HTMLElement;
  line: Shown;
  stop: Stop | null;
  box: HTMLElement;
}
const drawn = new WeakMap<Element, Row>();

/** The line that an element belongs to, of whichever pane. */
export const rowAt = (el: Element): Row | null => drawn.get(el.closest(".ln") ?? el) ?? null;

const tokens = new Map<string, Token[]>();

function tokensOf(text: string): Token[] {
  let found = tokens.get(text);
  if (!found) {
    if (tokens.size > 5000) tokens.clear();
    tokens.set(text, (found = tokenise(text)));
  }
  return found;
}

/** The line's text as spans, cut where tokens, changes and the repair term begin and end. */
function coloured(line: Shown, quoted: boolean): Node[] {
  if (quoted) return [h("span", { class: "t-s" }, line.text)];
  const out: Node[] = [];
  let at = 0;
  const cuts = [...(line.spans ?? []).flat(), ...(line.repair ?? [])].sort((a, b) => a - b);
  const inside = (spans: readonly [number, number][], n: number) => spans.some(([a, b]) => a <= n && n < b);
  for (const t of tokensOf(line.text)) {
    let from = at;
    const end = at + t.text.length;
    for (const cut of [...cuts.filter((c) => c > at && c < end), end]) {
      const part = line.text.slice(from, cut);
      const name = [t.kind && `t-${t.kind}`, inside(line.spans ?? [], from) && "w", line.repair && inside([line.repair], from) && "rep"]
        .filter(Boolean)
        .join(" ");
      if (name) {
        const span = document.createElement("span");
        span.className = name;
        span.textContent = part;
        out.push(span);
      } else out.push(document.createTextNode(part));
      from = cut;
    }
    at = end;
  }
  return out;
}

export class Listing {
  readonly el: HTMLElement;
  private rows: { el: HTMLElement; line: Shown }[] = [];
  private active = -1;
  private inner: HTMLElement;

  constructor(
    private ctx: Context,
    private name: string,
    label: string,
    private scroller?: HTMLElement,
  ) {
    this.inner = h("div", { class: "lines", role: "listbox", "aria-multiselectable": "true", "aria-label": label, tabindex: 0 });
    this.el = h("div", { class: "code" }, this.inner);
    this.inner.addEventListener("click", (e) => {
      const n = this.rows.findIndex((r) => r.el.contains(e.target as Node));
      if (n >= 0) (this.focus(n), this.press(n, e.ctrlKey || e.metaKey || e.shiftKey));
    });
    this.inner.addEventListener("keydown", (e) => {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[e.key];
      if (step !== undefined && !e.ctrlKey && !e.metaKey && !e.altKey) this.focus(Math.min(Math.max(this.active + step, 0), this.rows.length - 1));
      else if ((e.key === "Enter" || e.key === " ") && this.active >= 0) this.press(this.active, e.ctrlKey || e.shiftKey);
      else return;
      e.preventDefault();
      e.stopPropagation();
    });
  }

  label(text: string): void {
    this.inner.setAttribute("aria-label", text);
  }

  private box(): HTMLElement {
    return this.scroller ?? this.el;
  }

  private focus(n: number): void {
    this.rows[this.active]?.el.classList.remove("act");
    const row = this.rows[n];
    if (!row) return;
    this.active = n;
    row.el.classList.add("act");
    this.inner.setAttribute("aria-activedescendant", row.el.id);
    reveal(this.box(), row.el);
  }

  private press(n: number, add: boolean): void {
    const line = this.rows[n]!.line;
    if (line.node && line.op !== "del") this.ctx.dispatch({ type: "select", ids: [line.node], add }, this.name);
  }

  /** `stop` is where in the record these lines are, for what is said of them. */
  show(lines: Shown[], stop: Stop | null = null): void {
    const top = this.box().scrollTop;
    this.active = -1;
    this.inner.removeAttribute("aria-activedescendant");
    const some = lines.some((l) => l.op !== "same");
    this.inner.classList.toggle("signs", some);
    let open = false;
    this.rows = lines.map((line, n) => {
      // Strings of three quotes may go over lines.
      const quotes = line.text.split('"""').length - 1;
      const quoted = open || quotes > 0;
      if (quotes % 2) open = !open;
      const el = document.createElement("div");
      el.className = `ln ${line.gap ? "gap" : line.op}${line.node && line.op !== "del" ? " has" : ""}`;
      el.id = `${this.ctx.uid}-${this.name}-${n}`;
      if (line.gap) el.setAttribute("aria-hidden", "true");
      else el.setAttribute("role", "option");
      const number = document.createElement("i");
      number.textContent = line.number === null ? "" : String(line.number);
      const sign = document.createElement("u");
      sign.textContent = SIGN[line.op];
      el.append(number, sign);
      if (line.op !== "same" && !line.gap) el.append(h("span", { class: "vh" }, `${SPOKEN[line.op]}: `));
      const text = document.createElement("code");
      text.append(...coloured(line, quoted));
      if (!line.text) text.textContent = " ";
      el.append(text);
      drawn.set(el, { el, line, stop, box: this.box() });
      return { el, line };
    });
    this.inner.replaceChildren(...this.rows.map((r) => r.el));
    this.box().scrollTop = top;
  }

  /** Marks what is related to the selection, what is selected itself, and what the search finds. */
  light(lit: ReadonlySet<string>, scroll: boolean): void {
    const chosen = new Set(this.ctx.view.selection);
    const hit = matcher(this.ctx.view.search);
    let first: HTMLElement | null = null;
    let last: HTMLElement | null = null;
    let node = "";
    let best = Infinity;
    for (const { el, line } of this.rows) {
      const on = line.node !== "" && line.op !== "del" && (lit.has(line.node) || chosen.has(line.node));
      const own = on && chosen.has(line.node);
      el.classList.toggle("lit", on);
      el.classList.toggle("own", own);
      el.classList.toggle("hit", hit !== null && !line.gap && hit(line.text));
      if (!line.gap) el.setAttribute("aria-selected", on ? "true" : "false");
      const rank = own ? -1 : (line.weight ?? 0);
      if (on && rank < best) (first = el), (best = rank), (node = line.node);
      if (on && line.node === node) last = el;
    }
    // A long statement as far as there is room, from its first line.
    if (last && scroll) reveal(this.box(), last);
    if (first && scroll) reveal(this.box(), first, 48);
  }

  /** Puts the first line that begins so on top. */
  startAt(text: string): void {
    const row = this.rows.find((r) => r.line.text.startsWith(text));
    if (row) this.box().scrollTop = row.el.offsetTop - this.rows[0]!.el.offsetTop;
  }

  /** Brings into view what changed: the lines of a new repair term, else the first lines. */
  revealFirstChange(): void {
    const box = this.box();
    const changed = this.rows.filter((r) => r.line.op !== "same");
    const first = changed.find((r) => r.line.repair) ?? changed[0];
    if (!first) return;
    // A new repair term is what a phase is about; else the first run of changed lines, as far as there is room.
    const at = this.rows.indexOf(first);
    let end = at;
    while (this.rows[end + 1] && this.rows[end + 1]!.line.op !== "same" && Boolean(this.rows[end + 1]!.line.repair) === Boolean(first.line.repair)) end++;
    reveal(box, this.rows[end]!.el, 48);
    reveal(box, first.el, 48);
  }
}
