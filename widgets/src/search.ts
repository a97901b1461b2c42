// Text search over every stage: each place once, where it first stands or was changed.

import type { Doc, Line, Stop } from "./record";

export interface Match {
  where: "definition" | "loops" | "htile" | "triton" | "derivation";
  stop: Stop | null;
  node: string;
  text: string;
}

const LIMIT = 500;

/** Every match of `query`, in reading order; letters of either case, unless the query has a capital. */
export function search(doc: Doc, query: string): Match[] {
  const wanted = query.trim();
  if (!wanted) return [];
  const exact = wanted !== wanted.toLowerCase();
  const needle = exact ? wanted : wanted.toLowerCase();
  const has = (text: string) => (exact ? text : text.toLowerCase()).includes(needle);
  const found: Match[] = [];
  const add = (where: Match["where"], stop: Stop | null, line: { node: string; text: string }) => {
    if (found.length < LIMIT) found.push({ where, stop, node: line.node, text: line.text });
  };
  for (const line of doc.definition) if (has(line.text)) add("definition", null, line);
  let before: ReadonlySet<Line> = new Set();
  let texts: ReadonlySet<string> = new Set();
  for (const stop of doc.stops) {
    for (const line of stop.lines) if (!before.has(line) && !texts.has(line.text.trim()) && has(line.text)) add(stop.kind, stop, line);
    before = new Set(stop.lines);
    texts = new Set(stop.lines.map((l) => l.text.trim()));
    for (const step of stop.derivation?.steps ?? [])
      for (const text of step.text.split("\n")) if (has(text)) add("derivation", stop, { node: "", text });
  }
  return found;
}

/** Whether a line holds the query, as `search` reads it. */
export function matcher(query: string): ((text: string) => boolean) | null {
  const wanted = query.trim();
  if (!wanted) return null;
  const exact = wanted !== wanted.toLowerCase();
  return exact ? (t) => t.includes(wanted) : (t) => t.toLowerCase().includes(wanted.toLowerCase());
}
