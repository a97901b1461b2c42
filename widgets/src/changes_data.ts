// What is compared with what: two stops of this record, or this record with an earlier version of its schedule.

import { lcs } from "./diff";
import { lastOf } from "./linked";
import { type Doc, type StepEdit, type Stop, callText, readTrace, stopName } from "./record";
import type { Trace } from "./record_types";
import { type At, type Found, type Gpu, formAt, formOf, gpuOf } from "./traffic_data";

/** An earlier version, as Python sends it. */
export interface RawVersion {
  trace: Trace;
  steps: StepEdit[];
  /** Null from Python, which counts it when it is asked for it. */
  traffic: Found | null;
}
export interface Version {
  doc: Doc;
  steps: StepEdit[];
  traffic: Found | null;
}
export const readVersion = (raw: RawVersion): Version => ({ doc: readTrace(raw.trace), steps: raw.steps, traffic: raw.traffic });

export const VERSIONS: Record<string, string> = { before: "before the last edit", opened: "as opened" };
export const STAGES = ["triton", "htile", "loops"] as const;
export type Stage = (typeof STAGES)[number];

/** One side of a comparison. */
export interface Side {
  name: string;
  doc: Doc;
  stop: Stop;
  traffic: Found | null;
  /** Of the whole schedule, where its kernel is meant. */
  steps: StepEdit[] | null;
}

/** The stage of both versions to show: the one that is wanted, or the first that both have. */
export function stageOf(a: Doc, b: Doc, wanted: string | undefined): Stage {
  const both = STAGES.filter((kind) => lastOf(a, kind) && lastOf(b, kind));
  return both.find((kind) => kind === wanted) ?? both[0] ?? "loops";
}

/** Figures of a side at a GPU; null while they are awaited. */
export function figures(side: Side, gpu: string | undefined): { gpu: Gpu; at: At } | null {
  if (!side.traffic) return null;
  const chosen = gpuOf(side.traffic, gpu);
  return { gpu: chosen, at: formAt(side.traffic, chosen, formOf(side.traffic, side.stop)) };
}

/** Sizes of tiles and parts that the schedule's steps give, up to the stop. */
export function tiles(doc: Doc, stop: Stop): string {
  const found: string[] = [];
  for (const step of doc.trace.steps) {
    if (stop.kind === "loops" && step.index > stop.step) break;
    if (step.error) continue;
    const { block, loop, tiles: sizes, factors } = step.arguments as { block?: string; loop?: string; tiles?: Record<string, number>; factors?: (number | null)[] };
    if (sizes) found.push(`${block ?? ""} ${Object.entries(sizes).map(([k, v]) => `${k}=${v}`).join(", ")}`.trim());
    else if (Array.isArray(factors)) found.push(`${loop ?? ""} ${factors.map((f) => f ?? "rest").join(" × ")}`.trim());
  }
  return found.join("; ") || "none";
}

/** "4 × 4 × 1 blocks of 4 warps" for each launch; "" where no kernel is meant. */
export function launches(doc: Doc, stop: Stop): string {
  const kernel = doc.trace.kernel;
  if (stop.kind === "loops" || !kernel) return "";
  return kernel.launches
    .map((launch) => {
      const { grid, num_warps, num_stages } = launch as { grid?: number[]; num_warps?: number | null; num_stages?: number | null };
      const more = [num_warps && `${num_warps} warps`, num_stages && `${num_stages} stages`].filter(Boolean).join(", ");
      return `${(grid ?? []).join(" × ")} blocks${more ? ` (${more})` : ""}`;
    })
    .join("; ");
}

/** Steps that only one side has, in order: "−" the left one's, "+" the right one's. */
export function stepChanges(a: readonly StepEdit[], b: readonly StepEdit[]): { sign: "+" | "−"; text: string }[] {
  const [x, y] = [a, b].map((steps) => steps.map((s) => callText(s.primitive, s.arguments))) as [string[], string[]];
  const out: { sign: "+" | "−"; text: string }[] = [];
  let i = 0;
  let j = 0;
  for (const [p, q] of [...lcs(x, y), [x.length, y.length] as [number, number]]) {
    while (i < p) out.push({ sign: "−", text: x[i++]! });
    while (j < q) out.push({ sign: "+", text: y[j++]! });
    i++;
    j++;
  }
  return out;
}

export const sideName = (side: Side): string => (side.steps ? side.name : stopName(side.stop));
