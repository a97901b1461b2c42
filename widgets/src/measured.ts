// Times that were measured in this page, by the text of the kernel: estimates are not among them.

import type { Context } from "./context";
import type { Doc, TimingRow } from "./record";

const found = new WeakMap<Context, Map<string, TimingRow>>();

/** What a time is of: two schedules, or one with other options, may make different kernels. "" if there is none. */
export const kernelKey = (doc: Doc): string => doc.trace.kernel?.source ?? "";

/** Keeps the rows that were measured; `keys` are the kernels by the row's name. */
export function keepMeasured(ctx: Context, rows: readonly TimingRow[], keys: ReadonlyMap<string, string>): void {
  const known = found.get(ctx) ?? new Map<string, TimingRow>();
  found.set(ctx, known);
  for (const row of rows) {
    const key = keys.get(row.name);
    if (key && !row.estimate && typeof row.us === "number") known.set(key, row);
  }
}

export const measuredOf = (ctx: Context, doc: Doc): TimingRow | null => found.get(ctx)?.get(kernelKey(doc)) ?? null;
