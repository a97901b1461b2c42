// The payload, as PROTOCOL.md says, and the record in it as a list of stops to walk through.

import { unaligned } from "./diff";
import type { Derivation, Graph, GraphEdge, Line as PlainLine, SourceLine, Trace } from "./record_types";

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
}
export interface Payload {
  trace: Trace;
  check: { ok: boolean | null; text: string } | null;
  kernel_error?: EditError | null;
  tags: { inputs: TagInput[]; rolling: string[]; tables: Record<string, Table> } | null;
  tags_note: string;
  editor: Editor | null;
  device: string;
  live: boolean;
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
}

export const SCHEMA: Trace["schema"] = 2;

const sameText = (a: Line[], b: Line[]): boolean => a.length === b.length && a.every((x, i) => unaligned(x.text) === unaligned(b[i]!.text));

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

/** The payload's record, its pooled lines in place, as a list of stops. */
export function readTrace(trace: Trace): Doc {
  if (!trace || trace.schema !== SCHEMA)
    throw new Error(`the record has schema ${String(trace?.schema)}, this page reads schema ${SCHEMA}`);
  const pool: Line[] = trace.lines.map(([node, text, origin, kinds, refs]) => {
    const [kind, ...words] = kinds.split(" ");
    return { node, text, origin, kind: kind!, refs, words };
  });
  const lines = (at: number[]): Line[] =>
    at.map((n) => {
      const line = pool[n];
      if (!line) throw new Error(`the record names line ${n}, and has ${pool.length}`);
      return line;
    });
  const definition = lines(trace.operator.definition);
  const stops: Stop[] = [];
  let before: Line[] | null = null;
  let graph: Graph | null = null;
  const steps: StepEntry[] = trace.steps.map((s) => {
    const call = s.primitive === "definition" ? "definition" : callText(s.primitive, s.arguments);
    const here: Stop[] = s.phases.map((p, n) => {
      const program = lines(p.program);
      // Kept apart from the phases of the step that stands in the refused one's place.
      const phase = s.error ? `refused.${p.key}` : p.key;
      const stop: Stop = {
        key: `${s.index}.${phase}`,
        step: s.index,
        phase,
        kind: "loops",
        letter: s.phases.length > 1 ? String.fromCharCode(97 + n) : "",
        call,
        title: p.title,
        note: p.note,
        lines: program,
        graph: p.graph,
        derivation: p.derivation,
        proof: [],
        wrong: p.wrong,
        error: n === s.phases.length - 1 ? s.error : null,
        refused: s.error !== null,
        quiet: before !== null && s.error === null && p.derivation === null && !p.wrong && sameText(before, program),
      };
      before = program;
      graph = p.graph;
      return stop;
    });
    if (!here.length) {
      here.push({
        key: `${s.index}.${s.error ? "refused" : s.primitive}`,
        step: s.index,
        phase: s.error ? "refused" : s.primitive,
        kind: "loops",
        letter: "",
        call,
        title: s.error ? "refused" : s.primitive,
        note: "",
        lines: before ?? definition,
        graph,
        derivation: null,
        proof: [],
        wrong: false,
        error: s.error,
        refused: s.error !== null,
        quiet: s.error === null,
      });
    }
    stops.push(...here);
    return { index: s.index, call, remark: isRemark(s), stops: here, error: s.error };
  });
  let program = definition;
  for (const s of steps) if (s.error === null && s.stops.length) program = s.stops[s.stops.length - 1]!.lines;

  const k = trace.kernel;
  let htile: Line[] = [];
  let triton: Line[] = [];
  const language = languageOf(k?.source ?? "");
  if (k) {
    const stages = [{ name: "translated", lines: k.htile, notes: [] }, ...k.passes];
    let last: Line[] | null = null;
    stages.forEach((p, n) => {
      const now = lines(p.lines);
      stops.push(kernelStop(`htile.${n}`, "htile", p.name.replaceAll("_", " "), now, last !== null && sameText(last, now), p.notes));
      last = htile = now;
    });
    triton = k.triton.map((t) => ({ node: `triton:${t.number}`, text: t.text, origin: "", kind: "triton", refs: t.nodes }));
    const code = kernelStop("triton", "triton", k.launches.length === 1 ? "1 kernel" : `${k.launches.length} kernels`, triton, false);
    stops.push({ ...code, call: language, note: `The ${language} source.` });
  }
  if (!stops.length) {
    const empty = kernelStop("definition", "htile", "definition", definition, false);
    stops.push({ ...empty, kind: "loops", step: 0, key: "0.definition", phase: "definition" });
    steps.push({ index: 0, call: "definition", remark: false, stops: [...stops], error: null });
  }
  const source = k?.triton ?? [];
  return { trace, definition, steps, stops, byKey: new Map(stops.map((s) => [s.key, s])), htile, triton, language, source, program };
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
