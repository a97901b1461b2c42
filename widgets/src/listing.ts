// Numbered lines of code: signs of change, colours, and presses that select. One tab stop, arrows inside.

import type { Context } from "./context";
import { h, reveal } from "./dom";
import { hiddenBeside, hiddenBy, loopAround, loopsIn } from "./folds";
import { type Shelf, type Shown, emptyRow, fillRow, inQuotes, same } from "./listing_rows";
import type { Stop } from "./record";
import { matcher } from "./search";

/** Rows from which on those far from the visible part stay empty, and how many are filled at once around one. */
const MANY = 300;
const AROUND = 60;

export class Listing {
  readonly el: HTMLElement;
  private rows: Shelf[] = [];
  private byEl = new WeakMap<Element, Shelf>();
  private made = 0;
  private active = -1;
  private near: IntersectionObserver | null = null;
  /** Called after rows were filled later than they were shown. */
  onFill: (() => void) | null = null;
  private inner: HTMLElement;
  /** The loops by the position of their line, where the listing folds. */
  private loops: Map<number, number> = new Map();
  private hidden: Map<number, number> = new Map();
  private folded: readonly string[] = [];
  private shut: ReadonlySet<number> = new Set();
  /** The first line of the difference that was shown last. */
  private change = -1;
  /** The listing on the other side of a comparison, whose rows stand beside these. */
  private twin: Listing | null = null;

  constructor(
    private ctx: Context,
    private name: string,
    label: string,
    /** Where two listings scroll together: their lines stand side by side. */
    private scroller?: HTMLElement,
    /** Before the ids of its folded loops: those of another record have lines of the same names. */
    private of = "",
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

  /** Two listings side by side, whose loops fold together. */
  static beside(left: Listing, right: Listing): void {
    left.twin = right;
    right.twin = left;
  }

  /** What a loop is called among what is folded. */
  private foldId(n: number): string {
    return this.of + this.foldable(this.rows[n]!.line).node;
  }
  /** A line of one side of a comparison is a line of its program, even if the other does not have it, or names no node. */
  private foldable(line: Shown): Shown {
    return this.scroller && !line.gap ? { ...line, op: "same", node: line.node || `#${line.number}` } : line;
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
    const on = !this.ctx.view.folded.includes(this.foldId(n));
    const beside = this.twin?.loops.has(n) ? [this.twin.foldId(n)] : [];
    this.ctx.dispatch({ type: "fold", ids: [...new Set([this.foldId(n), ...beside])], on }, this.name);
    this.refold();
    this.focus(n);
    this.ctx.announce(on ? `folded, ${this.loops.get(n)! - n} lines` : "unfolded");
  }
  private foldAll(): void {
    const ids = [this, this.twin].flatMap((l) => (l ? [...l.loops.keys()].map((n) => l.foldId(n)) : []));
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
    const ids = new Set(folded.filter((id) => id.startsWith(this.of)).map((id) => id.slice(this.of.length)));
    this.hidden = hiddenBy(this.rows.map((r) => this.foldable(r.line)), this.loops, ids);
    if (this.twin) this.hideBeside(this.twin);
    else this.hide((n) => this.hidden.has(n));
    this.shut = new Set([...this.loops.keys()].filter((n) => folded.includes(this.foldId(n))));
    this.rows.forEach((row, n) => row.filled && this.drawFold(n));
  }
  private hide(gone: (n: number) => boolean, blank: (n: number) => boolean = () => false): void {
    this.rows.forEach(({ el }, n) => {
      if (el.hidden !== gone(n)) el.hidden = gone(n);
      el.classList.toggle("blank", blank(n));
    });
  }
  /** Rows stay side by side: one that the other side still shows is blank instead of hidden. */
  private hideBeside(other: Listing): void {
    if (other.rows.length !== this.rows.length) return; // the other side is about to be shown
    const [own, theirs] = [this, other].map((l) => l.rows.map((r) => r.line)) as [Shown[], Shown[]];
    const { gone, blankA, blankB } = hiddenBeside(own, this.hidden, theirs, other.hidden);
    this.hide((n) => gone.has(n), (n) => blankA.has(n));
    other.hide((n) => gone.has(n), (n) => blankB.has(n));
  }
  /** The sign of a loop in its line, and how much it holds if it is folded. */
  private drawFold(n: number): void {
    const { el, line } = this.rows[n]!;
    const last = this.loops.get(n);
    let sign = el.querySelector<HTMLElement>(".fold");
    if (last === undefined) {
      if (sign) (sign.remove(), el.querySelector(".held")?.remove(), el.classList.remove("holds"));
      return;
    }
    if (!sign) el.querySelector("u")!.after((sign = h("s", { class: "fold", "aria-hidden": "true", title: "fold or unfold this loop (F)" })));
    const shut = this.shut.has(n);
    sign.textContent = shut ? "▸" : "▾";
    el.querySelector(".held")?.remove();
    if (!shut) el.classList.remove("holds");
    if (shut && !el.hidden && line.text) {
      const changed = this.rows.slice(n + 1, last + 1).filter((r) => r.line.op !== "same").length;
      el.querySelector("code")!.append(h("span", { class: "held", "data-text": `${last - n} ${last === n + 1 ? "line" : "lines"} folded${changed ? `, ${changed} changed` : ""}` }));
    }
  }

  private focus(n: number): void {
    this.rows[this.active]?.el.classList.remove("act");
    const row = this.rows[n];
    if (!row) return;
    this.active = n;
    row.el.classList.add("act");
    this.inner.setAttribute("aria-activedescendant", row.el.id);
    this.bring(n);
  }
  /** Brings a row into view; it and those around it are filled before. */
  private bring(n: number, margin?: number): void {
    for (let k = Math.max(0, n - AROUND); k < Math.min(this.rows.length, n + AROUND); k++) this.fill(k);
    reveal(this.box(), this.rows[this.hidden.get(n) ?? n]!.el, margin);
  }

  private press(n: number, add: boolean): void {
    const line = this.rows[n]!.line;
    if (line.node && line.op !== "del") this.ctx.dispatch({ type: "select", ids: [line.node], add }, this.name);
  }

  /** `stop` is where in the record these lines are, for what is said of them. Rows that stay the same stay in the page. */
  show(lines: Shown[], stop: Stop | null = null): void {
    const top = this.box().scrollTop;
    this.active = this.change = -1;
    this.inner.querySelector(".ln.act")?.classList.remove("act");
    this.inner.querySelector(".ln.here")?.classList.remove("here");
    this.inner.removeAttribute("aria-activedescendant");
    const some = lines.some((l) => l.op !== "same");
    this.inner.classList.toggle("signs", some);
    const quoted = inQuotes(lines);
    const old = this.rows;
    const most = Math.min(old.length, lines.length);
    let head = 0;
    while (head < most && same(old[head]!, lines[head]!, quoted[head]!)) head++;
    let tail = 0;
    while (tail < most - head && same(old[old.length - 1 - tail]!, lines[lines.length - 1 - tail]!, quoted[lines.length - 1 - tail]!)) tail++;
    const fresh = lines.slice(head, lines.length - tail).map((line, n) => emptyRow(line, quoted[head + n]!, `${this.ctx.uid}-${this.name}-${this.made++}`, this.box()));
    for (const row of fresh) this.byEl.set(row.el, row);
    const before = old[old.length - tail]?.el ?? null;
    for (const { el } of old.slice(head, old.length - tail)) (this.near?.unobserve(el), el.remove());
    this.rows = [...old.slice(0, head), ...fresh, ...old.slice(old.length - tail)];
    this.rows.forEach((row, n) => {
      row.stop = stop;
      const { number } = lines[n]!;
      if (row.filled && row.line.number !== number) row.el.firstElementChild!.textContent = number === null ? "" : String(number);
      row.line = lines[n]!;
    });
    const part = document.createDocumentFragment();
    part.append(...fresh.map((r) => r.el));
    this.inner.insertBefore(part, before);
    this.loops = loopsIn(lines.map((l) => this.foldable(l)));
    const lazy = lines.length > MANY;
    const from = lazy ? Math.max(0, this.rows.findIndex((r) => !r.filled)) : 0;
    for (let n = from; n < (lazy ? Math.min(from + AROUND, lines.length) : lines.length); n++) this.fill(n);
    this.inner.classList.toggle("foldable", this.loops.size > 0);
    this.drawFolds();
    this.box().scrollTop = top;
    if (!lazy) this.near?.disconnect();
    else {
      this.near ??= this.observer();
      for (const row of this.rows) if (!row.filled) this.near.observe(row.el);
    }
  }

  /** The words of a row. */
  private fill(n: number): void {
    const row = this.rows[n]!;
    if (row.filled) return;
    this.near?.unobserve(row.el);
    fillRow(row);
    if (this.loops.has(n)) this.drawFold(n);
  }
  /** Fills the rows that come near the visible part. */
  private observer(): IntersectionObserver {
    const seen = (entries: IntersectionObserverEntry[]) => {
      const rows = new Set(entries.flatMap((e) => (e.isIntersecting ? (this.byEl.get(e.target) ?? []) : [])));
      if (!rows.size) return;
      this.rows.forEach((row, n) => rows.has(row) && this.fill(n));
      this.markFolds();
      this.onFill?.();
    };
    return new IntersectionObserver(seen, { root: this.box(), rootMargin: "600px 0px" });
  }

  /** Marks what is related to the selection, what is selected itself, and what the search finds. */
  light(lit: ReadonlySet<string>, scroll: boolean): void {
    const chosen = new Set(this.ctx.view.selection);
    if (scroll) this.unfoldFor(chosen);
    this.refold();
    const hit = matcher(this.ctx.view.search);
    let first = -1;
    let last = -1;
    let node = "";
    let best = Infinity;
    this.rows.forEach((row, n) => {
      const { el, line } = row;
      const on = line.node !== "" && line.op !== "del" && (lit.has(line.node) || chosen.has(line.node));
      const own = on && chosen.has(line.node);
      const marks = (on ? 1 : 0) + (own ? 2 : 0) + (hit !== null && !line.gap && hit(line.text) ? 4 : 0);
      if (marks !== row.marks) {
        row.marks = marks;
        el.classList.toggle("lit", on);
        el.classList.toggle("own", own);
        el.classList.toggle("hit", marks > 3);
        if (!line.gap) el.setAttribute("aria-selected", on ? "true" : "false");
      }
      const rank = own ? -1 : (line.weight ?? 0);
      if (on && rank < best) (first = n), (best = rank), (node = line.node);
      if (on && line.node === node) last = n;
    });
    this.markFolds();
    // A long statement as far as there is room, from its first line.
    if (last >= 0 && scroll) this.bring(last);
    if (first >= 0 && scroll) this.bring(first, 48);
  }

  /** Follows the view, if loops were folded or unfolded. */
  refold(): void {
    if (this.folded === this.ctx.view.folded) return;
    this.drawFolds();
    this.markFolds();
    this.onFill?.();
  }

  /** Unfolds the loops that hide a line which was chosen elsewhere. */
  private unfoldFor(chosen: ReadonlySet<string>): void {
    const shut = new Set(this.ctx.view.folded);
    const ids = new Set<string>();
    for (const [at, last] of this.loops)
      if (shut.has(this.foldId(at)) && this.rows.slice(at + 1, last + 1).some((r) => (r.line.op !== "del" || this.scroller) && chosen.has(r.line.node))) ids.add(this.foldId(at));
    if (ids.size) this.ctx.dispatch({ type: "fold", ids: [...ids], on: false }, this.ctx.source);
  }

  /** Says at a folded loop how many of its lines are highlighted, and lights it. */
  private markFolds(): void {
    for (const n of this.shut) {
      const { el } = this.rows[n]!;
      const held = el.querySelector<HTMLElement>(".held");
      if (!held) continue;
      const lit = this.rows.slice(n + 1, this.loops.get(n)! + 1).filter((r) => r.el.classList.contains("lit")).length;
      held.textContent = `⋯ ${held.dataset.text}${lit ? `, ${lit} highlighted` : ""}`;
      el.classList.toggle("holds", lit > 0);
    }
  }

  /** Puts the first line that is one of these on top, or the decorators before it. */
  startAt(wanted: RegExp): void {
    let at = this.rows.findIndex((r) => wanted.test(r.line.text));
    while (this.rows[at - 1]?.line.text.startsWith("@")) at--;
    const row = this.rows[at];
    if (row) this.bring(at);
    if (row) this.box().scrollTop = row.el.offsetTop - this.rows[0]!.el.offsetTop + 6; // without a strip of the line before it
  }

  /** Puts the n-th line near the top. */
  toTop(n: number): void {
    const box = this.box();
    const row = this.rows[n];
    if (row) this.bring(n);
    if (row) box.scrollTop += row.el.getBoundingClientRect().top - box.getBoundingClientRect().top - 48;
  }

  /** Unfolds the loops of both sides that hide a line. */
  private unfoldAt(n: number): void {
    const around = (l: Listing) => [...l.loops].flatMap(([at, last]) => (at < n && n <= last ? [l.foldId(at)] : []));
    const ids = [this, ...(this.twin ? [this.twin] : [])].flatMap(around).filter((id) => this.ctx.view.folded.includes(id));
    if (ids.length) this.ctx.dispatch({ type: "fold", ids, on: false }, this.name);
    for (const one of [this, this.twin]) one?.refold();
  }

  /** Brings the next run of changed lines into view, from the one that was shown last; null if nothing changed. */
  toChange(by: 1 | -1): { at: number; of: number } | null {
    const differs = (n: number) => Boolean(this.rows[n]) && (this.rows[n]!.line.op !== "same" || Boolean(this.rows[n]!.line.gap));
    const starts = this.rows.flatMap((_, n) => (differs(n) && !differs(n - 1) ? [n] : []));
    if (!starts.length) return null;
    const now = starts.indexOf(this.change);
    const to = now < 0 ? (by > 0 ? 0 : starts.length - 1) : (now + by + starts.length) % starts.length;
    this.rows[this.change]?.el.classList.remove("here");
    this.change = starts[to]!;
    this.rows[this.change]!.el.classList.add("here");
    this.unfoldAt(this.change);
    this.bring(this.change);
    const box = this.box();
    box.scrollTop += this.rows[this.change]!.el.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 3;
    return { at: to + 1, of: starts.length };
  }

  /** Brings into view what changed: the lines of a new repair term, else the first lines. */
  revealFirstChange(): void {
    const changed = this.rows.filter((r) => r.line.op !== "same");
    const first = changed.find((r) => r.line.repair) ?? changed[0];
    if (!first) return;
    // A new repair term is what a phase is about; else the first run of changed lines, as far as there is room.
    const at = this.rows.indexOf(first);
    let end = at;
    while (this.rows[end + 1] && this.rows[end + 1]!.line.op !== "same" && Boolean(this.rows[end + 1]!.line.repair) === Boolean(first.line.repair)) end++;
    this.bring(end, 48);
    this.bring(at, 48);
  }
}
