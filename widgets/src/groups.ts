// Steps that fold into one: those of a template, runs of one primitive, and the phases of a step.

import type { Doc, StepEntry, Stop } from "./record";

export interface Group {
  id: string;
  title: string;
  kind: "template" | "run" | "step";
  /** How many steps, or phases, it holds. */
  count: number;
  /** What it holds, in order; of a step with phases nothing, since its stops are what it holds. */
  inner: Entry[];
  stops: Stop[];
}
/** A group, or a step of a single stop. */
export type Entry = Group | { kind: "stop"; entry: StepEntry; stops: Stop[] };

/** So many steps of one primitive, one after another, are a run. */
const RUN = 3;

/** Cuts a list where `key` changes. */
function runs<T>(items: readonly T[], key: (item: T) => string): T[][] {
  const found: T[][] = [];
  for (const item of items) {
    const last = found[found.length - 1];
    if (last && key(last[0]!) === key(item)) last.push(item);
    else found.push([item]);
  }
  return found;
}

const trees = new WeakMap<Doc, Entry[]>();

/** The steps of a record as a tree. */
export function groupsOf(doc: Doc): Entry[] {
  const known = trees.get(doc);
  if (known) return known;
  const step = new Map(doc.trace.steps.map((s) => [`${s.index}${s.error ? "!" : ""}`, s]));
  const of = (e: StepEntry) => step.get(`${e.index}${e.error ? "!" : ""}`);
  const leaf = (entry: StepEntry): Entry =>
    entry.stops.length > 1
      ? { kind: "step", id: `step:${entry.index}${entry.error ? "!" : ""}`, title: entry.call, count: entry.stops.length, inner: [], stops: entry.stops }
      : { kind: "stop", entry, stops: entry.stops };
  const byPrimitive = (entries: readonly StepEntry[]): Entry[] =>
    runs(entries, (e) => (e.stops.length > 1 || e.error || e.remark ? `${e.index} alone` : (of(e)?.primitive ?? ""))).flatMap((run) =>
      run.length < RUN
        ? run.map(leaf)
        : [{ kind: "run" as const, id: `run:${of(run[0]!)?.primitive}@${run[0]!.index}`, title: of(run[0]!)?.primitive ?? "", count: run.length, inner: run.map(leaf), stops: run.flatMap((e) => e.stops) }],
    );
  const tree = runs(doc.steps, (e) => (e.error ? "" : (of(e)?.template ?? ""))).flatMap((run): Entry[] => {
    const template = of(run[0]!)?.template ?? "";
    if (!template || run[0]!.error || run.length < 2) return byPrimitive(run);
    return [{ kind: "template", id: `template:${template}@${run[0]!.index}`, title: template, count: run.length, inner: byPrimitive(run), stops: run.flatMap((e) => e.stops) }];
  });
  trees.set(doc, tree);
  return tree;
}

/** Every group, outer ones first. */
export function allGroups(doc: Doc): Group[] {
  const visit = (entries: readonly Entry[]): Group[] => entries.flatMap((e) => (e.kind === "stop" ? [] : [e, ...visit(e.inner)]));
  return visit(groupsOf(doc));
}

/** The outermost folded group that holds a stop. */
export const foldedAround = (doc: Doc, folded: readonly string[], stop: Stop): Group | null =>
  folded.length ? (allGroups(doc).find((g) => folded.includes(g.id) && g.stops.includes(stop)) ?? null) : null;

/** The innermost group that holds a stop, and all around it, innermost first. */
export const groupsAround = (doc: Doc, stop: Stop): Group[] => allGroups(doc).filter((g) => g.stops.includes(stop)).reverse();
