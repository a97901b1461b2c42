// Two programs side by side, their lines matched by where they come from, not by their text.

import { type Op, changedSpans, lcs, unaligned } from "./diff";
import type { Shown } from "./listing_rows";
import type { Doc, Line, Stop } from "./record";

export interface LinkedRow {
  op: Op;
  left: number | null;
  right: number | null;
}

/** A line's links, from the nearest stage to the definition; "" where it has none there. */
export type Links = [string, string, string];

const join = (ids: readonly string[]): string => [...ids].sort().join(" ");

/** Links of each line of a stop: its own node or its lines of HTile, the lines before those, and the definition. */
export function linksOf(doc: Doc, stop: Stop): Links[] {
  if (stop.kind === "triton") return doc.source.map((s) => [join(s.nodes), join(s.blocks), join(s.definition)]);
  const up = new Map<string, string[]>();
  for (const l of doc.pools().loops) if (l.node && !up.has(l.node)) up.set(l.node, l.refs);
  return stop.lines.map((l) => {
    const definition = stop.kind === "loops" ? l.refs : l.refs.flatMap((r) => up.get(r) ?? []);
    return [l.node, stop.kind === "loops" ? "" : join(l.refs), join([...new Set(definition)])];
  });
}

const words = (text: string): Set<string> => new Set(text.match(/[\p{L}_][\p{L}\p{N}_]*|\d+|[^\s\p{L}\p{N}]/gu) ?? []);

/** Whether two lines of one origin do the same thing: they share more than half of their words, comments and code apart. */
function alike(a: string, b: string): boolean {
  if (a.trim().startsWith("#") !== b.trim().startsWith("#")) return false;
  const [x, y] = [words(a), words(b)];
  const both = [...x].filter((w) => y.has(w)).length;
  return 2 * both > Math.max(x.size, y.size);
}

/** Pairs of lines, as positions: by the nearest link that both have; lines without any link by their text. */
export function matchLines(a: readonly Line[], b: readonly Line[], linksA: readonly Links[], linksB: readonly Links[]): [number, number][] {
  const pairs: [number, number][] = [];
  const left = new Set(a.keys());
  const right = new Set(b.keys());
  const pair = (i: number, j: number) => (pairs.push([i, j]), left.delete(i), right.delete(j));
  const text = (lines: readonly Line[], at: number[]) => at.map((n) => unaligned(lines[n]!.text));
  for (let level = 0; level < 3; level++) {
    const group = (which: Set<number>, links: readonly Links[]) => {
      const found = new Map<string, number[]>();
      for (const n of which) if (links[n]![level]) (found.get(links[n]![level]!) ?? found.set(links[n]![level]!, []).get(links[n]![level]!)!).push(n);
      return found;
    };
    const others = group(right, linksB);
    for (const [key, mine] of group(left, linksA)) {
      const theirs = others.get(key);
      if (!theirs) continue;
      for (const [i, j] of lcs(text(a, mine), text(b, theirs))) pair(mine[i]!, theirs[j]!);
      const free = theirs.filter((j) => right.has(j));
      for (const i of mine.filter((n) => left.has(n))) {
        let at = free.findIndex((j) => alike(a[i]!.text, b[j]!.text));
        // Lines of one node are one statement, whatever it says now; of lines that share an origin, each must do the same.
        if (at < 0 && level === 0 && a[i]!.kind !== "triton") at = free.length ? 0 : -1;
        if (at >= 0) pair(i, free.splice(at, 1)[0]!);
      }
    }
  }
  // A line of many origins, such as a loop's variable, may have gained or lost some of them.
  const ids = (links: Links) => new Set(links.flatMap((x) => x.split(" ").filter(Boolean)));
  const [some, others] = [[...left], [...right]];
  for (const [i, j] of lcs(text(a, some), text(b, others))) {
    const here = ids(linksA[some[i]!]!);
    if ([...ids(linksB[others[j]!]!)].some((id) => here.has(id))) pair(some[i]!, others[j]!);
  }
  const plain = (which: Set<number>, links: readonly Links[]) => [...which].filter((n) => links[n]!.every((x) => !x));
  const [mine, theirs] = [plain(left, linksA), plain(right, linksB)];
  for (const [i, j] of lcs(text(a, mine), text(b, theirs))) pair(mine[i]!, theirs[j]!);
  return pairs.sort(([i], [j]) => i - j);
}

/** The longest run of pairs that keeps the order on both sides. */
export function inOrderPairs(pairs: readonly [number, number][]): [number, number][] {
  const tails: number[] = [];
  const before: number[] = [];
  pairs.forEach(([, j], n) => {
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (pairs[tails[mid]!]![1] < j) low = mid + 1;
      else high = mid;
    }
    before[n] = low ? tails[low - 1]! : -1;
    tails[low] = n;
  });
  const out: [number, number][] = [];
  for (let n = tails.length ? tails[tails.length - 1]! : -1; n >= 0; n = before[n]!) out.unshift(pairs[n]!);
  return out;
}

/** Rows side by side; a line that is elsewhere on the other side has a row of its own on each. */
export function linkedRows(a: readonly Line[], b: readonly Line[], pairs: readonly [number, number][]): LinkedRow[] {
  const moved = new Set(pairs.map(([i]) => i));
  const movedTo = new Set(pairs.map(([, j]) => j));
  const fixed = inOrderPairs(pairs);
  const rows: LinkedRow[] = [];
  let i = 0;
  let j = 0;
  for (const [p, q] of [...fixed, [a.length, b.length] as [number, number]]) {
    while (i < p) rows.push({ op: moved.has(i) ? "move" : "del", left: i++, right: null });
    while (j < q) rows.push({ op: movedTo.has(j) ? "move" : "add", left: null, right: j++ });
    if (p < a.length) rows.push({ op: unaligned(a[i]!.text) === unaligned(b[j]!.text) ? "same" : "change", left: i++, right: j++ });
  }
  return rows;
}

export interface Counted {
  add: number;
  del: number;
  change: number;
  move: number;
}

export interface Compared {
  left: Shown[];
  right: Shown[];
  counted: Counted;
}

/** Two stops, perhaps of two records, side by side. A line on the left selects its partner on the right. */
export function compareStops(docA: Doc, stopA: Stop, docB: Doc, stopB: Stop): Compared {
  const [a, b] = [stopA.lines, stopB.lines];
  const pairs = matchLines(a, b, linksOf(docA, stopA), linksOf(docB, stopB));
  const partner = new Map(pairs);
  const back = new Map(pairs.map(([i, j]) => [j, i]));
  const gap: Shown = { node: "", text: "", number: null, op: "same", gap: true };
  const out: Compared = { left: [], right: [], counted: { add: 0, del: 0, change: 0, move: 0 } };
  for (const { op, left, right } of linkedRows(a, b, pairs)) {
    // A moved line is in two rows and counts once; empty lines count as nothing.
    const line = (right === null ? a[left!] : b[right])!;
    if (op !== "same" && line.text.trim() && !(op === "move" && right === null)) out.counted[op]++;
    const spans = (now: Line, other: Line | null) => (other && unaligned(now.text) !== unaligned(other.text) ? changedSpans(other.text, now.text) : []);
    const node = left !== null && partner.has(left) ? b[partner.get(left)!]!.node : "";
    out.left.push(left === null ? gap : { node, text: a[left]!.text, number: left + 1, op, spans: spans(a[left]!, partner.has(left) ? b[partner.get(left)!]! : null) });
    out.right.push(right === null ? gap : { node: b[right]!.node, text: b[right]!.text, number: right + 1, op, spans: spans(b[right]!, back.has(right) ? a[back.get(right)!]! : null) });
  }
  return out;
}

/** "3 changed, 1 added, 2 removed, 4 moved"; "the same" if nothing differs. */
export function countText({ add, del, change, move }: Counted): string {
  const parts = [[change, "changed"], [add, "added"], [del, "removed"], [move, "moved"]] as const;
  return parts.filter(([n]) => n).map(([n, word]) => `${n} ${word}`).join(", ") || "the same";
}

/** The last stop of a stage: the last loop program, the HTile that was emitted, or the source; null without a kernel. */
export const lastOf = (doc: Doc, kind: Stop["kind"]): Stop | null => [...doc.stops].reverse().find((s) => s.kind === kind && !s.refused) ?? null;
