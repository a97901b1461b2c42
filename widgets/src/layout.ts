// Where the graph's nodes stand. Positions come from the record; where it has none, one layered layout of all phases
// together is made here, so that a node keeps its place from phase to phase.

import { type Box, type Item, place } from "./layers";
import type { Doc, Graph, GraphNode } from "./record";

export type { Box } from "./layers";
export interface Layout {
  width: number;
  height: number;
  /** Of the nodes that have no position of their own, and in a record with positions of all others too. */
  boxes: Map<string, Box>;
}

const GAP_X = 46;
const MARGIN = 12;
const GAP_Y = 22;
const HEIGHT = 42;

export const nodeWidth = (n: GraphNode): number => Math.max(64, 22 + 7 * Math.max(n.label.length, 0.86 * caption(n).length));

export function caption(n: GraphNode): string {
  return n.detail || n.role;
}

/** The size of a name in a graph that is shown at `scale`: 10 px on the screen, where its box has the room for it. */
export const fittingFont = (name: string, box: Box, scale: number): number => Math.max(6, Math.min(10 / scale, (box.width - 6) / (0.6 * Math.max(1, name.length)), 0.8 * box.height));

const cache = new WeakMap<Doc, Layout>();

/** The layout for every graph of the record. */
export function layoutOf(doc: Doc): Layout {
  let layout = cache.get(doc);
  if (!layout) cache.set(doc, (layout = compute([doc.union()])));
  return layout;
}

const ownBox = (n: GraphNode): Box => ({ x: n.x!, y: n.y!, width: n.width ?? nodeWidth(n), height: n.height ?? HEIGHT });

/** The record's positions where it has some, else layers, left to right.

A graph without positions, as of a refused step, has its nodes where the others have them; new ones stand in a row below. */
export function compute(graphs: Graph[]): Layout {
  const nodes = graphs.flatMap((g) => g.nodes);
  const placed = nodes.filter((n) => n.x !== null && n.y !== null);
  if (!placed.length) return layered(graphs);
  const boxes = new Map<string, Box>();
  let width = 0;
  let height = 0;
  for (const n of placed) boxes.set(n.id, ownBox(n));
  for (const g of graphs) [width, height] = [Math.max(width, g.width ?? 0), Math.max(height, g.height ?? 0)];
  for (const b of boxes.values()) [width, height] = [Math.max(width, b.x + b.width / 2), Math.max(height, b.y + b.height / 2)];
  const unplaced = new Map(nodes.filter((n) => !boxes.has(n.id)).map((n) => [n.id, n]));
  let x = 12;
  for (const [id, n] of unplaced) {
    const box = { x: x + nodeWidth(n) / 2, y: height + GAP_Y + HEIGHT / 2, width: nodeWidth(n), height: HEIGHT };
    boxes.set(id, box);
    x += box.width + GAP_X;
  }
  return unplaced.size ? { width: Math.max(width, x), height: height + 2 * GAP_Y + HEIGHT, boxes } : { width, height, boxes };
}

/** Layers of all graphs together. */
export function layered(graphs: Graph[]): Layout {
  const items = new Map<string, Item>();
  for (const g of graphs)
    for (const n of g.nodes) items.set(n.id, { id: n.id, width: Math.max(items.get(n.id)?.width ?? 0, nodeWidth(n)), height: HEIGHT });
  const made = place([...items.values()], graphs.flatMap((g) => g.edges.map((e) => [e.source, e.target] as const)));
  const boxes = new Map([...made.boxes].map(([id, b]) => [id, { ...b, x: b.x + MARGIN, y: b.y + MARGIN }]));
  return { width: made.width + 2 * MARGIN, height: made.height + 2 * MARGIN, boxes };
}

/** The box of a node in one graph. */
export function boxOf(layout: Layout, n: GraphNode): Box {
  if (n.x !== null && n.y !== null) return ownBox(n);
  return layout.boxes.get(n.id) ?? { x: 0, y: 0, width: nodeWidth(n), height: HEIGHT };
}

/** The line of an edge: through the record's points, or a curve from side to side that passes over what stands between. */
export function edgePath(from: Box, to: Box, points: readonly [number, number][], lane: number): string {
  const f = (v: number) => (Math.round(v * 10) / 10).toString();
  if (points.length > 1) return smooth(points, f);
  if (to.x - to.width / 2 > from.x + from.width / 2) {
    const x1 = from.x + from.width / 2;
    const x2 = to.x - to.width / 2 - 2;
    const dx = Math.max(18, (x2 - x1) * 0.45);
    const far = x2 - x1 > 160 && Math.abs(to.y - from.y) < 30;
    const lift = far ? (30 + 12 * lane) * (lane % 2 ? -1 : 1) * -1 : 0;
    const y1 = from.y + (far ? Math.sign(lift) * 8 : 0);
    const y2 = to.y + (far ? Math.sign(lift) * 8 : 0);
    return `M${f(x1)},${f(y1)} C${f(x1 + dx)},${f(y1 + lift)} ${f(x2 - dx)},${f(y2 + lift)} ${f(x2)},${f(y2)}`;
  }
  // Above or below, as in the next row: from edge to edge.
  if (Math.abs(to.y - from.y) > (to.height + from.height) / 2) {
    const sign = to.y > from.y ? 1 : -1;
    const y1 = from.y + (sign * from.height) / 2;
    const y2 = to.y - (sign * to.height) / 2 - sign * 2;
    return `M${f(from.x)},${f(y1)} C${f(from.x)},${f((y1 + y2) / 2)} ${f(to.x)},${f((y1 + y2) / 2)} ${f(to.x)},${f(y2)}`;
  }
  // Backwards: out below, and in below.
  const y1 = from.y + from.height / 2;
  const y2 = to.y + to.height / 2 + 2;
  const low = Math.max(y1, y2) + 18 + 6 * lane;
  return `M${f(from.x)},${f(y1)} C${f(from.x)},${f(low)} ${f(to.x)},${f(low)} ${f(to.x)},${f(y2)}`;
}

function smooth(points: readonly [number, number][], f: (v: number) => string): string {
  let d = `M${f(points[0]![0])},${f(points[0]![1])}`;
  for (let n = 0; n < points.length - 1; n++) {
    const [p0, p1, p2, p3] = [points[Math.max(0, n - 1)]!, points[n]!, points[n + 1]!, points[Math.min(points.length - 1, n + 2)]!];
    d += ` C${f(p1[0] + (p2[0] - p0[0]) / 6)},${f(p1[1] + (p2[1] - p0[1]) / 6)} ${f(p2[0] - (p3[0] - p1[0]) / 6)},${f(p2[1] - (p3[1] - p1[1]) / 6)} ${f(p2[0])},${f(p2[1])}`;
  }
  return d;
}
