// What Python sends with a record, as PROTOCOL.md says: tag tables, the editor, the check, and what panes declare.

import type { Head } from "./parts";
import type { Trace } from "./record_types";

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
/** A number, or what JSON has no number for: "inf", "-inf", "nan". */
export type Numeral = number | string;
export type Values = Numeral | Values[];
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
  /** What it is, in a sentence. */
  about?: string;
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
