// Loops that fold: which lines a "for" line holds, and which lines are hidden while some are folded.

/** What is read of a line: its text, its id, and whether it is there on this side of a diff. */
export interface Foldable {
  text: string;
  node: string;
  op: string;
  gap?: boolean;
}

/** The loops of a listing by the position of their line: the last position that each holds. */
export function loopsIn(lines: readonly Foldable[]): Map<number, number> {
  const found = new Map<number, number>();
  const open: { at: number; depth: number; last: number }[] = [];
  const close = (depth: number) => {
    while (open.length && open[open.length - 1]!.depth >= depth) {
      const { at, last } = open.pop()!;
      if (last > at) found.set(at, last);
      if (open.length) open[open.length - 1]!.last = Math.max(open[open.length - 1]!.last, last);
    }
  };
  lines.forEach((line, n) => {
    // A removed line belongs to the loop that the lines around it are in; an empty one ends nothing.
    if (!line.text.trim() || line.gap) return;
    const depth = line.text.length - line.text.trimStart().length;
    if (line.op !== "del") close(depth);
    if (open.length && open[open.length - 1]!.depth < depth) open[open.length - 1]!.last = n;
    if (line.op !== "del" && line.node && /^\s*(?:for|while)\b.*:/.test(line.text)) open.push({ at: n, depth, last: n });
  });
  close(-1);
  return found;
}

/** For each hidden line the position of the outermost folded loop that hides it. */
export function hiddenBy(lines: readonly Foldable[], loops: ReadonlyMap<number, number>, folded: ReadonlySet<string>): Map<number, number> {
  const hidden = new Map<number, number>();
  for (const [at, last] of [...loops].sort(([a], [b]) => a - b))
    if (folded.has(lines[at]!.node) && !hidden.has(at)) for (let n = at + 1; n <= last; n++) hidden.set(n, at);
  return hidden;
}

/** Rows of two listings side by side: which are hidden on both, and which are blank on one because the other shows its line.

`a` and `b` have as many lines; `hidA` and `hidB` are what `hiddenBy` gives for them. */
export function hiddenBeside(a: readonly Foldable[], hidA: ReadonlyMap<number, number>, b: readonly Foldable[], hidB: ReadonlyMap<number, number>): { gone: Set<number>; blankA: Set<number>; blankB: Set<number> } {
  const [gone, blankA, blankB] = [new Set<number>(), new Set<number>(), new Set<number>()];
  for (const n of new Set([...hidA.keys(), ...hidB.keys()])) {
    const [noA, noB] = [hidA.has(n) || a[n]?.gap, hidB.has(n) || b[n]?.gap];
    if (noA && noB) gone.add(n);
    else (hidA.has(n) ? blankA : blankB).add(n);
  }
  return { gone, blankA, blankB };
}

/** The innermost loop around a line, the line's own if it is one; -1 if there is none. */
export function loopAround(loops: ReadonlyMap<number, number>, n: number): number {
  let best = -1;
  for (const [at, last] of loops) if (at <= n && n <= last && at > best) best = at;
  return best;
}
