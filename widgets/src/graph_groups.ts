// Groups of a large graph: runs of stages that belong together, in groups of groups, few enough to be read at once.
//
// The stages stand in an order in which each is behind what it reads, so that a run of them never reads in a circle.
// They are cut where names change ("l3_max" and "l3_sum" are of "l3"), or else where the fewest values cross.

import type { Graph, GraphNode } from "./record";

export interface Group {
  /** Its place: "2/0" is the first group in the third; the same in every record of one definition. */
  id: string;
  label: string;
  parent: Group | null;
  children: (Group | string)[];
  /** Nodes in it and in the groups in it. */
  nodes: string[];
}
export interface Groups {
  /** What stands in no group: groups, and nodes that many of them read. */
  top: (Group | string)[];
  all: Map<string, Group>;
  /** The innermost group of a node. */
  of: Map<string, Group | null>;
}

/** Nodes of a group of nodes: at least and at most, where names do not say otherwise. */
const FEW = 4;
const MANY = 14;
/** As many groups can be read at once. */
const MOST = 18;

/** The part of a name that tells which layer or module it is of: "l3" of "l3_max", "s" of "s_max"; "" if none does. */
export function prefixOf(name: string): string {
  const found = /^.*?\d+(?=[_.:/-])/.exec(name) ?? /^[^_.:/-]+(?=[_.:/-])/.exec(name);
  return found ? found[0] : "";
}

/** Nodes, each behind what it reads, and near it; stages of one prefix together where that is possible. */
export function ordered(nodes: readonly GraphNode[], edges: readonly (readonly [string, string])[]): string[] {
  const ids = new Set(nodes.map((n) => n.id));
  const readers = new Map<string, Set<string>>();
  const missing = new Map<string, number>();
  for (const [a, b] of edges) {
    if (a === b || !ids.has(a) || !ids.has(b)) continue;
    const of = readers.get(a) ?? new Set();
    readers.set(a, of);
    if (of.has(b)) continue;
    of.add(b);
    missing.set(b, (missing.get(b) ?? 0) + 1);
  }
  const ready = nodes.filter((n) => !missing.get(n.id)).map((n) => n.id).reverse();
  const done: string[] = [];
  const seen = new Set<string>();
  let last = "";
  while (ready.length) {
    let at = ready.length - 1;
    if (last) for (let n = at; n >= 0; n--) if (prefixOf(ready[n]!) === last) { at = n; break; }
    const [id] = ready.splice(at, 1) as [string];
    last = prefixOf(id);
    done.push(id);
    seen.add(id);
    for (const b of [...(readers.get(id) ?? [])].reverse()) {
      missing.set(b, missing.get(b)! - 1);
      if (!missing.get(b)) ready.push(b);
    }
  }
  return [...done, ...nodes.filter((n) => !seen.has(n.id)).map((n) => n.id)]; // what reads in a circle
}

/** How many items cross each place between two neighbours; `at[k]` is before the k-th. */
function crossing(count: number, edges: readonly (readonly [number, number])[]): number[] {
  const farthest = new Map<number, number>();
  for (const [a, b] of edges) if (b > a) farthest.set(a, Math.max(farthest.get(a) ?? 0, b));
  const change = new Array<number>(count + 2).fill(0);
  for (const [a, b] of farthest) (change[a + 1]!++, change[b + 1]!--);
  let now = 0;
  return change.slice(0, count + 1).map((by) => (now += by));
}

/** Where runs of `few` to `many` items begin, so that the fewest edges cross between them; [0] for one run. */
export function runsOf(count: number, cost: readonly number[], few: number, many: number): number[] {
  if (count <= many) return [0];
  const best = new Array<number>(count + 1).fill(Infinity);
  const from = new Array<number>(count + 1).fill(0);
  best[0] = 0;
  for (let end = 1; end <= count; end++)
    for (let length = Math.min(few, end); length <= Math.min(many, end); length++) {
      const start = end - length;
      // Of cuts that cost the same the more even ones.
      const price = best[start]! + (start ? cost[start]! : 0) + (0.3 * (length - (few + many) / 2) ** 2) / many;
      if (price < best[end]!) [best[end], from[end]] = [price, start];
    }
  const starts: number[] = [];
  for (let at = count; at > 0; at = from[at]!) starts.unshift(from[at]!);
  return starts;
}

/** Runs of one prefix; a name without one joins the run before it. Null if names tell little. */
function named(order: readonly string[]): number[] | null {
  const starts: number[] = [];
  let now = "";
  order.forEach((id, n) => {
    const prefix = prefixOf(id);
    if (n === 0 || (prefix && prefix !== now)) starts.push(n);
    if (prefix || n === 0) now = prefix;
  });
  return starts.length > 1 && starts.length * 3 <= order.length ? starts : null;
}

const slices = <T>(items: readonly T[], starts: readonly number[]): T[][] => starts.map((from, n) => items.slice(from, starts[n + 1] ?? items.length));

const between = (first: string, last: string): string => (first === last ? first : `${first} … ${last}`);
const endsOf = (label: string): [string, string] => {
  const [first, last] = label.split(" … ") as [string, string?];
  return [first, last ?? first];
};

/** The groups of a graph: `definition` is the graph of the definition, `union` that of all phases together.

A block that a step made is in the group of its stage (`origins`), or else in that of a neighbour. */
export function groupsOf(definition: Graph, union: Graph, origins: ReadonlyMap<string, string>): Groups {
  const stages = definition.nodes.filter((n) => n.kind !== "input");
  const edges = definition.edges.map((e) => [e.source, e.target] as const);
  const order = ordered(stages, edges);
  const at = new Map(order.map((id, n) => [id, n]));
  const inner = edges.flatMap(([a, b]): [number, number][] => (at.has(a) && at.has(b) ? [[at.get(a)!, at.get(b)!]] : []));
  const price = crossing(order.length, inner);
  const leaves = slices(order, named(order) ?? runsOf(order.length, price, FEW, MANY)).flatMap((run) => {
    if (run.length <= 2 * MANY) return [run];
    const first = at.get(run[0]!)!;
    return slices(run, runsOf(run.length, price.slice(first, first + run.length + 1), FEW, MANY));
  });

  let level: Group[] = leaves.map((nodes) => {
    const prefixes = new Set(nodes.map(prefixOf).filter(Boolean));
    const label = prefixes.size === 1 && nodes.length > 1 ? [...prefixes][0]! : between(nodes[0]!, nodes[nodes.length - 1]!);
    return { id: "", label, parent: null, children: [...nodes], nodes: [...nodes] };
  });
  // Two runs of one name are told apart by their first stages.
  const used = new Map<string, number>();
  for (const g of level) used.set(g.label, (used.get(g.label) ?? 0) + 1);
  for (const g of level) if (used.get(g.label)! > 1) g.label = between(g.nodes[0]!, g.nodes[g.nodes.length - 1]!);
  const bottom = level;
  while (level.length > MOST) {
    const each = Math.max(2, Math.ceil(level.length ** (1 / Math.ceil(Math.log(level.length) / Math.log(MOST)))));
    const of = new Map(level.flatMap((g, n) => g.nodes.map((id) => [id, n])));
    const crossings = crossing(level.length, edges.flatMap(([a, b]): [number, number][] => (of.has(a) && of.has(b) ? [[of.get(a)!, of.get(b)!]] : [])));
    const starts = runsOf(level.length, crossings, Math.max(2, Math.floor(0.7 * each)), Math.ceil(1.3 * each));
    level = slices(level, starts).map((groups) => {
      const made: Group = { id: "", label: between(endsOf(groups[0]!.label)[0], endsOf(groups[groups.length - 1]!.label)[1]), parent: null, children: groups, nodes: groups.flatMap((g) => g.nodes) };
      for (const g of groups) g.parent = made;
      return made;
    });
  }

  // A group of one stage is that stage.
  const single = (g: Group): Group | string => (g.nodes.length === 1 ? g.nodes[0]! : g);
  const of = new Map<string, Group | null>();
  for (const g of bottom) {
    for (const id of g.nodes) of.set(id, g.nodes.length > 1 ? g : g.parent);
    if (g.nodes.length === 1 && g.parent) g.parent.children = g.parent.children.map((child) => (child === g ? g.nodes[0]! : child));
  }
  const top = level.map(single);
  const loose: string[] = [];
  const add = (id: string, to: Group | null, front = false) => {
    of.set(id, to);
    if (!to) return void loose.push(id);
    for (let g: Group | null = to; g; g = g.parent) front ? g.nodes.unshift(id) : g.nodes.push(id);
    front ? to.children.unshift(id) : to.children.push(id);
  };
  // An input is with what reads it first; one that many groups read stands by itself.
  const readers = new Map<string, string[]>();
  for (const [a, b] of edges) readers.set(a, [...(readers.get(a) ?? []), b]);
  for (const n of definition.nodes) {
    if (n.kind !== "input") continue;
    const near = (readers.get(n.id) ?? []).filter((id) => at.has(id)).sort((a, b) => at.get(a)! - at.get(b)!);
    const groups = new Set(near.map((id) => of.get(id)));
    add(n.id, groups.size > 2 && loose.length < 6 ? null : (near.length ? (of.get(near[0]!) ?? null) : null), true);
  }
  const rest = union.nodes.filter((n) => !of.has(n.id));
  for (let tries = 0; tries < 3 && rest.length; tries++)
    for (const n of rest.splice(0)) {
      const origin = of.get(origins.get(n.id) ?? "");
      const beside = origin ?? union.edges.flatMap((e) => (e.target === n.id ? [of.get(e.source)] : e.source === n.id ? [of.get(e.target)] : [])).find(Boolean);
      if (beside) add(n.id, beside);
      else rest.push(n);
    }
  for (const n of rest) add(n.id, null);

  const all = new Map<string, Group>();
  const name = (group: Group, id: string) => {
    group.id = id;
    all.set(id, group);
    group.children.forEach((child, n) => typeof child !== "string" && name(child, `${id}/${n}`));
  };
  top.forEach((g, n) => typeof g !== "string" && name(g, String(n)));
  return { top: [...loose, ...top], all, of };
}
