// Numbered lines of code: signs of change, colours, and presses that select. One tab stop, arrows inside.

import type { Context } from "./context";
import { type Op, SIGN, SPOKEN } from "./diff";
import { h, reveal } from "./dom";
import { hiddenBy, loopAround, loopsIn } from "./folds";
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
  /** What its pane says of it, before what the record says. */
  first?: string;
}
/** The deepest column at which a long line goes on. */
const HANG = 28;
const drawn = new WeakMap<Element, Row>();

/** Notes what a drawn line is, so that it can be explained. */
export const noteRow = (row: Row): void => void drawn.set(row.el, row);
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
  /** The loops by the position of their line, where the listing folds. */
  private loops: Map<number, number> = new Map();
  private hidden: Map<number, number> = new Map();
  private folded: readonly string[] = [];

  constructor(
    private ctx: Context,
    private name: string,
    label: string,
    /** Where two listings scroll together: their lines stand side by side, and do not fold. */
    private scroller?: HTMLElement,
  ) {
    this.inner = h("div", { class: "lines", role: "listbox", "aria-multiselectable": "true", "aria-label": label, tabindex: 0 });
    this.el = h("div", { class: "code" }, this.inner);
    this.inner.addEventListener("click", (e) => {
      const n = this.rows.findIndex((r) => r.el.contains(e.target as Node));
      if (n >= 0 && (e.target as Element).closest(".fold")) (this.focus(n), this.fold(n));
      else if (n >= 0) (this.focus(n), this.press(n, e.ctrlKey || e.metaKey || e.shiftKey));
    });
    this.inner.addEventListener("keydown", (e) => {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[e.key];
      const plain = !e.ctrlKey && !e.metaKey && !e.altKey;
      if (step !== undefined && plain) this.focus(this.visible(this.active, step));
      else if (e.key.toLowerCase() === "f" && plain && this.loops.size) e.shiftKey ? this.foldAll() : this.fold(loopAround(this.loops, Math.max(0, this.active)));
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

  /** The line that is `by` lines on, of those that no fold hides. */
  private visible(from: number, by: number): number {
    const there = this.rows.flatMap((_, n) => (this.hidden.has(n) ? [] : [n]));
    const now = there.filter((n) => n <= from).length - 1;
    return there[Math.min(Math.max(now + by, 0), there.length - 1)] ?? -1;
  }

  /** Folds the loop whose line is the n-th, or unfolds it. */
  private fold(n: number): void {
    const row = this.rows[n];
    if (!row || !this.loops.has(n)) return;
    const on = !this.ctx.view.folded.includes(row.line.node);
    this.ctx.dispatch({ type: "fold", ids: [row.line.node], on }, this.name);
    this.refold();
    this.focus(n);
    this.ctx.announce(on ? `folded, ${this.loops.get(n)! - n} lines` : "unfolded");
  }
  private foldAll(): void {
    const ids = [...this.loops.keys()].map((n) => this.rows[n]!.line.node);
    const on = !ids.some((id) => this.ctx.view.folded.includes(id));
    this.ctx.dispatch({ type: "fold", ids, on }, this.name);
    this.refold();
    this.focus(this.hidden.get(this.active) ?? this.active);
    this.ctx.announce(on ? "all loops folded" : "all loops unfolded");
  }

  /** Hides what folded loops hold, and says at each how much that is. */
  private drawFolds(): void {
    const { folded } = this.ctx.view;
    this.folded = folded;
    const ids = new Set(folded);
    this.hidden = hiddenBy(this.rows.map((r) => r.line), this.loops, ids);
    this.rows.forEach(({ el }, n) => (el.hidden = this.hidden.has(n)));
    for (const [n, last] of this.loops) {
      const { el, line } = this.rows[n]!;
      const shut = ids.has(line.node);
      el.querySelector(".fold")!.textContent = shut ? "▸" : "▾";
      el.querySelector(".held")?.remove();
      if (shut && !el.hidden) {
        const changed = this.rows.slice(n + 1, last + 1).filter((r) => r.line.op !== "same").length;
        el.querySelector("code")!.append(h("span", { class: "held", "data-text": `${last - n} ${last === n + 1 ? "line" : "lines"} folded${changed ? `, ${changed} changed` : ""}` }));
      }
    }
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
      // What does not fit goes on in the next line, four columns deeper.
      text.style.setProperty("--hang", `${Math.min(line.text.length - line.text.trimStart().length + 4, HANG)}ch`);
      if (!line.text) text.textContent = " ";
      el.append(text);
      noteRow({ el, line, stop, box: this.box() });
      return { el, line };
    });
    this.inner.replaceChildren(...this.rows.map((r) => r.el));
    this.loops = this.scroller ? new Map() : loopsIn(lines);
    for (const n of this.loops.keys()) this.rows[n]!.el.querySelector("u")!.after(h("s", { class: "fold", "aria-hidden": "true", title: "fold or unfold this loop (F)" }));
    this.inner.classList.toggle("foldable", this.loops.size > 0);
    this.drawFolds();
    this.box().scrollTop = top;
  }

  /** Marks what is related to the selection, what is selected itself, and what the search finds. */
  light(lit: ReadonlySet<string>, scroll: boolean): void {
    const chosen = new Set(this.ctx.view.selection);
    if (scroll) this.unfoldFor(chosen);
    this.refold();
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
    this.markFolds();
    // A long statement as far as there is room, from its first line.
    if (last && scroll) reveal(this.box(), last);
    if (first && scroll) reveal(this.box(), first, 48);
  }

  /** Follows the view, if loops were folded or unfolded. */
  refold(): void {
    if (this.folded === this.ctx.view.folded) return;
    this.drawFolds();
    this.markFolds();
  }

  /** Unfolds the loops that hide a line which was chosen elsewhere. */
  private unfoldFor(chosen: ReadonlySet<string>): void {
    const shut = new Set(this.ctx.view.folded);
    const ids = new Set<string>();
    for (const [at, last] of this.loops)
      if (shut.has(this.rows[at]!.line.node) && this.rows.slice(at + 1, last + 1).some((r) => r.line.op !== "del" && chosen.has(r.line.node))) ids.add(this.rows[at]!.line.node);
    if (ids.size) this.ctx.dispatch({ type: "fold", ids: [...ids], on: false }, this.ctx.source);
  }

  /** Says at a folded loop how many of its lines are highlighted, and lights it. */
  private markFolds(): void {
    for (const { el } of this.rows) {
      const held = el.querySelector<HTMLElement>(".held");
      if (!held) continue;
      const n = this.rows.findIndex((r) => r.el === el);
      const lit = this.rows.slice(n + 1, this.loops.get(n)! + 1).filter((r) => r.el.classList.contains("lit")).length;
      held.textContent = `⋯ ${held.dataset.text}${lit ? `, ${lit} highlighted` : ""}`;
      el.classList.toggle("holds", lit > 0);
    }
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
