// Times that were measured in this page, by the steps of the schedule: estimates are not among them.

import type { Context } from "./context";
import type { StepEdit, TimingRow } from "./record";
import { sorted } from "./schedule_values";

const found = new WeakMap<Context, Map<string, TimingRow>>();

export const stepsKey = (steps: StepEdit[]): string => sorted(steps);

/** Keeps the rows that were measured; `keys` are the steps of each by the row's name. */
export function keepMeasured(ctx: Context, rows: readonly TimingRow[], keys: ReadonlyMap<string, string>): void {
  const known = found.get(ctx) ?? new Map<string, TimingRow>();
  found.set(ctx, known);
  for (const row of rows) {
    const key = keys.get(row.name);
    if (key !== undefined && !row.estimate && typeof row.us === "number") known.set(key, row);
  }
}

export const measuredOf = (ctx: Context, steps: StepEdit[] | undefined): TimingRow | null => (steps && found.get(ctx)?.get(stepsKey(steps))) || null;
