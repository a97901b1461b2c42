// Which rows of a tag table are shown: those of one element, what is wrong first, then what changed; the rest is folded.

import { diffLines } from "./diff";
import { blockOf } from "./links";
import { type Doc, type Row, type Stop, type Table, stopBefore } from "./record";
import { sourceOf, stateOf } from "./tag_cells";

/** Rows up to which nothing is folded. */
const FEW = 8;

const indices = (row: Row): string[] => /\[(.*)\]/.exec(row.label)?.[1]?.split(", ") ?? [];
const isNumber = (text: string | undefined): text is string => text !== undefined && /^\d+$/.test(text);

/** The first index in which rows differ by a number (a batch of one is the same in all of them); -1 if there is none. */
export function varying(table: Table): number {
  const all = table.rows.map(indices);
  const depth = Math.max(0, ...all.map((x) => x.length));
  for (let n = 0; n < depth; n++) if (new Set(all.map((x) => x[n]).filter(isNumber)).size > 1) return n;
  return -1;
}

/** The element that a row is of, by its index at `position`: "xsum[1]" is of element 1; "" if it is of no single one. */
export function elementOf(row: Row, position: number): string {
  const index = indices(row)[position];
  return isNumber(index) ? index : "";
}

/** The elements of a table, ascending. */
export function elements(table: Table): string[] {
  const position = varying(table);
  return [...new Set(table.rows.map((r) => elementOf(r, position)))].filter((x) => x !== "").sort((a, b) => Number(a) - Number(b));
}

/** The table with the rows of one element only; rows that are of no single one stay. */
export function only(table: Table, element: string): Table {
  const position = varying(table);
  return element === "" ? table : { ...table, rows: table.rows.filter((r) => [element, ""].includes(elementOf(r, position))) };
}

export const isWrong = (row: Row): boolean => row.cells.some((c) => c && (c.sign.includes("✗") || c.right === false));
const isEarly = (row: Row): boolean => row.cells.some((c) => c?.sign.includes("!"));
const isRepaired = (row: Row): boolean => row.kind === "repair" || row.cells.some((c) => c?.sign.includes("↻"));

/** The first element in which something can be seen: a wrong value, else a repair by another factor than 0 or 1. */
export function tellingElement(table: Table): string {
  const position = varying(table);
  const works = (row: Row) => row.kind === "repair" && row.cells.some((c) => c && !["0", "1"].includes(c.value));
  const row = table.rows.find(isWrong) ?? table.rows.find(works);
  return (row && elementOf(row, position)) || (elements(table)[0] ?? "");
}

/** The blocks whose lines a stop added or rewrote. */
export function changedBlocks(doc: Doc, stop: Stop): Set<string> {
  const before = stopBefore(doc, stop);
  if (!before) return new Set();
  const lines = diffLines(before.lines, stop.lines).flatMap(({ op, right }) => (op === "same" || right === null ? [] : [stop.lines[right]!]));
  return new Set(lines.flatMap((line) => blockOf(line.node) ?? []));
}

/** What a row is shown for; rows with a lower rank come first, and those of rank REST are folded. */
const [WRONG, REPAIRED, CHANGED, SOURCE, REST] = [0, 1, 2, 3, 4];

export interface Focus {
  /** The rows in the order in which they are shown. */
  table: Table;
  /** How many of them, from the end, can be folded. */
  foldable: number;
}

/** The rows in order of interest at a stop that changed these blocks. */
export function focus(table: Table, changed: ReadonlySet<string>): Focus {
  if (table.rows.length <= FEW) return { table, foldable: 0 };
  const repairs = new Set(table.rows.filter((r) => r.kind === "repair").map((r) => r.block));
  const ranks = table.rows.map((row) => {
    if (isWrong(row) || isEarly(row)) return WRONG;
    if (!changed.has(row.block)) return REST;
    return repairs.has(row.block) ? REPAIRED : CHANGED;
  });
  if (ranks.every((rank) => rank === REST)) table.rows.forEach((row, n) => { if (isRepaired(row)) ranks[n] = REPAIRED; });
  table.rows.forEach((row, n) => {
    if (ranks[n] === REST || ranks[n] === SOURCE) return;
    for (const cell of row.cells)
      for (const read of cell?.reads ?? []) {
        const source = stateOf(read.state).sign ? sourceOf(table, row, read.text) : null;
        if (source && ranks[source[0]] === REST) ranks[source[0]] = SOURCE;
      }
  });
  if (ranks.every((rank) => rank === REST)) return { table, foldable: 0 };
  const order = table.rows.map((_, n) => n).sort((a, b) => ranks[a]! - ranks[b]! || a - b);
  return { table: { ...table, rows: order.map((n) => table.rows[n]!) }, foldable: ranks.filter((rank) => rank === REST).length };
}

/** Where a cell is that the rows of `element` ("" for all) do not show: the element to choose, and whether its row is folded
there; null if it is shown, or in no row of the table. */
export function hiddenBy(table: Table, cell: string, element: string, changed: ReadonlySet<string>): { element: string; folded: boolean } | null {
  const row = table.rows.find((r) => cell.startsWith(`cell:${r.kind}:${r.label}@`));
  if (!row) return null;
  const own = elementOf(row, varying(table));
  const chosen = element === "" || own === "" ? element : own;
  const { table: shown, foldable } = focus(only(table, chosen), changed);
  const folded = shown.rows.indexOf(row) >= shown.rows.length - foldable;
  return chosen !== element || folded ? { element: chosen, folded } : null;
}

/** A row's label without the indices that are the same in all rows: "acc[…, 1, 0]" for "acc[0, 0, 1, 0]". */
export function shortLabel(row: Row, position: number): string {
  const all = indices(row);
  return position <= 0 || all.length <= position ? row.label : `${row.label.slice(0, row.label.indexOf("["))}[…, ${all.slice(position).join(", ")}]`;
}
