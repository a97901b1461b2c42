// Line numbers in short.

/** "3–5, 8" */
export function ranges(numbers: number[]): string {
  const out: [number, number][] = [];
  for (const n of numbers) {
    const last = out[out.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else out.push([n, n]);
  }
  const text = out.slice(0, 4).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
  return out.length > 4 ? `${text} …` : text;
}
