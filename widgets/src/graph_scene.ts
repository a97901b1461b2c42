// What a graph shows at a fold state: boxes of nodes, of folded groups and of the frames of unfolded ones, and the links
// between them. Places depend on the record and on what is unfolded, not on the phase: nothing moves from step to step.

import type { Group, Groups } from "./graph_groups";
import { type Box, type Item, type Placed, place } from "./layers";
import { boxOf, caption, type Layout, nodeWidth } from "./layout";
import type { EdgeKind, Graph, GraphEdge, GraphNode } from "./record";

export interface Shape {
  id: string;
  box: Box;
  node: GraphNode | null;
  group: Group | null;
  /** Of a group: whether its content is drawn in it. */
  open: boolean;
}
export interface Scene {
  width: number;
  height: number;
  shapes: Map<string, Shape>;
  /** The shapes that a node is in, from the outside, itself last. */
  path(node: string): readonly string[];
}
export interface Link {
  source: string;
  target: string;
  kind: EdgeKind;
  edges: GraphEdge[];
  fresh: boolean;
}

const HEIGHT = 42;
const PAD = 12;
const TITLE = 24;
/** Width at which rows of a large graph wrap, in points: about what a pane shows at a size that can be read. */
export const WRAP = 780;
const LABEL = 30;
/** An unfolded group that is narrower than this on the screen is drawn without its content. */
const TINY = 72;

export const groupId = (group: Group): string => `group:${group.id}`;
export const shortLabel = (label: string): string => (label.length > LABEL ? `${label.slice(0, LABEL - 1)}…` : label);
const count = (n: number, one: string): string => `${n} ${one}${n === 1 ? "" : "s"}`;
export const groupCaption = (group: Group): string => count(group.nodes.length, "block");

/** Everything at its place in the record; groups play no part. */
export function flatScene(union: Graph, layout: Layout): Scene {
  const shapes = new Map<string, Shape>();
  for (const node of union.nodes) shapes.set(node.id, { id: node.id, box: boxOf(layout, node), node, group: null, open: false });
  return { width: layout.width, height: layout.height, shapes, path: (id) => [id] };
}

/** The places in one group, and those in the unfolded ones of it. */
type Level = Placed & { inner: Map<string, Level> };

/** Groups, of which those with an id in `unfolded` are drawn as frames around their content. */
export function foldedScene(union: Graph, groups: Groups, unfolded: ReadonlySet<string>): Scene {
  const nodes = new Map(union.nodes.map((n) => [n.id, n]));
  const paths = new Map<string, string[]>();
  const path = (id: string): readonly string[] => {
    let found = paths.get(id);
    if (!found) {
      found = [id];
      for (let g = groups.of.get(id) ?? null; g; g = g.parent) found.unshift(groupId(g));
      paths.set(id, found);
    }
    return found;
  };
  // The edges of each level: between the two things of one group that an edge leads from and to.
  const levels = new Map<string, [string, string][]>();
  for (const { source, target } of union.edges) {
    const [a, b] = [path(source), path(target)];
    let at = 0;
    while (at < a.length && at < b.length && a[at] === b[at]) at++;
    if (at >= a.length || at >= b.length) continue;
    const level = at ? a[at - 1]! : "";
    const edges = levels.get(level) ?? [];
    levels.set(level, edges);
    edges.push([a[at]!, b[at]!]);
  }
  const shapes = new Map<string, Shape>();
  const put = (children: readonly (Group | string)[], level: string, depth: number): Level => {
    const inner = new Map<string, Level>();
    const items = children.map((child): Item => {
      if (typeof child === "string") return { id: child, width: nodeWidth(nodes.get(child)!), height: HEIGHT };
      const id = groupId(child);
      const own = Math.max(96, 26 + 7 * Math.max(shortLabel(child.label).length + 2, 0.86 * groupCaption(child).length));
      if (!unfolded.has(child.id)) return { id, width: own, height: HEIGHT + 6 };
      const made = put(child.children, id, depth + 1);
      inner.set(id, made);
      return { id, width: Math.max(own, made.width + 2 * PAD), height: made.height + TITLE + 2 * PAD };
    });
    const placed = place(items, levels.get(level) ?? [], Math.max(320, WRAP - 70 * depth));
    return { width: placed.width, height: placed.height, boxes: placed.boxes, inner };
  };
  const settle = (children: readonly (Group | string)[], made: Level, left: number, top: number) => {
    for (const child of children) {
      const id = typeof child === "string" ? child : groupId(child);
      const at = made.boxes.get(id)!;
      const box = { ...at, x: at.x + left, y: at.y + top };
      const open = made.inner.get(id);
      shapes.set(id, { id, box, node: typeof child === "string" ? nodes.get(child)! : null, group: typeof child === "string" ? null : child, open: open !== undefined });
      if (open && typeof child !== "string") settle(child.children, open, box.x - box.width / 2 + PAD, box.y - box.height / 2 + TITLE + PAD);
    }
  };
  const top = put(groups.top, "", 0);
  settle(groups.top, top, PAD, PAD);
  return { width: top.width + 2 * PAD, height: top.height + 2 * PAD, shapes, path };
}

const WORST: Record<EdgeKind, number> = { plain: 0, fused: 1, repaired: 2, early: 3 };
export const worst = (a: EdgeKind, b: EdgeKind): EdgeKind => (WORST[b] > WORST[a] ? b : a);

/** What of a scene is drawn for one phase, at one scale. */
export interface Content {
  /** The shapes, in reading order; of a group the nodes that the phase has. */
  shapes: { shape: Shape; nodes: string[]; fresh: number; inside: EdgeKind }[];
  links: Link[];
  /** The drawn shape that a node is, or is in. */
  rep(node: string): string | null;
}

/** The shapes and links of a phase's graph; `before` is the graph of the phase before, to tell what is new. */
export function contentOf(scene: Scene, graph: Graph, before: Graph | null, scale: number): Content {
  const reps = new Map<string, string>();
  const shown = new Map<string, { shape: Shape; nodes: string[]; fresh: number; inside: EdgeKind }>();
  const old = before && new Set(before.nodes.map((n) => n.id));
  const closed = (shape: Shape) => !shape.open || shape.box.width * scale < TINY;
  for (const node of graph.nodes) {
    const fresh = old !== null && !old.has(node.id) ? 1 : 0;
    for (const id of scene.path(node.id)) {
      const shape = scene.shapes.get(id);
      if (!shape) break;
      let entry = shown.get(id);
      if (!entry) shown.set(id, (entry = { shape: shape.node ? { ...shape, node } : { ...shape, open: !closed(shape) }, nodes: [], fresh: 0, inside: "plain" }));
      entry.nodes.push(node.id);
      entry.fresh += fresh;
      if (shape.group && !closed(shape)) continue;
      reps.set(node.id, id);
      break;
    }
  }
  const oldEdges = before && new Map(before.edges.map((e) => [`${e.source}→${e.target}→${e.tensor}`, e.kind]));
  const links = new Map<string, Link>();
  for (const edge of graph.edges) {
    const [source, target] = [reps.get(edge.source), reps.get(edge.target)];
    if (!source || !target) continue;
    const fresh = oldEdges !== null && oldEdges.get(`${edge.source}→${edge.target}→${edge.tensor}`) !== edge.kind;
    if (source === target) {
      const entry = shown.get(source)!;
      entry.inside = worst(entry.inside, edge.kind);
      continue;
    }
    const key = `${source}→${target}${shown.get(source)!.shape.group || shown.get(target)!.shape.group ? "" : `→${edge.tensor}`}`;
    const link = links.get(key);
    if (!link) links.set(key, { source, target, kind: edge.kind, edges: [edge], fresh });
    else {
      link.kind = worst(link.kind, edge.kind);
      link.edges.push(edge);
      link.fresh ||= fresh;
    }
  }
  return { shapes: [...shown.values()], links: [...links.values()], rep: (id) => reps.get(id) ?? null };
}

export const wordsOf = (shape: Shape): string => (shape.node ? caption(shape.node) : groupCaption(shape.group!));
