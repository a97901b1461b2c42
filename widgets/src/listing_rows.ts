// Lines of code as rows of a list: what a row is, and what it says once it is filled.

import { coloured, spansOf } from "./coloured";
import { type Op, SIGN, SPOKEN } from "./diff";
import { h } from "./dom";
import type { Stop } from "./record";

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
  /** Nothing comes from the line: it is drawn faint. */
  faint?: boolean;
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
/** A row of a listing: what it says is only made when it comes near the visible part, if there are many rows. */
export interface Shelf extends Row {
  /** Inside a string of three quotes. */
  quoted: boolean;
  filled: boolean;
  /** Which of "lit", "own" and "hit" it is marked as. */
  marks: number;
}
/** The deepest column at which a long line goes on. */
const HANG = 28;
const drawn = new WeakMap<Element, Row>();

/** Notes what a drawn line is, so that it can be explained. */
export const noteRow = (row: Row): void => void drawn.set(row.el, row);
/** The line that an element belongs to, of whichever pane. */
export const rowAt = (el: Element): Row | null => drawn.get(el.closest(".ln") ?? el) ?? null;

/** Whether a row shows a line as it is, but for its number. */
export const same = ({ line, quoted }: Shelf, now: Shown, nowQuoted: boolean): boolean =>
  line.text === now.text && line.node === now.node && line.op === now.op && line.gap === now.gap && quoted === nowQuoted && spansOf(line) === spansOf(now);

/** Which lines are inside a string of three quotes, which may go over lines. */
export function inQuotes(lines: readonly Shown[]): boolean[] {
  let open = false;
  return lines.map(({ text }) => {
    const quotes = text.split('"""').length - 1;
    const is = open || quotes > 0;
    if (quotes % 2) open = !open;
    return is;
  });
}

/** A row without its words. */
export function emptyRow(line: Shown, quoted: boolean, id: string, box: HTMLElement): Shelf {
  const el = document.createElement("div");
  el.className = `ln ${line.gap ? "gap" : line.op}${line.node && line.op !== "del" ? " has" : ""}${line.faint ? " faint" : ""}`;
  el.id = id;
  if (line.gap) el.setAttribute("aria-hidden", "true");
  else {
    el.setAttribute("role", "option");
    el.setAttribute("aria-selected", "false");
    // Its name until its words are in the page.
    el.setAttribute("aria-label", `${line.number ?? ""} ${line.op === "same" ? "" : `${SPOKEN[line.op]}: `}${line.text}`.trim());
  }
  const row: Shelf = { el, line, stop: null, box, quoted, filled: false, marks: 0 };
  noteRow(row);
  return row;
}

/** The words of a line with their first `deep` spaces in an element of their own, which is drawn narrower where there is little room. */
function indented(words: Node[], deep: number): Node[] {
  const [first] = words;
  if (!deep || !first?.textContent?.startsWith(" ".repeat(deep))) return words;
  const spaces = h("span", { class: "ind" }, first.textContent.slice(0, deep));
  spaces.style.setProperty("--deep", String(deep));
  first.textContent = first.textContent.slice(deep);
  return [spaces, ...words];
}

/** The words of a row. */
export function fillRow(row: Shelf): void {
  row.filled = true;
  const { el, line } = row;
  el.removeAttribute("aria-label");
  const number = document.createElement("i");
  number.textContent = line.number === null ? "" : String(line.number);
  const sign = document.createElement("u");
  sign.textContent = SIGN[line.op];
  el.append(number, sign);
  if (line.op !== "same" && !line.gap) el.append(h("span", { class: "vh" }, `${SPOKEN[line.op]}: `));
  const text = document.createElement("code");
  const deep = line.text.length - line.text.trimStart().length;
  text.append(...indented(coloured(line, row.quoted), deep));
  // What does not fit goes on in the next line, four columns deeper.
  text.style.setProperty("--hang", String(Math.min(deep + 4, HANG)));
  if (!line.text) text.textContent = " ";
  el.append(text);
}
