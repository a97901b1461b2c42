// Line and token differences by longest common subsequence.

import type { Line } from "./record";

/** "move": the line is elsewhere on the other side; only rows of linked lines have it. */
export type Op = "same" | "add" | "del" | "change" | "move";
export interface DiffRow {
  op: Op;
  left: number | null;
  right: number | null;
}

/** Cells of the table of a common subsequence, and comparisons of lines that differ: what a step has time for. */
const MOST = 1_000_000;
const COMPARED = 4000;

/** Pairs between positions `start` and `enda`, `endb` of large texts: of lines that are in both once, and between those.

They are no longest common subsequence, but near one, as most lines of a program are there once. */
function anchored(a: readonly string[], b: readonly string[], start: number, enda: number, endb: number): [number, number][] {
  const once = (all: readonly string[], end: number) => {
    const at = new Map<string, number>();
    for (let n = start; n < end; n++) at.set(all[n]!, at.has(all[n]!) ? -1 : n);
    return at;
  };
  const there = once(b, endb);
  const common = [...once(a, enda)].flatMap(([text, i]): [number, number][] => (i >= 0 && (there.get(text) ?? -1) >= 0 ? [[i, there.get(text)!]] : []));
  // The longest run of them that is in order on both sides.
  const tails: number[] = [];
  const before: number[] = [];
  common.forEach(([, j], n) => {
    let [low, high] = [0, tails.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (common[tails[middle]!]![1] < j) low = middle + 1;
      else high = middle;
    }
    before[n] = low ? tails[low - 1]! : -1;
    tails[low] = n;
  });
  const chain: [number, number][] = [];
  for (let n = tails.length ? tails[tails.length - 1]! : -1; n >= 0; n = before[n]!) chain.unshift(common[n]!);
  if (!chain.length) return [];
  const pairs: [number, number][] = [];
  let [i, j] = [start, start];
  for (const [p, q] of [...chain, [enda, endb] as [number, number]]) {
    for (const [x, y] of lcs(a.slice(i, p), b.slice(j, q))) pairs.push([i + x, j + y]);
    if (p < enda) pairs.push([p, q]);
    [i, j] = [p + 1, q + 1];
  }
  return pairs;
}

/** Pairs of positions of a longest common subsequence of `a` and `b`. */
export function lcs(a: readonly string[], b: readonly string[]): [number, number][] {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let enda = a.length;
  let endb = b.length;
  while (enda > start && endb > start && a[enda - 1] === b[endb - 1]) (enda--, endb--);
  const pairs: [number, number][] = [];
  for (let i = 0; i < start; i++) pairs.push([i, i]);
  const n = enda - start;
  const m = endb - start;
  if (n && m && n * m > MOST) pairs.push(...anchored(a, b, start, enda, endb));
  else if (n && m) {
    const width = m + 1;
    const best = new Uint32Array((n + 1) * width);
    for (let i = n - 1; i >= 0; i--)
      for (let j = m - 1; j >= 0; j--)
        best[i * width + j] =
          a[start + i] === b[start + j]
            ? best[(i + 1) * width + j + 1]! + 1
            : Math.max(best[(i + 1) * width + j]!, best[i * width + j + 1]!);
    for (let i = 0, j = 0; i < n && j < m; ) {
      if (a[start + i] === b[start + j]) pairs.push([start + i++, start + j++]);
      else if (best[(i + 1) * width + j]! >= best[i * width + j + 1]!) i++;
      else j++;
    }
  }
  for (let i = enda, j = endb; i < a.length; i++, j++) pairs.push([i, j]);
  return pairs;
}

const words = (text: string): string[] => text.match(/[\p{L}_][\p{L}\p{N}_]*|\d[\d.e+-]*|\s+|./gu) ?? [];

function alike(a: Line, b: Line): boolean {
  if (a.kind !== b.kind) return false;
  const x = words(a.text.trim()).filter((w) => w.trim());
  const y = words(b.text.trim()).filter((w) => w.trim());
  return lcs(x, y).length * 2 > 1.3 * Math.max(x.length, y.length);
}

/** A line's text without its columns: how far apart its words stand is no difference, how deep it is nested is one. */
export const unaligned = (text: string): string => text.trimEnd().replace(/(?<=\S)\s+/g, " ");

/** Rows of a side-by-side view; lines that were rewritten stand beside what they were. */
export function diffLines(a: readonly Line[], b: readonly Line[]): DiffRow[] {
  const pairs = lcs(a.map((x) => unaligned(x.text)), b.map((x) => unaligned(x.text)));
  const rows: DiffRow[] = [];
  let left = COMPARED;
  let i = 0;
  let j = 0;
  for (const [p, q] of [...pairs, [a.length, b.length] as [number, number]]) {
    while (i < p || j < q) {
      if (i < p && j < q) {
        // The nearest right line like this left one: what comes before it was added.
        let at = -1;
        for (let s = j; s < q && at < 0; s++) if ((a[i]!.node && a[i]!.node === b[s]!.node) || (left-- > 0 && alike(a[i]!, b[s]!))) at = s;
        if (at < 0) rows.push({ op: "del", left: i++, right: null });
        else {
          while (j < at) rows.push({ op: "add", left: null, right: j++ });
          rows.push({ op: "change", left: i++, right: j++ });
        }
      } else if (i < p) rows.push({ op: "del", left: i++, right: null });
      else rows.push({ op: "add", left: null, right: j++ });
    }
    if (p < a.length) rows.push({ op: "same", left: i++, right: j++ });
  }
  return rows;
}

export const SIGN: Record<Op, string> = { same: "", add: "+", del: "−", change: "~", move: "↕" };
export const SPOKEN: Record<Op, string> = { same: "", add: "added", del: "removed", change: "changed", move: "moved" };

/** Parts of `now` that `before` does not have, as [from, to) positions. */
export function changedSpans(before: string, now: string): [number, number][] {
  const x = words(before);
  const y = words(now);
  const kept = new Set(lcs(x, y).map(([, j]) => j));
  const spans: [number, number][] = [];
  let at = 0;
  y.forEach((word, j) => {
    const last = spans[spans.length - 1];
    if (!kept.has(j) && word.trim()) {
      if (last && now.slice(last[1], at).trim() === "") last[1] = at + word.length;
      else spans.push([at, at + word.length]);
    }
    at += word.length;
  });
  // Brackets alone are not worth a mark.
  return spans.filter(([a, b]) => /[\p{L}\p{N}]/u.test(now.slice(a, b)));
}
