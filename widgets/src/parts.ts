// A record that was sent in parts (PROTOCOL.md): pools of lines, nodes and edges, and phases as runs of them.
// Nothing is unpacked before it is asked for.

import type { Line, Source } from "./record";
import { lineOf, unionOf } from "./whole";
import type { Derivation, Graph, GraphEdge, GraphNode, KernelRecord, OperatorRecord, SourceLine, StepRecord, Trace } from "./record_types";

type Row = [node: string, text: string, origin: string, kind: string, refs?: string[]];
type NodeRow = [id: string, label: string, kind: GraphNode["kind"], detail: string, role: string, x?: number, y?: number, width?: number, height?: number];
type EdgeRow = [source: string, target: string, tensor: string, kind: number, points?: [number, number][]];
type BriefPhase = { key: string; title: string; note: string; wrong: boolean; derivation: Derivation | null };

/** The first part: everything that the first view shows. */
export interface Head {
  schema: Trace["schema"];
  parts: { name: string; count: number };
  operator: OperatorRecord;
  steps: (Omit<StepRecord, "phases"> & { phases: BriefPhase[] })[];
  kernel: KernelRecord | null;
  versions: Record<string, string>;
  command: string | null;
  lines: [at: number, ...row: Row][];
  near: Record<string, number[]>;
  nodes: NodeRow[];
  edges: EdgeRow[];
  graphs: [nodes: number[], edges: number[]][];
  /** The stages of blocks that are not called as their stage. */
  origins: Record<string, string>;
  size: [width: number | null, height: number | null];
}

/** Another part. */
export type Part =
  | { part: "lines"; from: number; rows: Row[] }
  | { part: "phases"; definition: number[]; programs: number[][]; loops: number }
  | { part: "derivations"; from: number; rows: (Derivation | null)[] }
  | { part: "kernel"; stages: number[][]; source: string; triton: [number, string, string[], string[], string[]][] };

export const inParts = (trace: unknown): trace is Head => typeof trace === "object" && trace !== null && "parts" in trace;

const KINDS: readonly GraphEdge["kind"][] = ["plain", "fused", "repaired", "early"];

/** What `runs` of neptune_widgets/parts.py packed. */
export function unpacked(packed: readonly number[], before: Int32Array): Int32Array {
  let length = 0;
  for (let n = 1; n < packed.length; n += 2) length += packed[n]!;
  const made = new Int32Array(length);
  let to = 0;
  for (let n = 0; n < packed.length; n += 2) {
    const [start, count] = [packed[n]!, packed[n + 1]!];
    if (start >= 0) {
      if (start + count > before.length) throw new Error(`the record's phase goes to line ${start + count} of ${before.length}`);
      made.set(before.subarray(start, start + count), to);
    } else for (let k = 0; k < count; k++) made[to + k] = -1 - start + k;
    to += count;
  }
  return made;
}

/** Unpacks a chain of packed lists, each once, when it is asked for. */
class Chain {
  private done: Int32Array[] = [];
  constructor(private packed: readonly (readonly number[])[]) {}
  at(n: number): Int32Array {
    for (let k = this.done.length; k <= n; k++) this.done.push(unpacked(this.packed[k] ?? [], this.done[k - 1] ?? new Int32Array()));
    return this.done[n]!;
  }
}

const rowOf = ([node, text, origin, kinds, refs]: Row): Line => lineOf(node, text, origin, kinds, refs ?? (origin ? [`def:${origin}`] : []));

/** The graphs of a record: they are in its first part, and stay the same objects when the others come. */
class Graphs {
  readonly nodes: GraphNode[];
  readonly edges: GraphEdge[];
  private nodeRuns: Chain;
  private edgeRuns: Chain;
  private made = new Map<number, Graph>();
  constructor(private head: Head) {
    this.nodes = head.nodes.map(([id, label, kind, detail, role, x, y, width, height]) => ({ id, label: label || id, kind, detail, role, x: x ?? null, y: y ?? null, width: width ?? null, height: height ?? null }));
    this.edges = head.edges.map(([source, target, tensor, kind, points]) => ({ source, target, tensor: tensor || source, kind: KINDS[kind]!, points: points ?? [] }));
    this.nodeRuns = new Chain(head.graphs.map(([nodes]) => nodes));
    this.edgeRuns = new Chain(head.graphs.map(([, edges]) => edges));
  }
  at(n: number): Graph {
    let graph = this.made.get(n);
    if (!graph) {
      const [width, height] = this.head.size;
      graph = { nodes: Array.from(this.nodeRuns.at(n), (k) => this.nodes[k]!), edges: Array.from(this.edgeRuns.at(n), (k) => this.edges[k]!), width, height };
      this.made.set(n, graph);
    }
    return graph;
  }
}

/** The record of a first part, and of the others as far as they are there. */
export class Parts implements Source {
  readonly trace: Trace;
  readonly complete: boolean;
  definition: Line[] = [];
  triton: SourceLine[] = [];
  private graphs: Graphs;
  private pool: Line[] = [];
  private loops = 0;
  private near = new Map<number, Line[]>();
  private programs: Chain | null = null;
  private stages: Chain | null = null;
  private derivations: (Derivation | null)[] = [];
  private texts: Int32Array | null = null;

  constructor(private head: Head, parts: readonly Part[] | null, from: Parts | null = null) {
    this.graphs = from?.graphs ?? new Graphs(head);
    this.complete = parts !== null;
    const kernel = head.kernel && { ...head.kernel };
    this.trace = { ...head, kernel, steps: head.steps.map((s) => ({ ...s, phases: [] })), lines: [] } as unknown as Trace;
    if (!parts) {
      const rows = new Map(head.lines.map(([at, ...row]) => [at, rowOf(row)]));
      const lines = (at: readonly number[]) => at.map((n) => rows.get(n)!);
      this.pool = [...rows.values()];
      this.loops = this.pool.length;
      this.definition = lines(head.operator.definition);
      for (const [n, at] of Object.entries(head.near)) this.near.set(Number(n), lines(at));
      return;
    }
    for (const part of parts) {
      if (part.part === "lines") for (const row of part.rows) this.pool.push(rowOf(row));
      else if (part.part === "derivations") this.derivations.push(...part.rows);
    }
    for (const part of parts) {
      if (part.part === "phases") {
        this.loops = part.loops;
        this.programs = new Chain(part.programs);
        this.definition = this.lines(Int32Array.from(part.definition));
      } else if (part.part === "kernel" && kernel) {
        this.stages = new Chain(part.stages);
        kernel.source = part.source;
        this.triton = part.triton.map(([number, text, nodes, blocks, definition]) => ({ number, text, nodes, blocks, definition }));
      }
    }
  }

  private lines(at: Int32Array): Line[] {
    return Array.from(at, (n) => {
      const line = this.pool[n];
      if (!line) throw new Error(`the record names line ${n}, and has ${this.pool.length}`);
      return line;
    });
  }
  phases(step: number): BriefPhase[] {
    return this.head.steps[step]!.phases;
  }
  program(n: number): Line[] {
    return this.programs ? this.lines(this.programs.at(n)) : (this.near.get(n) ?? []);
  }
  graph(n: number): Graph {
    return this.graphs.at(n);
  }
  derivation(n: number, brief: Derivation | null): Derivation | null {
    return this.derivations[n] ?? brief;
  }
  stage(n: number): Line[] {
    return this.stages?.at(n).length ? this.lines(this.stages.at(n)) : [];
  }
  /** Whether two phases have the same text, by the numbers of their lines' texts. */
  private same(a: Int32Array, b: Int32Array, plain: (text: string) => string): boolean {
    if (a.length !== b.length) return false;
    if (!this.texts) {
      const numbers = new Map<string, number>();
      this.texts = Int32Array.from(this.pool, ({ text }) => {
        const key = plain(text);
        const found = numbers.get(key) ?? numbers.size;
        if (found === numbers.size) numbers.set(key, found);
        return found;
      });
    }
    for (let n = 0; n < a.length; n++) if (a[n] !== b[n] && this.texts[a[n]!] !== this.texts[b[n]!]) return false;
    return true;
  }
  sameProgram(n: number, plain: (text: string) => string): boolean {
    return this.programs !== null && this.same(this.programs.at(n - 1), this.programs.at(n), plain);
  }
  sameStage(n: number, plain: (text: string) => string): boolean {
    return this.stages !== null && this.same(this.stages.at(n - 1), this.stages.at(n), plain);
  }
  pools(): { loops: Line[]; htile: Line[] } {
    return { loops: this.pool.slice(0, this.loops), htile: this.pool.slice(this.loops) };
  }
  origins(): ReadonlyMap<string, string> {
    return new Map(Object.entries(this.head.origins));
  }
  union(): Graph {
    const [width, height] = this.head.size;
    return { nodes: unionOf(this.graphs.nodes), edges: this.graphs.edges, width, height };
  }
}

/** Parts as objects, parsed one at a time with pauses, so that a page with many stays usable meanwhile. */
export async function parsedParts(texts: readonly string[]): Promise<Part[]> {
  const made: Part[] = [];
  for (const text of texts) {
    await new Promise((go) => setTimeout(go));
    made.push(JSON.parse(text) as Part);
  }
  return made;
}
