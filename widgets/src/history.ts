// Which step made a line of a program, and which changed it: read from the programs of the record.

import { unaligned } from "./diff";
import type { Doc, Line, Stop } from "./record";

export interface Change {
  stop: Stop;
  how: "made" | "changed" | "moved";
}

/** The text of a node's lines, and how deep the first is nested; null if the program does not have it. */
function textOf(lines: readonly Line[], node: string): { text: string; depth: number } | null {
  const own = lines.filter((l) => l.node === node);
  if (!own.length) return null;
  return { text: own.map((l) => unaligned(l.text.trim())).join("\n"), depth: own[0]!.text.length - own[0]!.text.trimStart().length };
}

/** The stops of one stage that made, rewrote or moved the node's lines, in order, up to `last`. */
export function historyOf(doc: Doc, node: string, kind: "loops" | "htile", last: Stop | null = null): Change[] {
  const stops = doc.stops.filter((s) => s.kind === kind && !s.refused);
  const end = last && last.kind === kind ? stops.indexOf(last) + 1 || stops.length : stops.length;
  const found: Change[] = [];
  let before: ReturnType<typeof textOf> = null;
  let lines: readonly Line[] | null = null;
  for (const stop of stops.slice(0, end)) {
    if (stop.lines === lines) continue;
    lines = stop.lines;
    const now = textOf(lines, node);
    if (now && (!before || now.text !== before.text)) found.push({ stop, how: before ? "changed" : "made" });
    else if (now && before && now.depth !== before.depth) found.push({ stop, how: "moved" });
    before = now;
  }
  return found;
}
