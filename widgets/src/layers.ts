// Boxes in layers, left to right: Sugiyama in short, with rows that wrap and parts that hang together kept together.

export interface Item {
  id: string;
  width: number;
  height: number;
}
export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}
export interface Placed {
  width: number;
  height: number;
  /** Centres and sizes. */
  boxes: Map<string, Box>;
}

export const GAP_X = 40;
export const GAP_Y = 20;
const ROW = 34;

/** Places items so that edges run to the right; a row that is wider than `wrap` goes on below. */
export function place(items: readonly Item[], edges: readonly (readonly [string, string])[], wrap = Infinity): Placed {
  const sizes = new Map(items.map((i) => [i.id, i]));
  const forward = new Map<string, Set<string>>(items.map((i) => [i.id, new Set()]));
  for (const [a, b] of edges) if (a !== b && sizes.has(a) && sizes.has(b)) forward.get(a)!.add(b);
  const boxes = new Map<string, Box>();
  let [x, y, row, width] = [0, 0, 0, 0];
  for (const part of connected([...sizes.keys()], forward)) {
    const made = layered(part.map((id) => sizes.get(id)!), forward, wrap);
    if (x && x + made.width > wrap) [x, y, row] = [0, y + row + GAP_Y, 0];
    for (const [id, b] of made.boxes) boxes.set(id, { ...b, x: b.x + x, y: b.y + y });
    x += made.width + GAP_X;
    row = Math.max(row, made.height);
    width = Math.max(width, x - GAP_X);
  }
  return { width, height: y + row, boxes };
}

/** The parts of a graph that hang together, in the order of their first items. */
function connected(ids: readonly string[], forward: ReadonlyMap<string, ReadonlySet<string>>): string[][] {
  const near = new Map<string, string[]>(ids.map((id) => [id, []]));
  for (const [a, to] of forward) for (const b of to) (near.get(a)!.push(b), near.get(b)!.push(a));
  const part = new Map<string, number>();
  let count = 0;
  for (const id of ids) {
    if (part.has(id)) continue;
    const stack = [id];
    part.set(id, count);
    while (stack.length)
      for (const next of near.get(stack.pop()!)!)
        if (!part.has(next)) (part.set(next, count), stack.push(next));
    count++;
  }
  const parts: string[][] = Array.from({ length: count }, () => []);
  for (const id of ids) parts[part.get(id)!]!.push(id);
  return parts;
}

/** Layers by longest path over the edges that close no circle. */
function layersOf(ids: readonly string[], edges: ReadonlyMap<string, ReadonlySet<string>>) {
  const forward = new Map<string, string[]>(ids.map((id) => [id, []]));
  const back = new Map<string, string[]>(ids.map((id) => [id, []]));
  const state = new Map<string, 1 | 2>();
  const order: string[] = [];
  // Depth first without recursion, since a chain of 500 nodes is a deep one.
  for (const root of ids) {
    if (state.has(root)) continue;
    const stack: [string, string[], number][] = [[root, [...edges.get(root)!], 0]];
    state.set(root, 1);
    while (stack.length) {
      const top = stack[stack.length - 1]!;
      const next = top[1][top[2]++];
      if (next === undefined) {
        stack.pop();
        state.set(top[0], 2);
        order.push(top[0]);
        continue;
      }
      if (state.get(next) !== 1) (forward.get(top[0])!.push(next), back.get(next)!.push(top[0]));
      if (!state.has(next)) {
        state.set(next, 1);
        stack.push([next, [...edges.get(next)!], 0]);
      }
    }
  }
  order.reverse();
  const layer = new Map<string, number>();
  for (const id of order) layer.set(id, back.get(id)!.reduce((n, p) => Math.max(n, (layer.get(p) ?? 0) + 1), 0));
  // Sources stand just before what reads them first.
  for (const id of [...order].reverse())
    if (!back.get(id)!.length && forward.get(id)!.length) layer.set(id, forward.get(id)!.reduce((n, t) => Math.min(n, layer.get(t)!), Infinity) - 1);
  const layers: string[][] = [];
  for (const id of order) (layers[layer.get(id)!] ??= []).push(id);
  return { layers: Array.from(layers, (l) => l ?? []).filter((l) => l.length), forward, back };
}

function layered(items: readonly Item[], edges: ReadonlyMap<string, ReadonlySet<string>>, wrap: number): Placed {
  const sizes = new Map(items.map((i) => [i.id, i]));
  const { layers, forward, back } = layersOf([...sizes.keys()], edges);
  const high = (id: string) => sizes.get(id)!.height;
  const y = new Map<string, number>();
  for (const row of layers) {
    let at = -row.reduce((s, id) => s + high(id) + GAP_Y, -GAP_Y) / 2;
    for (const id of row) (y.set(id, at + high(id) / 2), (at += high(id) + GAP_Y));
  }
  const mean = (near: string[], own: number) => (near.length ? near.reduce((s, id) => s + y.get(id)!, 0) / near.length : own);
  for (let sweep = 0; sweep < 8; sweep++) {
    const down = sweep % 2 === 0;
    for (const row of down ? layers : [...layers].reverse()) {
      const wish = new Map(row.map((id) => [id, mean((down ? back : forward).get(id)!, y.get(id)!)]));
      row.sort((p, q) => wish.get(p)! - wish.get(q)!);
      // Each near its wish, none nearer to the next than there is room.
      let last = -Infinity;
      for (const id of row) {
        const to = Math.max(wish.get(id)!, last + high(id) / 2);
        y.set(id, to);
        last = to + high(id) / 2 + GAP_Y;
      }
      const shift = row.reduce((s, id) => s + wish.get(id)! - y.get(id)!, 0) / row.length;
      for (const id of row) y.set(id, y.get(id)! + shift);
    }
  }
  // Rows of layers: each begins at the left.
  const rows: { layers: { ids: string[]; x: number; width: number }[]; width: number }[] = [];
  for (const ids of layers) {
    const width = ids.reduce((w, id) => Math.max(w, sizes.get(id)!.width), 0);
    let row = rows[rows.length - 1];
    if (!row || row.width + GAP_X + width > wrap) rows.push((row = { layers: [], width: -GAP_X }));
    row.layers.push({ ids, x: row.width + GAP_X, width });
    row.width += GAP_X + width;
  }
  const boxes = new Map<string, Box>();
  let [top, width] = [0, 0];
  rows.forEach((row, n) => {
    const ids = row.layers.flatMap((l) => l.ids);
    const least = ids.reduce((m, id) => Math.min(m, y.get(id)! - high(id) / 2), Infinity);
    const most = ids.reduce((m, id) => Math.max(m, y.get(id)! + high(id) / 2), -Infinity);
    for (const layer of row.layers)
      for (const id of layer.ids) boxes.set(id, { x: layer.x + layer.width / 2, y: top + y.get(id)! - least, width: sizes.get(id)!.width, height: high(id) });
    top += most - least + (n < rows.length - 1 ? ROW : 0);
    width = Math.max(width, row.width);
  });
  return { width, height: top, boxes };
}
