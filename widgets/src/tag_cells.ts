// What a cell of a tag table is: its state, its class, and the cells that it read.

import type { Cell, Row, Table } from "./record";

const STATE: Record<string, { sign: string; word: string; css: string }> = {
  final: { sign: "", word: "complete", css: "right" },
  carried: { sign: "", word: "carried", css: "right" },
  early: { sign: "!", word: "read too early", css: "early" },
  repaired: { sign: "↻", word: "repaired", css: "fixed" },
};
/** Signs in words. */
export const SPOKEN: Record<string, string> = { "!": "read too early", "↻": "repaired", "✓": "as in the definition", "✗": "wrong, by a repair that is not proved" };

export const stateOf = (s: string) => STATE[s] ?? { sign: "", word: s, css: "right" };

/** The class of a cell's tint. */
export function tint(cell: Cell, row: Row): string {
  if (cell.sign.includes("✗")) return "wrong";
  if (cell.sign.includes("!")) return "early";
  if (cell.sign.includes("↻") || row.kind === "repair") return "fixed";
  if (cell.right === false) return "early";
  return "";
}

/** Which cell a read such as "xmax⟨0⟩" names, as [row, column]; null where the table does not have it. */
export function sourceOf(table: Table, reader: Row, text: string): [number, number] | null {
  const m = /^(.+?)⟨(.+)⟩$/.exec(text);
  if (!m) return null;
  const [, buffer, tag] = m;
  const inBuffer = table.rows.flatMap((r, n) => (r.kind === "value" && r.buffer === buffer ? [n] : []));
  if (!inBuffer.length) return null;
  const index = (label: string) => /\[(.*)\]/.exec(label)?.[1]?.split(", ") ?? [];
  const own = index(reader.label);
  const row = inBuffer.find((n) => index(table.rows[n]!.label).every((x, k) => x === own[k])) ?? inBuffer[0]!;
  const column = tag === "start" ? table.columns.findIndex((c) => c.startsWith("before ")) : table.columns.findIndex((c) => c.endsWith(`= ${tag}`));
  return column < 0 || !table.rows[row]!.cells[column] ? null : [row, column];
}

/** The first column with a wrong value, and its sign: one that a repair which is not proved did not carry, else one that was
read too early; null where there is none. */
export function firstWrong(table: Table): { column: number; sign: "✗" | "!" } | null {
  const first = (bad: (cell: Cell) => boolean) => table.columns.findIndex((_, n) => table.rows.some((r) => r.cells[n] && bad(r.cells[n]!)));
  const unproved = first((cell) => cell.sign.includes("✗"));
  const column = unproved < 0 ? first((cell) => cell.right === false) : unproved;
  return column < 0 ? null : { column, sign: unproved < 0 ? "!" : "✗" };
}

export const cellId = (row: Row, column: number): string => `cell:${row.kind}:${row.label}@${column}`;

/** The first sentence of a table's note, which has one line; the rest is its tooltip. */
export const inBrief = (note: string): string => note.split(/(?<=\.) /, 1)[0]!;
