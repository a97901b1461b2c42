// What of a record's graphs is the same at each step: its groups, and where everything stands.

import { FOLDABLE_FROM, written } from "./graph_folds";
import { type Groups, groupsOf } from "./graph_groups";
import { type Scene, flatScene, foldedScene } from "./graph_scene";
import { layoutOf } from "./layout";
import type { Doc, Graph, Stop } from "./record";

export interface Plan {
  nodes: number;
  groups: Groups;
  scenes: Map<string, Scene>;
}
const plans = new WeakMap<Doc, Plan>();

/** What of a record's graphs is the same at each step. */
export function planOf(doc: Doc): Plan {
  let plan = plans.get(doc);
  if (!plan) {
    const union = doc.union();
    const definition = doc.stops.find((s) => s.graph)?.graph ?? union;
    plan = { nodes: union.nodes.length, groups: union.nodes.length < FOLDABLE_FROM ? { top: [], all: new Map(), of: new Map() } : groupsOf(definition, union, doc.origins()), scenes: new Map() };
    plans.set(doc, plan);
  }
  return plan;
}

/** Where everything stands with these groups unfolded; null: there are no groups. */
export function sceneOf(doc: Doc, open: ReadonlySet<string> | null): Scene {
  const { scenes, groups } = planOf(doc);
  const key = open ? written(open) : "flat";
  let scene = scenes.get(key);
  if (!scene) {
    if (scenes.size > 20) scenes.clear();
    scenes.set(key, (scene = open ? foldedScene(doc.union(), groups, open) : flatScene(doc.union(), layoutOf(doc))));
  }
  return scene;
}

/** The stop whose graph is shown at a stop: itself, or the last one that has a graph. */
export const graphStop = (doc: Doc, stop: Stop): (Stop & { graph: Graph }) | null => ((stop.graph ? stop : [...doc.stops].reverse().find((s) => s.graph)) ?? null) as (Stop & { graph: Graph }) | null;

/** The graph before that of a stop; null if there is none. */
export const graphBefore = (doc: Doc, stop: Stop): Graph | null => [...doc.stops.slice(0, doc.stops.indexOf(stop))].reverse().find((s) => s.graph)?.graph ?? null;
