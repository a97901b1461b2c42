// Text search over every stage: each place once, where it first stands or was changed.

import { userLines } from "./python_lines";
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
  for (const line of userLines(doc)) if (has(line.text)) add("definition", null, line);
  for (const line of doc.definition) if (has(line.text)) add("definition", null, line);
  // Most stops have the lines of the one before: those that match at all are looked for once.
  const pools = doc.pools();
  const matching = new Set<Line>([...pools.loops, ...pools.htile, ...doc.triton].filter((line) => has(line.text)));
  let before: Line[] = [];
  for (const stop of doc.stops) {
    const { lines } = stop;
    const hits = lines.filter((line) => matching.has(line));
    if (hits.length) {
      const known = new Set(before.filter((line) => matching.has(line)).flatMap((line) => [line, line.text.trim()]));
      for (const line of hits) if (!known.has(line) && !known.has(line.text.trim())) add(stop.kind, stop, line);
    }
    before = lines;
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
