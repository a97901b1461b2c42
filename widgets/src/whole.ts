// A record that a payload has whole, with its pooled lines in place.

import type { Line, Source } from "./record";
import type { Derivation, Graph, GraphNode, Phase, SourceLine, Trace } from "./record_types";

export function lineOf(node: string, text: string, origin: string, kinds: string, refs: string[]): Line {
  const [kind, ...words] = kinds.split(" ");
  return { node, text, origin, kind: kind!, refs, words };
}

/** Each node once, with its place if it has one anywhere: the graph of a refused step has none. */
export function unionOf(nodes: readonly GraphNode[]): GraphNode[] {
  const found = new Map<string, GraphNode>();
  for (const node of nodes) if (node.x !== null || !found.has(node.id)) found.set(node.id, node);
  return [...found.values()];
}

/** The record of a payload that has it whole, with its pooled lines in place. */
export class Whole implements Source {
  complete = true;
  definition: Line[];
  triton: SourceLine[];
  private all: Phase[];
  private programs: Line[][];
  private stages: Line[][];

  constructor(readonly trace: Trace) {
    this.all = trace.steps.flatMap((s) => s.phases);
    const pool = trace.lines.map(([node, text, origin, kinds, refs]) => lineOf(node, text, origin, kinds, refs));
    const lines = (at: number[]): Line[] =>
      at.map((n) => {
        const line = pool[n];
        if (!line) throw new Error(`the record names line ${n}, and has ${pool.length}`);
        return line;
      });
    this.definition = lines(trace.operator.definition);
    this.programs = this.all.map((p) => lines(p.program));
    const k = trace.kernel;
    this.stages = k ? [k.htile, ...k.passes.map((p) => p.lines)].map(lines) : [];
    this.triton = k?.triton ?? [];
  }
  phases = (step: number) => this.trace.steps[step]!.phases;
  program = (n: number) => this.programs[n]!;
  graph = (n: number) => this.all[n]!.graph;
  derivation = (_: number, given: Derivation | null) => given;
  stage = (n: number) => this.stages[n]!;
  private same(a: Line[], b: Line[], plain: (text: string) => string): boolean {
    return a.length === b.length && a.every((x, i) => plain(x.text) === plain(b[i]!.text));
  }
  sameProgram = (n: number, plain: (text: string) => string) => this.same(this.programs[n - 1]!, this.programs[n]!, plain);
  sameStage = (n: number, plain: (text: string) => string) => this.same(this.stages[n - 1]!, this.stages[n]!, plain);
  pools = () => ({ loops: [...new Set(this.programs.flat())], htile: [...new Set(this.stages.flat())] });
  origins = () => new Map(this.pools().loops.flatMap((l): [string, string][] => (l.node.startsWith("store:") && l.origin && l.node !== `store:${l.origin}` ? [[l.node.slice(6), l.origin]] : [])));
  union(): Graph {
    const graphs = this.all.map((p) => p.graph);
    const nodes = unionOf(graphs.flatMap((g) => g.nodes));
    const edges = new Map(graphs.flatMap((g) => g.edges.map((e) => [`${e.source}→${e.target}→${e.tensor}→${e.kind}`, e])));
    return { nodes, edges: [...edges.values()], width: graphs[0]?.width ?? null, height: graphs[0]?.height ?? null };
  }
}
