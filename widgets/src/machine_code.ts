// Machine code as Python sends it, as rows that are linked to Triton's lines; its colours; and its resources in words.

import type { Doc } from "./record";

export interface Resources {
  registers: number;
  scalar_registers: number;
  local_bytes: number;
  shared_bytes: number;
  tensor_memory_columns: number;
  warps: number;
  threads: number;
  occupancy: { blocks: number; warps: number; most_warps: number; limits: [string, number][]; limited_by: string[] };
  counts: {
    instructions: number;
    matrix: { name: string; count: number }[];
    waits: [string, number][];
    barriers: [string, number][];
    memory: { kind: string; bytes: number | null; count: number }[];
  };
}
export interface MachineKernel {
  name: string;
  grid: number[];
  text: string;
  /** The distinct tuples of Triton lines, innermost first. */
  frames: number[][];
  /** For each line of the text its place in `frames`. */
  of: number[];
  /** What some lines are, by their position: "matrix", "wait", "barrier", or a memory instruction. */
  kinds: Record<string, string>;
  resources: Resources;
}
export interface MachineCode {
  target: string;
  stage: string;
  triton?: string;
  kernels?: MachineKernel[];
  error?: { message: string; help?: string | null };
}

/** One line of a listing. */
export interface CodeRow {
  text: string;
  /** Ids of the Triton lines that it comes from, innermost first. */
  triton: readonly string[];
  /** Of these the one that says most: the innermost that the record links to other stages. */
  home: string;
  kind: string;
  /** Its number in its kernel; null for the line that names the kernel. */
  number: number | null;
}

/** Every kernel's lines, one kernel after the other; each kernel of several is headed by its name. */
export function rowsOf(code: MachineCode, doc: Doc): CodeRow[] {
  const kernels = code.kernels ?? [];
  return kernels.flatMap((kernel) => {
    const links = kernel.frames.map((frames) => ({ triton: frames.map((n) => `triton:${n}`), home: homeLine(frames, doc) }));
    const lines = kernel.text.split("\n");
    if (lines[lines.length - 1] === "") lines.pop();
    const rows = lines.map((text, n): CodeRow => {
      const link = links[kernel.of[n] ?? -1];
      return { text, triton: link?.triton ?? [], home: link?.home ?? "", kind: kernel.kinds[n] ?? "", number: n + 1 };
    });
    return kernels.length > 1 ? [{ text: `// ${kernel.name}`, triton: [], home: "", kind: "head", number: null }, ...rows] : rows;
  });
}

/** The line that a row selects: the innermost that the record links to other stages, else the innermost. */
export function homeLine(frames: readonly number[], doc: Doc): string {
  const linked = frames.find((n) => {
    const line = doc.source[n - 1];
    return line !== undefined && line.nodes.length + line.blocks.length + line.definition.length > 0;
  });
  const number = linked ?? frames[0];
  return number === undefined ? "" : `triton:${number}`;
}

/** The row to begin with: the one before the first that comes from a line of Triton, behind the directives. */
export const firstRow = (rows: readonly CodeRow[]): number => Math.max(0, rows.findIndex((row) => row.triton.length > 0) - 1);

/** Positions of the rows that come from any of these lines. */
export function litRows(rows: readonly CodeRow[], triton: ReadonlySet<string>): number[] {
  return triton.size ? rows.flatMap((row, n) => (row.triton.some((id) => triton.has(id)) ? [n] : [])) : [];
}

/** The first of `places` after `now`, or the last one before it; around the ends. -1 if there is none. */
export function nextPlace(places: readonly number[], now: number, by: 1 | -1): number {
  if (!places.length) return -1;
  if (by > 0) return places.find((n) => n > now) ?? places[0]!;
  return [...places].reverse().find((n) => n < now) ?? places[places.length - 1]!;
}

/** A sign for what a row is, so that colour is not all that tells. */
export const MARKS: Record<string, [sign: string, spoken: string]> = {
  matrix: ["×", "matrix instruction"],
  wait: ["…", "wait"],
  barrier: ["‖", "barrier"],
  load: ["↓", "load"],
  store: ["↑", "store"],
  spill: ["!", "spill"],
};

/** The mark of a kind: "matrix", "wait", "barrier", "spill", or whether memory is loaded or stored; "" for others. */
export function markOf(kind: string): string {
  if (!kind || kind === "head") return "";
  if (kind in MARKS) return kind;
  if (kind.startsWith("spill")) return "spill";
  return /store/.test(kind) ? "store" : "load";
}

// -- colours ---------------------------------------------------------------------------------------------------------

export interface Piece {
  /** A comment, a string, an opcode, a number, a register or name, or the rest. */
  kind: "c" | "s" | "k" | "n" | "r" | "";
  text: string;
}

const COMMENT: Record<string, string> = {
  ttir: "//.*$",
  ttgir: "//.*$",
  llir: ";.*$",
  ptx: "//.*$",
  sass: "//.*$|/\\*.*?\\*/",
  amdgcn: "[;#].*$|//.*$|/\\*.*?\\*/",
};
const STRING = '"(?:[^"\\\\]|\\\\.)*"';
const REGISTER: Record<string, string> = {
  ttir: "[%#!^][\\w.:]+",
  ttgir: "[%#!^][\\w.:]+",
  llir: '[%@#!][\\w.$]+|[%@]"[^"]*"',
  ptx: "%[\\w.]+|\\$L\\w+",
  sass: "\\b(?:UR|R|UP|P|SB)\\d+\\b|\\b(?:RZ|URZ|PT|UPT)\\b|\\.L_\\w+",
  amdgcn: "\\b[vsa]\\d+\\b|\\b[vsa]\\[[^\\]]*\\]|\\b(?:vcc|exec|scc|m0)(?:_lo|_hi)?\\b|\\.L\\w+",
};
const NUMBER = "-?\\b0x[0-9a-fA-F]+\\b|\\b\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?\\b";
/** The word of an instruction: the first of its line, behind what it defines, its address and its predicate. */
const OPCODE: Record<string, RegExp> = {
  ttir: /^\s*(?:%[^=]*=\s*)?"?([a-z][\w.]*)/,
  ttgir: /^\s*(?:%[^=]*=\s*)?"?([a-z][\w.]*)/,
  llir: /^\s*(?:%[^=]*=\s*)?((?:tail )?[a-z][\w.]*)/,
  ptx: /^\s*(?:@!?%p\d+\s+)?(\.?[a-z][\w.:]*)/,
  sass: /^\s*(?:\/\*[0-9a-f]+\*\/\s*)?(?:@!?U?P\w+\s+)?(\.?[A-Za-z][\w.]*)/,
  amdgcn: /^\s*(\.?[a-z]\w*)/,
};

const patterns = new Map<string, RegExp>();
function patternOf(stage: string): RegExp {
  let found = patterns.get(stage);
  if (!found) patterns.set(stage, (found = new RegExp(`(${COMMENT[stage] ?? "//.*$"})|(${STRING})|(${REGISTER[stage] ?? "%\\w+"})|(${NUMBER})|([A-Za-z_.][\\w.]*|\\s+|.)`, "gu")));
  return found;
}

/** A line of a stage in pieces of one colour each; together they are the line. */
export function pieces(line: string, stage: string): Piece[] {
  const found: Piece[] = [];
  const put = (kind: Piece["kind"], text: string) => {
    const last = found[found.length - 1];
    if (last && last.kind === kind) last.text += text;
    else found.push({ kind, text });
  };
  const opcode = OPCODE[stage]?.exec(line);
  // A label is no instruction.
  const at = opcode && line[opcode[0].length] !== ":" ? opcode[0].length - opcode[1]!.length : -1;
  for (const m of line.matchAll(patternOf(stage))) {
    const isOpcode = at >= m.index && at < m.index + m[0].length && m[1] === undefined;
    put(isOpcode ? "k" : m[1] !== undefined ? "c" : m[2] !== undefined ? "s" : m[3] !== undefined ? "r" : m[4] !== undefined ? "n" : "", m[0]);
  }
  return found;
}

// -- resources -------------------------------------------------------------------------------------------------------

/** A figure of the strip: a number with its unit, what it is about in more words, and the rows that a press leads to. */
export interface Figure {
  text: string;
  title: string;
  mark?: string;
  bad?: boolean;
}

const sum = (rows: readonly (readonly [string, number])[]): number => rows.reduce((all, [, n]) => all + n, 0);
const listed = (rows: readonly (readonly [string, number])[]): string => rows.map(([name, n]) => `${n} ${name}`).join("\n");
const kib = (bytes: number): string => (bytes % 1024 === 0 ? `${bytes / 1024} KiB` : bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(1)} KiB`);

/** What a kernel needs, in the order in which one reads it. */
export function figures(r: Resources): Figure[] {
  const { occupancy: o, counts: c } = r;
  const memory = c.memory.map((m): [string, number, string] => [`${m.kind} of ${m.bytes === null ? "a tile" : `${m.bytes} B`}`, m.count, markOf(m.kind)]);
  const ofMark = (mark: string): [string, number][] => memory.filter((m) => m[2] === mark).map(([name, n]) => [name, n]);
  const loads = ofMark("load");
  const stores = ofMark("store");
  const matrix = c.matrix.map((m): [string, number] => [m.name, m.count]);
  const limited = o.limited_by.join(" and ");
  const made: Figure[] = [
    { text: `${r.registers} registers`, title: `per thread${r.scalar_registers ? `, and ${r.scalar_registers} scalar registers per wave` : ""}; ${r.threads} threads per block, in ${r.warps} warps` },
    r.local_bytes
      ? { text: `✗ ${r.local_bytes} B spilled`, title: `local memory per thread\n${listed(ofMark("spill"))}`, mark: "spill", bad: true }
      : { text: "no spills", title: "no local memory" },
    { text: `${kib(r.shared_bytes)} shared`, title: `shared memory per block${r.tensor_memory_columns ? `, and ${r.tensor_memory_columns} columns of tensor memory` : ""}` },
    o.blocks
      ? { text: `${o.warps} of ${o.most_warps} warps, limited by ${limited}`, title: `occupancy: ${o.blocks} blocks reside on one multiprocessor, limited by ${limited}\n${o.limits.map(([name, n]) => `${name} admit ${n} blocks`).join("\n")}` }
      : { text: `✗ does not fit: ${limited}`, title: "not even one block fits on a multiprocessor", bad: true },
  ];
  for (const [mark, name, rows] of [["matrix", "matrix", matrix], ["wait", "waits", c.waits], ["barrier", "barriers", c.barriers], ["load", "loads", loads], ["store", "stores", stores]] as const)
    made.push(rows.length ? { text: `${MARKS[mark]![0]} ${sum(rows)} ${name}`, title: `${listed(rows)}\npress: the next one`, mark } : { text: `no ${name}`, title: "" });
  return made;
}
