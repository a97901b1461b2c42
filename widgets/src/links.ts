// What in every stage belongs to a selection: up through refs to the definition, down to HTile, Triton and the graph.
//
// Ids of a selection: a line's node id ("py:…", "def:…", "store:…", "loop:…", "tile:…"), "triton:<line>", "graph:<node>",
// and "cell:…", which only the tag table reads.

import { type UserLine, isPython, userLines } from "./python_lines";
import type { Doc, Stop } from "./record";

export interface Related {
  /** Lines of the user's Python. */
  python: Set<string>;
  definition: Set<string>;
  loops: Set<string>;
  htile: Set<string>;
  triton: Set<string>;
  blocks: Set<string>;
  empty: boolean;
}

export interface Index {
  python: Map<string, UserLine>;
  pythonOf: Map<string, Set<string>>;
  stage: Map<string, "definition" | "loops" | "htile">;
  up: Map<string, Set<string>>;
  down: Map<string, Set<string>>;
  htileDown: Map<string, Set<string>>;
  tritonBy: { nodes: Map<string, Set<string>>; blocks: Map<string, Set<string>>; definition: Map<string, Set<string>> };
}

function put<K, V>(map: Map<K, Set<V>>, key: K, value: V): void {
  const found = map.get(key);
  if (found) found.add(value);
  else map.set(key, new Set([value]));
}

/** Every link of the record, both ways; made once a record. */
export function indexLinks(doc: Doc): Index {
  const index: Index = {
    python: new Map(),
    pythonOf: new Map(),
    stage: new Map(),
    up: new Map(),
    down: new Map(),
    htileDown: new Map(),
    tritonBy: { nodes: new Map(), blocks: new Map(), definition: new Map() },
  };
  for (const line of doc.definition) index.stage.set(line.node, "definition");
  for (const line of userLines(doc)) {
    if (!line.node) continue;
    index.python.set(line.node, line);
    for (const id of [...line.definition, ...line.within]) put(index.pythonOf, id, line.node);
  }
  const pools = doc.pools();
  for (const stage of ["loops", "htile"] as const)
    for (const line of pools[stage]) {
      if (!line.node) continue;
      if (!index.stage.has(line.node)) index.stage.set(line.node, stage);
      for (const ref of line.refs) {
        put(index.up, line.node, ref);
        put(stage === "loops" ? index.down : index.htileDown, ref, line.node);
      }
    }
  for (const line of doc.source) {
    const id = `triton:${line.number}`;
    for (const key of ["nodes", "blocks", "definition"] as const) for (const ref of line[key]) put(index.tritonBy[key], ref, id);
  }
  return index;
}

/** The block of a loop line's id: "store:s_sum" and "name:s_sum" are of s_sum; a loop has its own. */
export function blockOf(node: string): string | null {
  const m = /^(?:store|name|guard|init):([^/]+)/.exec(node);
  return m ? m[1]! : null;
}

const NONE: ReadonlySet<string> = new Set();
const get = (map: Map<string, Set<string>>, key: string): ReadonlySet<string> => map.get(key) ?? NONE;

/** Everything that belongs to `selection`, as seen from `stop`. */
export function relate(doc: Doc, index: Index, selection: readonly string[], stop: Stop): Related {
  const r: Related = {
    python: new Set(),
    definition: new Set(),
    loops: new Set(),
    htile: new Set(),
    triton: new Set(),
    blocks: new Set(),
    empty: true,
  };
  const shown = stop.kind === "loops" ? stop.lines : doc.program;
  const here = new Set(shown.map((l) => l.node));

  const fromDefinition = (id: string, downToKernel: boolean) => {
    r.definition.add(id);
    for (const l of get(index.down, id)) r.loops.add(l);
    if (!downToKernel) return;
    for (const t of get(index.tritonBy.definition, id)) r.triton.add(t);
    for (const line of doc.program) if (line.refs.includes(id)) for (const h of get(index.htileDown, line.node)) r.htile.add(h);
  };
  const fromLoop = (id: string) => {
    const block = blockOf(id);
    const ids = block ? [`store:${block}`, `name:${block}`, id] : [id];
    let reached = false;
    for (const one of ids) {
      r.loops.add(one);
      for (const d of get(index.up, one)) r.definition.add(d);
      for (const h of get(index.htileDown, one)) (r.htile.add(h), (reached = true));
      for (const t of get(index.tritonBy.blocks, one)) (r.triton.add(t), (reached = true));
    }
    if (block) r.blocks.add(block);
    // A line that the last program no longer has: through the stage of the definition that it came from.
    if (!reached) for (const d of get(index.up, id)) fromDefinition(d, true);
    else if (!ids.some((x) => here.has(x))) for (const d of get(index.up, id)) fromDefinition(d, false);
  };

  for (const id of selection) {
    if (id.startsWith("cell:")) continue;
    if (isPython(id)) {
      const line = index.python.get(id);
      if (!line) continue;
      r.python.add(id);
      for (const d of [...line.definition, ...line.within]) fromDefinition(d, true);
    } else if (id.startsWith("triton:")) {
      const line = doc.source[Number(id.slice(7)) - 1];
      if (!line) continue;
      r.triton.add(id);
      for (const n of line.nodes) r.htile.add(n);
      for (const d of line.definition) r.definition.add(d);
      for (const b of line.blocks) addLoop(b);
    } else if (id.startsWith("graph:")) {
      const name = id.slice(6);
      r.blocks.add(name);
      if (index.stage.has(`store:${name}`)) fromLoop(`store:${name}`);
      else mentions(name);
    } else {
      const stage = index.stage.get(id);
      if (stage === "definition") fromDefinition(id, true);
      else if (stage === "loops") fromLoop(id);
      else if (stage === "htile") {
        r.htile.add(id);
        for (const t of get(index.tritonBy.nodes, id)) r.triton.add(t);
        for (const l of get(index.up, id)) addLoop(l);
      }
    }
  }

  /** A loop line and, where the stop does not have it, its relatives there. */
  function addLoop(id: string): void {
    r.loops.add(id);
    const block = blockOf(id);
    if (block) (r.loops.add(`name:${block}`), r.blocks.add(block));
    for (const d of get(index.up, id)) {
      r.definition.add(d);
      if (!here.has(id)) for (const l of get(index.down, d)) r.loops.add(l);
    }
  }
  /** An input has no line of its own: the lines that name it. */
  function mentions(name: string): void {
    const word = new RegExp(`(?<![\\p{L}\\p{N}_])${name.replace(/[^\p{L}\p{N}_]/gu, "\\$&")}(?:_ptr|_base)?(?![\\p{L}\\p{N}_])`, "u");
    for (const l of shown) if (l.kind !== "loop" && l.kind !== "comment" && word.test(l.text)) r.loops.add(l.node);
    for (const l of doc.definition) if (word.test(l.text)) r.definition.add(l.node);
    for (const l of doc.htile) if (l.node && word.test(l.text)) r.htile.add(l.node);
    for (const l of doc.source) if (l.nodes.length && word.test(l.text)) r.triton.add(`triton:${l.number}`);
  }

  // Blocks for the graph and the tag table: those of the lines lit here.
  for (const l of shown) if (l.origin && r.loops.has(l.node)) { const b = blockOf(l.node) ?? l.node.split("@")[1]; if (b) r.blocks.add(b); }
  if (stop.graph) {
    const ids = new Set(stop.graph.nodes.map((n) => n.id));
    for (const d of r.definition) { const o = d.slice(d.indexOf(":") + 1); if (ids.has(o) && !shown.some((l) => r.loops.has(l.node))) r.blocks.add(o); }
  }
  // Of a line of the user's Python, other lines with the same stages stay unlit.
  if (!selection.some(isPython)) for (const d of r.definition) for (const p of get(index.pythonOf, d)) r.python.add(p);
  r.empty = !(r.python.size + r.definition.size + r.loops.size + r.htile.size + r.triton.size + r.blocks.size);
  return r;
}
