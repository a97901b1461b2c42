// The classes of neptune_lab/trace/record.py as they are in JSON.
// `pytest --update-golden` on tests/widgets/test_record_types.py writes this file.

/** A line of a program, as its position in the record's `lines`. */
export type LineAt = number;

/** One line of a program. */
export interface Line {
  node: string;
  text: string;
  origin: string;
  kind: string;
  refs: string[];
}

/** Name, shape and dtype of an input or output. */
export interface TensorRecord {
  name: string;
  shape: number[];
  dtype: string;
  sizes: string[];
}

/** A line of the user's Python that the operator was traced from. */
export interface PythonLine {
  number: number;
  text: string;
  definition: string[];
  within: string[];
}

/** A function of the user's Python: `title` is its name and where it is. */
export interface PythonFunction {
  title: string;
  lines: PythonLine[];
}

/** The compiled operator: `params` are its arguments, `definition` has one line per stage. */
export interface OperatorRecord {
  name: string;
  title: string;
  params: Record<string, unknown>;
  inputs: TensorRecord[];
  outputs: TensorRecord[];
  source: string;
  definition: LineAt[];
  python: PythonFunction[];
}

/** A tensor or block; `x`, `y` is its centre, in points, from the top left; None without a layout. */
export interface GraphNode {
  id: string;
  label: string;
  kind: "input" | "map" | "reduce" | "output";
  detail: string;
  role: string;
  x: number | null;
  y: number | null;
  width: number | null;
  height: number | null;
}

/** `target` reads `tensor` of `source`; `points` is the line to draw, in points, from the source to the target. */
export interface GraphEdge {
  source: string;
  target: string;
  tensor: string;
  kind: "plain" | "fused" | "repaired" | "early";
  points: [number, number][];
}

/** The dataflow graph of a program's loop nests; `width` and `height` of the whole drawing, in points. */
export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
  width: number | null;
  height: number | null;
}

/** One step of the algebra, in three notations; `ok` is false on the step that was refused. */
export interface DerivationStep {
  title: string;
  text: string;
  latex: string;
  mathml: string;
  ok: boolean;
}

/** The derivation of a repair term, or of its refusal: `term` is g as text, `summary` a sentence. */
export interface Derivation {
  reducer: string;
  term: string;
  steps: DerivationStep[];
  accepted: boolean;
  summary: string;
}

/** One phase of a step: the program after it, its graph, and its algebra, if any. */
export interface Phase {
  key: string;
  title: string;
  note: string;
  program: LineAt[];
  graph: Graph;
  derivation: Derivation | null;
  wrong: boolean;
}

/** One applied primitive; if it was refused, `error` is set and the program is unchanged. */
export interface StepRecord {
  index: number;
  primitive: string;
  arguments: Record<string, unknown>;
  summary: string;
  phases: Phase[];
  error: string | null;
  template: string;
}

/** The HTile program after the pass called `name`; `refs` are lines of the last loop program. */
export interface PassRecord {
  name: string;
  lines: LineAt[];
  notes: string[];
}

/** A line of the Triton source, and its origins. */
export interface SourceLine {
  number: number;
  text: string;
  nodes: string[];
  blocks: string[];
  definition: string[];
}

/** What was emitted. */
export interface KernelRecord {
  name: string;
  htile: LineAt[];
  passes: PassRecord[];
  source: string;
  triton: SourceLine[];
  launches: Record<string, unknown>[];
  validated: string;
}

/** A whole compilation; `command` is the command line that repeats it, `versions` are of the packages used. */
export interface Trace {
  operator: OperatorRecord;
  steps: StepRecord[];
  kernel: KernelRecord | null;
  versions: Record<string, string>;
  command: string | null;
  schema: 5;
  lines: [string, string, string, string, string[]][];
}
