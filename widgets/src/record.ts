// The record of a payload as a list of stops to walk through.

import { unaligned } from "./diff";
import { type Head, Parts, inParts } from "./parts";
import { type UserFunction, userFunctions } from "./python_lines";
import type { Derivation, Graph, GraphEdge, Line as PlainLine, SourceLine, Trace } from "./record_types";
import { callText, isRemark, languageOf } from "./stop_names";
import { Whole } from "./whole";

export type * from "./payload";
export type { Derivation, DerivationStep, Graph, GraphEdge, GraphNode, SourceLine, Trace } from "./record_types";
export { isRemark, callText, languageOf, stopBefore, stopName, wrongness } from "./stop_names";
/** A line of a program; its `kind` is the first word of the record's, the others say what the node does. */
export interface Line extends PlainLine {
  words?: readonly string[];
}
export type EdgeKind = GraphEdge["kind"];

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
