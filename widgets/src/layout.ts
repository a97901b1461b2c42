// Where the graph's nodes stand. Positions come from the record; where it has none, one layered layout of all phases
// together is made here, so that a node keeps its place from phase to phase.

import type { Doc, Graph, GraphNode } from "./record";

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}
export interface Layout {
  width: number;
  height: number;
  /** Of the nodes that have no position of their own, and in a record with positions of all others too. */
  boxes: Map<string, Box>;
}

const GAP_X = 46;
const GAP_Y = 22;
const HEIGHT = 42;

export const hasPositions = (g: Graph): boolean => g.nodes.length > 0 && g.nodes.every((n) => n.x !== null && n.y !== null);

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
  if (!layout) cache.set(doc, (layout = compute(doc.stops.flatMap((s) => (s.graph ? [s.graph] : [])))));
  return layout;
}

const ownBox = (n: GraphNode): Box => ({ x: n.x!, y: n.y!, width: n.width ?? nodeWidth(n), height: n.height ?? HEIGHT });

/** The record's positions where it has some, else layers, left to right.

A graph without positions, as of a refused step, has its nodes where the others have them; new ones stand in a row below. */
export function compute(graphs: Graph[]): Layout {
  const placed = graphs.filter(hasPositions);
  if (!placed.length) return layered(graphs);
  const boxes = new Map<string, Box>();
  let width = 0;
  let height = 0;
  for (const g of placed) {
    for (const n of g.nodes) boxes.set(n.id, ownBox(n));
    width = Math.max(width, g.width ?? 0, ...g.nodes.map((n) => n.x! + (n.width ?? nodeWidth(n)) / 2));
    height = Math.max(height, g.height ?? 0, ...g.nodes.map((n) => n.y! + (n.height ?? HEIGHT) / 2));
  }
  const unplaced = new Map(graphs.flatMap((g) => g.nodes.filter((n) => !boxes.has(n.id)).map((n) => [n.id, n])));
  let x = 12;
  for (const [id, n] of unplaced) {
    const box = { x: x + nodeWidth(n) / 2, y: height + GAP_Y + HEIGHT / 2, width: nodeWidth(n), height: HEIGHT };
    boxes.set(id, box);
    x += box.width + GAP_X;
  }
  return unplaced.size ? { width: Math.max(width, x), height: height + 2 * GAP_Y + HEIGHT, boxes } : { width, height, boxes };
}

/** Sugiyama in short: layers by longest path over the edges that close no cycle, rows by the mean of the neighbours'. */
export function layered(graphs: Graph[]): Layout {
  const sizes = new Map<string, number>();
  const edges = new Map<string, Set<string>>();
  for (const g of [...graphs].reverse()) {
    for (const n of g.nodes) sizes.set(n.id, Math.max(sizes.get(n.id) ?? 0, nodeWidth(n)));
    for (const e of g.edges) (edges.get(e.source) ?? edges.set(e.source, new Set()).get(e.source)!).add(e.target);
  }
  const ids = [...sizes.keys()];
  const forward = new Map<string, string[]>(ids.map((id) => [id, []]));
  const back = new Map<string, string[]>(ids.map((id) => [id, []]));
  const state = new Map<string, 1 | 2>();
  const order: string[] = [];
  // Depth first without recursion, since a chain of 500 nodes is a deep one.
  for (const root of ids) {
    if (state.has(root)) continue;
    const stack: [string, string[]][] = [[root, [...(edges.get(root) ?? [])]]];
    state.set(root, 1);
    while (stack.length) {
      const [id, rest] = stack[stack.length - 1]!;
      const next = rest.shift();
      if (next === undefined) {
        stack.pop();
        state.set(id, 2);
        order.push(id);
      } else if (sizes.has(next)) {
        if (state.get(next) !== 1) (forward.get(id)!.push(next), back.get(next)!.push(id));
        if (!state.has(next)) {
          state.set(next, 1);
          stack.push([next, [...(edges.get(next) ?? [])]]);
        }
      }
    }
  }
  order.reverse();
  const layer = new Map<string, number>();
  for (const id of order) layer.set(id, Math.max(0, ...back.get(id)!.map((p) => (layer.get(p) ?? 0) + 1)));
  // Sources stand just before what reads them first.
  for (const id of [...order].reverse())
    if (!back.get(id)!.length && forward.get(id)!.length) layer.set(id, Math.min(...forward.get(id)!.map((t) => layer.get(t)!)) - 1);
  const layers: string[][] = [];
  for (const id of order) (layers[layer.get(id)!] ??= []).push(id);
  for (let n = 0; n < layers.length; n++) layers[n] ??= [];

  const y = new Map<string, number>();
  const place = (row: string[]) => row.forEach((id, n) => y.set(id, n - (row.length - 1) / 2));
  layers.forEach(place);
  const mean = (near: string[], own: number) => (near.length ? near.reduce((s, id) => s + y.get(id)!, 0) / near.length : own);
  for (let sweep = 0; sweep < 8; sweep++) {
    const down = sweep % 2 === 0;
    for (const row of down ? layers : [...layers].reverse()) {
      const wish = new Map(row.map((id) => [id, mean((down ? back : forward).get(id)!, y.get(id)!)]));
      row.sort((p, q) => wish.get(p)! - wish.get(q)!);
      // Each near its wish, none nearer to the next than one row.
      let last = -Infinity;
      for (const id of row) y.set(id, (last = Math.max(wish.get(id)!, last + 1)));
      const shift = row.length ? row.reduce((s, id) => s + wish.get(id)! - y.get(id)!, 0) / row.length : 0;
      for (const id of row) y.set(id, y.get(id)! + shift);
    }
  }
  const top = ids.length ? Math.min(...y.values()) : 0;
  const boxes = new Map<string, Box>();
  let x = 12;
  let height = 0;
  for (const row of layers) {
    const width = Math.max(0, ...row.map((id) => sizes.get(id)!));
    for (const id of row) {
      const cy = 14 + HEIGHT / 2 + (y.get(id)! - top) * (HEIGHT + GAP_Y);
      boxes.set(id, { x: x + width / 2, y: cy, width: sizes.get(id)!, height: HEIGHT });
      height = Math.max(height, cy + HEIGHT / 2 + 14);
    }
    if (row.length) x += width + GAP_X;
  }
  return { width: Math.max(12, x - GAP_X + 12), height, boxes };
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
  if (Math.abs(to.x - from.x) < (to.width + from.width) / 2 && to.y !== from.y) {
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
