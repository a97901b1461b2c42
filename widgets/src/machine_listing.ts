// A listing of thousands of lines: only those in sight are in the page. One tab stop, arrows inside.

import { h } from "./dom";
import { noteRow } from "./listing_rows";
import { type CodeRow, MARKS, markOf, pieces } from "./machine_code";

/** Height of a row in px, as the style says. */
export const ROW = 20;
const AROUND = 20;

/** The rows to draw: those in sight and some around. */
export function windowOf(top: number, height: number, count: number): [from: number, to: number] {
  const from = Math.max(0, Math.min(count, Math.floor(top / ROW)) - AROUND);
  return [from, Math.min(count, Math.ceil((top + height) / ROW) + AROUND)];
}

export interface MachineListing {
  el: HTMLElement;
  /** Other rows; the one at `first` is on top. */
  show(rows: readonly CodeRow[], stage: string, first: number): void;
  /** Marks rows: those related to the selection, those selected themselves, and what the search finds. */
  light(lit: ReadonlySet<number>, own: ReadonlySet<number>, hit: ((text: string) => boolean) | null): void;
  /** Brings a row into view, and makes it the current one. */
  go(n: number): void;
  /** Brings a row into view. */
  reveal(n: number): void;
  /** The current row; -1 at first. */
  now(): number;
  destroy(): void;
}

/** A listing; `press` is called with a row that is chosen by pointer or key. */
export function machineListing(uid: string, press: (row: CodeRow, add: boolean) => void): MachineListing {
  const inner = h("div", { class: "mrows", role: "listbox", "aria-multiselectable": "true", "aria-label": "machine code", tabindex: 0 });
  const el = h("div", { class: "code machine" }, inner);
  let rows: readonly CodeRow[] = [];
  let stage = "";
  let lit: ReadonlySet<number> = new Set();
  let own: ReadonlySet<number> = new Set();
  let hit: ((text: string) => boolean) | null = null;
  let active = -1;
  let drawn: [number, number] = [0, 0];

  function rowEl(n: number): HTMLElement {
    const row = rows[n]!;
    const mark = MARKS[markOf(row.kind)];
    const text = document.createElement("code");
    for (const piece of pieces(row.text, stage)) {
      if (piece.kind) text.append(h("span", { class: `t-${piece.kind}` }, piece.text));
      else text.append(piece.text);
    }
    const css = ["ln", row.home && "has", lit.has(n) && "lit", own.has(n) && "own", hit?.(row.text) && "hit", n === active && "act", row.kind === "head" && "head"];
    const made = h(
      "div",
      { class: css.filter(Boolean).join(" "), id: `${uid}-machine-${n}`, role: "option", "aria-selected": String(lit.has(n)), "aria-posinset": n + 1, "aria-setsize": rows.length, "data-row": n, style: `top:${n * ROW}px` },
      h("i", {}, row.number === null ? "" : String(row.number)),
      h("u", { title: mark?.[1] ?? null }, mark?.[0] ?? ""),
      mark && h("span", { class: "vh" }, `${mark[1]}: `),
      text,
    );
    const first = `${mark ? `${mark[1][0]!.toUpperCase()}${mark[1].slice(1)}. ` : ""}Compiled from line ${row.home.slice(row.home.indexOf(":") + 1)} of the kernel's source.`;
    noteRow({ el: made, line: { node: row.home, text: row.text, number: row.number, op: "same" }, stop: null, box: el, first });
    return made;
  }
  function draw(force = false): void {
    const next = windowOf(el.scrollTop, el.clientHeight || 400, rows.length);
    if (!force && next[0] === drawn[0] && next[1] === drawn[1]) return;
    drawn = next;
    const made: HTMLElement[] = [];
    for (let n = next[0]; n < next[1]; n++) made.push(rowEl(n));
    inner.replaceChildren(...made);
    if (active >= next[0] && active < next[1]) inner.setAttribute("aria-activedescendant", `${uid}-machine-${active}`);
    else inner.removeAttribute("aria-activedescendant");
  }
  function reveal(n: number): void {
    const top = n * ROW;
    const height = el.clientHeight;
    if (!height) return;
    if (top < el.scrollTop + ROW || top > el.scrollTop + height - 2 * ROW) el.scrollTop = Math.max(0, top - Math.min(4 * ROW, height / 3));
    draw();
  }
  function go(n: number): void {
    if (!rows[n]) return;
    active = n;
    reveal(n);
    draw(true);
  }

  el.addEventListener("scroll", () => draw(), { passive: true });
  const watch = new ResizeObserver(() => draw());
  watch.observe(el);
  inner.addEventListener("click", (e) => {
    const at = (e.target as Element).closest<HTMLElement>("[data-row]");
    if (!at) return;
    const n = Number(at.dataset.row);
    go(n);
    press(rows[n]!, e.ctrlKey || e.metaKey || e.shiftKey);
  });
  inner.addEventListener("keydown", (e) => {
    const page = Math.max(1, Math.floor(el.clientHeight / ROW) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[e.key];
    if (step !== undefined && !e.ctrlKey && !e.metaKey && !e.altKey) go(Math.min(Math.max(active + step, 0), rows.length - 1));
    else if ((e.key === "Enter" || e.key === " ") && rows[active]) press(rows[active]!, e.ctrlKey || e.shiftKey);
    else return;
    e.preventDefault();
    e.stopPropagation();
  });

  return {
    el,
    show(next, name, first) {
      rows = next;
      stage = name;
      active = -1;
      lit = own = new Set();
      inner.style.height = `${rows.length * ROW}px`;
      inner.style.width = `calc(${rows.reduce((most, row) => Math.max(most, row.text.length), 0)}ch + 90px)`;
      el.scrollTop = first * ROW;
      draw(true);
    },
    light(nowLit, nowOwn, nowHit) {
      lit = nowLit;
      own = nowOwn;
      hit = nowHit;
      draw(true);
    },
    go,
    reveal,
    now: () => active,
    destroy: () => watch.disconnect(),
  };
}
