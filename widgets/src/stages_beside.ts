// Two stages of the compiler side by side: their texts have nothing in common, so that links say what stands beside what.

import { lcs } from "./diff";
import type { Line } from "./record";

interface Run {
  label: string;
  from: number;
  to: number;
}

/** The block that a line computes, in whichever stage; "" if it is none, or several. */
function labelOf(line: Line): string {
  const of = (id: string) => /^(?:store|name|guard|tile):([^/#]+)/.exec(id)?.[1] ?? "";
  if (line.kind !== "triton") return of(line.node);
  const labels = new Set(line.refs.map(of));
  return labels.size === 1 ? [...labels][0]! : "";
}

/** Consecutive lines of one block; a line of no block belongs to the run before it if that goes on after. */
function runsOf(lines: readonly Line[]): Run[] {
  const found: Run[] = [];
  lines.forEach((line, n) => {
    const label = labelOf(line);
    const last = found[found.length - 1];
    if (last?.label === label) last.to = n + 1;
    else found.push({ label, from: n, to: n + 1 });
  });
  return found;
}

/** Pairs of positions, null where one side has nothing: the statements of one block begin beside each other. */
export function beside(left: readonly Line[], right: readonly Line[]): { rows: [number | null, number | null][]; first: number } {
  const [a, b] = [left, right].map((lines) => runsOf(lines).filter((r) => r.label)) as [Run[], Run[]];
  const pairs = lcs(a.map((r) => r.label), b.map((r) => r.label));
  const rows: [number | null, number | null][] = [];
  let [i, j, first] = [0, 0, 0];
  const until = (p: number, q: number) => {
    for (; i < p || j < q; ) rows.push([i < p ? i++ : null, j < q ? j++ : null]);
  };
  pairs.forEach(([p, q], n) => {
    until(a[p]!.from, b[q]!.from);
    if (n === 0) first = rows.length;
  });
  until(left.length, right.length);
  return { rows, first };
}
