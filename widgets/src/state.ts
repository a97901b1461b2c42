// What the person chose, and the pure functions that change it. The view is data: saved, shared, validated, never run.

import { allGroups } from "./groups";
import { type Doc, type Stop, stopBefore } from "./record";

export interface View {
  step: number;
  phase: string;
  /** The tab chosen in each slot, and small choices such as "quiet": "hide". */
  panes: Record<string, string>;
  selection: string[];
  /** Keys of the two stops compared; "" is the stop before, or the current one. */
  compare: { left: string; right: string } | null;
  search: string;
  iteration: number;
  hidden: string[];
  sizes: Record<string, number>;
  /** Ids of the loops of code, and of the groups of steps, that are folded. */
  folded: string[];
}

export const EMPTY: View = {
  step: 0,
  phase: "",
  panes: {},
  selection: [],
  compare: null,
  search: "",
  iteration: 0,
  hidden: [],
  sizes: {},
  folded: [],
};

export type Action =
  | { type: "go"; key: string }
  | { type: "move"; by: "first" | "back" | "next" | "last" }
  | { type: "select"; ids: string[]; add?: boolean }
  | { type: "clear" }
  | { type: "tab"; slot: string; tab: string }
  | { type: "show"; slot: string }
  /** `large` names the panes of which one always stays visible. */
  | { type: "hide"; slot: string; large: readonly string[] }
  | { type: "size"; name: string; value: number }
  | { type: "compare"; left?: string; right?: string }
  | { type: "compareOff" }
  | { type: "search"; text: string }
  | { type: "iteration"; to: number }
  | { type: "fold"; ids: readonly string[]; on: boolean }
  /** `panes` names those that a view may hide. */
  | { type: "load"; view: unknown; panes: readonly string[] };

/** The stop that a view stands at; the first one where it names none. */
export function stopOf(view: View, doc: Doc): Stop {
  return (
    doc.byKey.get(view.step < 0 ? view.phase : `${view.step}.${view.phase}`) ??
    doc.stops.find((s) => s.step === view.step) ??
    doc.stops[0]!
  );
}

/** The stops to walk through: all, or those that change something; of a folded group its last one; always the current one. */
export function shownStops(view: View, doc: Doc): Stop[] {
  const quiet = view.panes.quiet === "hide";
  const folded = view.folded.length ? allGroups(doc).filter((g) => view.folded.includes(g.id)) : [];
  if (!quiet && !folded.length) return doc.stops;
  const now = stopOf(view, doc);
  const skipped = new Set(folded.flatMap((g) => g.stops.slice(0, -1)));
  const ends = new Set(folded.map((g) => g.stops[g.stops.length - 1]!));
  return doc.stops.filter((s) => s === now || (!skipped.has(s) && (!quiet || !s.quiet || ends.has(s))));
}

/** The two stops that are compared; null where nothing is. */
export function compared(view: View, doc: Doc): { left: Stop; right: Stop } | null {
  if (!view.compare) return null;
  const right = doc.byKey.get(view.compare.right) ?? stopOf(view, doc);
  const left = doc.byKey.get(view.compare.left) ?? stopBefore(doc, right) ?? doc.stops[Math.max(0, doc.stops.indexOf(right) - 1)]!;
  return { left, right };
}

const at = (view: View, stop: Stop): View =>
  view.step === stop.step && view.phase === stop.phase ? view : { ...view, step: stop.step, phase: stop.phase };

const clamp = (x: number, low: number, high: number): number => Math.min(Math.max(x, low), high);

export function reduce(view: View, action: Action, doc: Doc): View {
  switch (action.type) {
    case "go": {
      const stop = doc.byKey.get(action.key);
      return stop ? at(view, stop) : view;
    }
    case "move": {
      const stops = shownStops(view, doc);
      const now = stops.indexOf(stopOf(view, doc));
      const to = { first: 0, back: now - 1, next: now + 1, last: stops.length - 1 }[action.by];
      return at(view, stops[clamp(to, 0, stops.length - 1)]!);
    }
    case "select": {
      if (!action.add) {
        const same = action.ids.length === view.selection.length && action.ids.every((x, n) => x === view.selection[n]);
        return { ...view, selection: same ? [] : [...action.ids] };
      }
      const has = action.ids.every((id) => view.selection.includes(id));
      const selection = has
        ? view.selection.filter((id) => !action.ids.includes(id))
        : [...new Set([...view.selection, ...action.ids])];
      return { ...view, selection };
    }
    case "clear":
      return view.selection.length ? { ...view, selection: [] } : view;
    case "tab":
      return view.panes[action.slot] === action.tab ? view : { ...view, panes: { ...view.panes, [action.slot]: action.tab } };
    case "show":
      return view.hidden.includes(action.slot) ? { ...view, hidden: view.hidden.filter((x) => x !== action.slot) } : view;
    case "hide": {
      const hidden = [...view.hidden, action.slot];
      return view.hidden.includes(action.slot) || action.large.every((s) => hidden.includes(s)) ? view : { ...view, hidden };
    }
    case "size":
      return { ...view, sizes: { ...view.sizes, [action.name]: action.value } };
    case "compare":
      return { ...view, compare: { left: action.left ?? view.compare?.left ?? "", right: action.right ?? view.compare?.right ?? "" } };
    case "compareOff":
      return view.compare ? { ...view, compare: null } : view;
    case "search":
      return view.search === action.text ? view : { ...view, search: action.text };
    case "iteration":
      return view.iteration === action.to || action.to < 0 ? view : { ...view, iteration: Math.floor(action.to) };
    case "fold": {
      const rest = view.folded.filter((id) => !action.ids.includes(id));
      const folded = action.on ? [...rest, ...action.ids] : rest;
      return folded.length === view.folded.length && folded.every((id) => view.folded.includes(id)) ? view : { ...view, folded };
    }
    case "load":
      return readView(action.view, view, action.panes);
  }
}

const isRecord = (x: unknown): x is Record<string, unknown> => typeof x === "object" && x !== null && !Array.isArray(x);
const strings = (x: unknown): string[] | null => (Array.isArray(x) && x.every((s) => typeof s === "string") ? x.slice(0, 1000) : null);

/** A view from anywhere: what has the right type is taken, everything else stays as in `base`; `panes` may be hidden. */
export function readView(data: unknown, base: View, panes: readonly string[]): View {
  if (!isRecord(data)) return base;
  const view: View = { ...base };
  if (Number.isInteger(data.step)) view.step = data.step as number;
  if (typeof data.phase === "string") view.phase = data.phase;
  if (isRecord(data.panes))
    view.panes = Object.fromEntries(Object.entries(data.panes).filter((e): e is [string, string] => typeof e[1] === "string"));
  view.selection = strings(data.selection) ?? view.selection;
  if (data.compare === null) view.compare = null;
  else if (isRecord(data.compare)) {
    const { left, right } = data.compare;
    view.compare = { left: typeof left === "string" ? left : "", right: typeof right === "string" ? right : "" };
  }
  if (typeof data.search === "string") view.search = data.search.slice(0, 200);
  if (Number.isInteger(data.iteration) && (data.iteration as number) >= 0) view.iteration = data.iteration as number;
  const hidden = strings(data.hidden);
  if (hidden) view.hidden = hidden.filter((x) => panes.includes(x));
  view.folded = strings(data.folded) ?? view.folded;
  if (isRecord(data.sizes))
    view.sizes = Object.fromEntries(
      Object.entries(data.sizes).filter((e): e is [string, number] => typeof e[1] === "number" && Number.isFinite(e[1]) && e[1] > 0),
    );
  return view;
}
