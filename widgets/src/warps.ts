// Simulated steps of a Gluon kernel's warps, as Python sends them, and what is said of them.

import type { Doc } from "./record";

export type WarpKind = "compute" | "copy" | "product" | "arrive" | "wait";
export interface Stamp {
  step: number;
  group: string;
  lines: number[];
}
export interface WarpGroup {
  name: string;
  warps: number;
  /** Kind, first step, step after the last, lines of the source (innermost first), what ended a wait. */
  events: [WarpKind, number, number, number[], Stamp | null][];
  /** Copies and products from their start to their end. */
  flights: [WarpKind, number, number, number[]][];
}
export interface Timeline {
  groups: WarpGroup[];
  steps: number;
  limit: number;
  copy: number;
  product: number;
}

/** A sign for each kind, so that colour is not all that tells. */
export const SIGNS: Record<WarpKind, string> = { compute: "", copy: "↓", product: "×", arrive: "•", wait: "…" };
const NAMES: Record<WarpKind, string> = { compute: "computes", copy: "starts a copy", product: "starts a product", arrive: "arrives at a barrier", wait: "waits" };

/** The timeline in an answer or a payload; null if there is none. */
export function timelineIn(data: unknown): Timeline | null {
  const found = data as Partial<Timeline> | null | undefined;
  return found && Array.isArray(found.groups) ? (found as Timeline) : null;
}

/** One event of a group in a sentence, with the line of the source that does it. */
export function sentence(timeline: Timeline, group: number, event: number, doc: Doc): string {
  const { name, events } = timeline.groups[group]!;
  const [kind, start, end, lines, after] = events[event]!;
  const when = end - start === 1 ? `step ${start}` : `steps ${start} to ${end - 1}`;
  const line = lines[0] === undefined ? "" : ` · line ${lines[0]}: ${doc.source[lines[0] - 1]?.text.trim() ?? ""}`;
  const why = after ? ` for ${after.group === name ? "its own" : `${after.group}'s`} step, until ${after.step}${after.lines[0] === undefined ? "" : ` (line ${after.lines[0]})`}` : "";
  const what = kind === "wait" && !after ? "need not wait" : `${NAMES[kind]}${why}`;
  return `${name} · ${when}: ${what}${line}`;
}

/** Positions of a group's events that come from any of these lines of the source. */
export function litEvents(group: WarpGroup, triton: ReadonlySet<string>): Set<number> {
  return new Set(triton.size ? group.events.flatMap(([, , , lines], n) => (lines.some((line) => triton.has(`triton:${line}`)) ? [n] : [])) : []);
}


/** The event of another group that runs at the step at which this one begins; the last one if that has ended. */
export function eventAt(group: WarpGroup, step: number): number {
  const found = group.events.findIndex(([, start, end]) => start <= step && step < end);
  return found < 0 ? group.events.length - 1 : found;
}

/** How much of the steps a group waits, as a whole percentage. */
export function waiting(group: WarpGroup): number {
  const last = group.events[group.events.length - 1]?.[2] ?? 0;
  const waits = group.events.reduce((all, [kind, start, end]) => all + (kind === "wait" ? end - start - 1 : 0), 0);
  return last ? Math.round((100 * waits) / last) : 0;
}
