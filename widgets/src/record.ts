// The payload, as PROTOCOL.md says, and the record in it as a list of stops to walk through.

import { unaligned } from "./diff";
import { type Head, Parts, inParts } from "./parts";
import { type UserFunction, userFunctions } from "./python_lines";
import type { Derivation, Graph, GraphEdge, GraphNode, Line as PlainLine, Phase, SourceLine, Trace } from "./record_types";

export type { Derivation, DerivationStep, Graph, GraphEdge, GraphNode, SourceLine, Trace } from "./record_types";
/** A line of a program; its `kind` is the first word of the record's, the others say what the node does. */
export interface Line extends PlainLine {
  words?: readonly string[];
}
export type EdgeKind = GraphEdge["kind"];

export interface Read {
  text: string;
  state: string;
}
export interface Cell {
  value: string;
  tag: string;
  sign: string;
  reads: Read[];
  should_be: string | null;
  right: boolean | null;
}
export interface Row {
  label: string;
  kind: "value" | "repair";
  buffer: string;
  block: string;
  cells: (Cell | null)[];
}
export interface Table {
  title: string;
  rolling: string;
  columns: string[];
  rows: Row[];
  note: string;
}
export type Values = number | Values[];
export interface TagInput {
  name: string;
  shape: number[];
  dtype: string;
  values: Values;
}
export interface Parameter {
  name: string;
  kind: string;
  required: boolean;
  choices: unknown[] | Record<string, unknown[]> | null;
  value?: unknown;
}
export interface StepEdit {
  primitive: string;
  arguments: Record<string, unknown>;
  text?: string;
}
export interface EditError {
  message: string;
  help?: string | null;
  step?: number | null;
  line?: number | null;
  column?: number | null;
  node?: string | null;
}
export interface Primitive {
  name: string;
  ours: boolean;
  summary: string;
  parameters: Parameter[];
}
export interface Editor {
  steps: StepEdit[];
  primitives: Primitive[];
  templates: string[];
  undo?: number;
  redo?: number;
  /** Options of code generation that differ from their defaults, as text. */
  code?: string;
}
export interface Payload {
  /** The record, or the first of its parts. */
  trace: Trace | Head;
  check: { ok: boolean | null; text: string } | null;
  kernel_error?: EditError | null;
  tags: { inputs: TagInput[]; rolling: string[]; tables: Record<string, Table> } | null;
  tags_note: string;
  editor: Editor | null;
  device: string;
  /** Code that makes it again; "" if it is not known. */
  python: string;
  live: boolean;
  /** Of a saved record with Python beside it: whether its operator and steps can be made again. */
  again?: boolean;
  /** What panes declare in Python, by pane. */
  panes: Record<string, unknown>;
}
export interface TimingRow {
  name: string;
  us: number | null;
  spread: number | null;
  tflops: number | null;
  gbps: number | null;
  roofline?: number | null;
  registers?: number | null;
  shared?: number | null;
  estimate?: boolean;
  note: string;
}

/** A place to stop at: a phase of a step, the HTile program after a pass, or the Triton source. */
export interface Stop {
  key: string;
  step: number;
  phase: string;
  kind: "loops" | "htile" | "triton";
  letter: string;
  /** The step's call or remark, shortened as in the rail; "" for the kernel's stages. */
  call: string;
  title: string;
  note: string;
  lines: Line[];
  graph: Graph | null;
  derivation: Derivation | null;
  /** The proof of an HTile pass, a sentence a line; what belongs to the line above is indented. */
  proof: string[];
  wrong: boolean;
  error: string | null;
  /** Of a step that was refused: it changed nothing, and its number is that of the step that stands in its place. */
  refused: boolean;
  /** Nothing differs from the stop before: not the text, and there is no algebra to read. */
  quiet: boolean;
}
export interface StepEntry {
  index: number;
  call: string;
  remark: boolean;
  stops: Stop[];
  error: string | null;
}
export interface Doc {
  trace: Trace;
  /** The user's functions that the definition was traced from, if it was. */
  python: readonly UserFunction[];
  definition: Line[];
  steps: StepEntry[];
  stops: Stop[];
  byKey: Map<string, Stop>;
  htile: Line[];
  triton: Line[];
  /** What the kernel is written in: "Triton", "Gluon", or both. */
  language: string;
  source: SourceLine[];
  /** The last loop program, which HTile's refs name. */
  program: Line[];
  /** Whether the whole record is here; of one that is sent in parts, at first only what the first view shows is. */
  complete: boolean;
  /** Every line of the loop programs and of HTile, each once. */
  pools(): { loops: Line[]; htile: Line[] };
  /** The stages of blocks, where they are not called as their stage. */
  origins(): ReadonlyMap<string, string>;
  /** Every node and edge of the graphs: a node once, an edge once for each kind that it has. */
  union(): Graph;
}

/** Where the stops of a record get what they show, when they are shown: phases and kernel stages by number. */
export interface Source {
  /** The record without its programs, graphs and lines. */
  trace: Trace;
  complete: boolean;
  definition: Line[];
  triton: SourceLine[];
  phases(step: number): { key: string; title: string; note: string; wrong: boolean; derivation: Derivation | null }[];
  program(n: number): Line[];
  graph(n: number): Graph;
  derivation(n: number, brief: Derivation | null): Derivation | null;
  stage(n: number): Line[];
  /** Whether phase or stage `n` has the text of the one before, each line in the form that `plain` gives it. */
  sameProgram(n: number, plain: (text: string) => string): boolean;
  sameStage(n: number, plain: (text: string) => string): boolean;
  pools(): { loops: Line[]; htile: Line[] };
  origins(): ReadonlyMap<string, string>;
  union(): Graph;
}

export const SCHEMA: Trace["schema"] = 5;

/** A sentence for readers, which does nothing. */
export const isRemark = (step: { primitive: string }): boolean => step.primitive === "remark";

/** `tile(block='s_max', …)`, shortened to what tells steps apart; of a remark, what it says. */
export function callText(primitive: string, args: Record<string, unknown>): string {
  if (isRemark({ primitive })) return String(args.text ?? "");
  const show = (v: unknown): string => {
    if (v === null) return "None";
    if (typeof v === "string") return v;
    if (typeof v === "boolean") return v ? "True" : "False";
    if (Array.isArray(v)) return `(${v.map(show).join(", ")})`;
    if (typeof v === "object") return Object.entries(v as object).map(([k, x]) => `${k}=${show(x)}`).join(", ");
    return String(v);
  };
  return `${primitive}(${Object.values(args).map(show).join(", ")})`;
}

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
class Whole implements Source {
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

/** The record of a payload as a list of stops. */
export function readTrace(trace: Trace | Head): Doc {
  if (!trace || trace.schema !== SCHEMA)
    throw new Error(`the record has schema ${String(trace?.schema)}, this page reads schema ${SCHEMA}`);
  return readSource(inParts(trace) ? new Parts(trace, null) : new Whole(trace));
}

/** The number of a phase or stage as a property that is computed when it is read first. */
function lazily<T extends object>(stop: T, properties: { [K in keyof T]?: () => T[K] }): T {
  for (const [name, make] of Object.entries(properties) as [string, () => unknown][])
    Object.defineProperty(stop, name, {
      configurable: true,
      enumerable: true,
      get() {
        const value = make();
        Object.defineProperty(stop, name, { value, configurable: true, enumerable: true });
        return value;
      },
    });
  return stop;
}

/** The stops of a source. What they show is unpacked when they are shown. */
export function readSource(source: Source): Doc {
  const { trace, definition } = source;
  const stops: Stop[] = [];
  let count = 0;
  const steps: StepEntry[] = trace.steps.map((s, at) => {
    const call = s.primitive === "definition" ? "definition" : callText(s.primitive, s.arguments);
    const phases = source.phases(at);
    const here: Stop[] = phases.map((p, n) => {
      // Kept apart from the phases of the step that stands in the refused one's place.
      const phase = s.error ? `refused.${p.key}` : p.key;
      const number = count++;
      const stop: Stop = {
        key: `${s.index}.${phase}`,
        step: s.index,
        phase,
        kind: "loops",
        letter: phases.length > 1 ? String.fromCharCode(97 + n) : "",
        call,
        title: p.title,
        note: p.note,
        lines: [],
        graph: null,
        derivation: null,
        proof: [],
        wrong: p.wrong,
        error: n === phases.length - 1 ? s.error : null,
        refused: s.error !== null,
        quiet: false,
      };
      const may = number > 0 && s.error === null && p.derivation === null && !p.wrong;
      return lazily(stop, {
        lines: () => source.program(number),
        graph: () => source.graph(number),
        derivation: () => source.derivation(number, p.derivation),
        quiet: () => may && source.sameProgram(number, unaligned),
      });
    });
    if (!here.length) {
      const last = count - 1;
      const stop: Stop = {
        key: `${s.index}.${s.error ? "refused" : s.primitive}`,
        step: s.index,
        phase: s.error ? "refused" : s.primitive,
        kind: "loops",
        letter: "",
        call,
        title: s.error ? "refused" : s.primitive,
        note: "",
        lines: definition,
        graph: null,
        derivation: null,
        proof: [],
        wrong: false,
        error: s.error,
        refused: s.error !== null,
        quiet: s.error === null,
      };
      here.push(last < 0 ? stop : lazily(stop, { lines: () => source.program(last), graph: () => source.graph(last) }));
    }
    stops.push(...here);
    return { index: s.index, call, remark: isRemark(s), stops: here, error: s.error };
  });
  const applied = [...steps].reverse().find((s) => s.error === null && s.stops.length);

  const k = trace.kernel;
  const language = languageOf(k?.source ?? "");
  const triton: Line[] = k ? source.triton.map((t) => ({ node: `triton:${t.number}`, text: t.text, origin: "", kind: "triton", refs: t.nodes })) : [];
  if (k) {
    const stages = [{ name: "translated", notes: [] as string[] }, ...k.passes];
    stages.forEach((p, n) => {
      const stop = kernelStop(`htile.${n}`, "htile", p.name.replaceAll("_", " "), [], false, p.notes);
      stops.push(lazily(stop, { lines: () => source.stage(n), quiet: () => n > 0 && source.sameStage(n, unaligned) }));
    });
    const code = kernelStop("triton", "triton", k.launches.length === 1 ? "1 kernel" : `${k.launches.length} kernels`, triton, false);
    stops.push({ ...code, call: language, note: `The ${language} source.` });
  }
  if (!stops.length) {
    const empty = kernelStop("definition", "htile", "definition", definition, false);
    stops.push({ ...empty, kind: "loops", step: 0, key: "0.definition", phase: "definition" });
    steps.push({ index: 0, call: "definition", remark: false, stops: [...stops], error: null });
  }
  const doc: Doc = {
    trace,
    python: userFunctions(trace.operator.python),
    definition,
    steps,
    stops,
    byKey: new Map(stops.map((s) => [s.key, s])),
    htile: [],
    triton,
    language,
    source: source.triton,
    program: definition,
    complete: source.complete,
    pools: () => source.pools(),
    origins: () => source.origins(),
    union: () => source.union(),
  };
  const last = k ? k.passes.length : 0;
  return lazily(doc, {
    htile: () => (k ? source.stage(last) : []),
    program: () => applied?.stops[applied.stops.length - 1]!.lines ?? definition,
  });
}

function kernelStop(key: string, kind: "htile" | "triton", title: string, lines: Line[], quiet: boolean, proof: string[] = []): Stop {
  const note = key === "htile.0" ? "HTile IR as translated from the loops." : `HTile IR after ${title}.`;
  return { key, step: -1, phase: key, kind, letter: "", call: "", title, note, lines, graph: null, derivation: null, proof, wrong: false, error: null, refused: false, quiet };
}

/** How a stop whose program is wrong is called, whatever else it shows; "" if its program is right. */
export function wrongness(stop: Stop): string {
  if (!stop.wrong) return "";
  return stop.derivation?.accepted ? "the program is still the naive one, which is wrong" : "wrong on purpose";
}

/** What a kernel's source is written in. */
export function languageOf(source: string): string {
  const gluon = source.includes("@gluon.jit");
  return gluon && source.includes("@triton.jit") ? "Gluon and Triton" : gluon ? "Gluon" : "Triton";
}

const NAME = 60;
const short = (text: string): string => (text.length > NAME ? `${text.slice(0, NAME - 1)}…` : text);

/** How a stop is called in a sentence: "3 b · naive fusion", "4 · tile(qk, 64)"; a refused step has no number. */
export function stopName(stop: Stop): string {
  if (stop.kind === "triton") return stop.call;
  if (stop.kind === "htile") return `HTile · ${stop.title}`;
  if (stop.refused) return stop.letter ? `refused ${stop.letter} · ${stop.title}` : stop.title;
  return stop.letter ? `${stop.step} ${stop.letter} · ${stop.title}` : `${stop.step} · ${short(stop.call)}`;
}

/** The stop before in the same stage; the first HTile program and Triton have none to compare with. */
export function stopBefore(doc: Doc, stop: Stop): Stop | null {
  const at = doc.stops.indexOf(stop);
  const before = at > 0 ? doc.stops[at - 1]! : null;
  return before && before.kind === stop.kind ? before : null;
}
