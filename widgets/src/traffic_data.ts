// What Python counted of every form of the program (neptune_widgets/panes/traffic.py), and how it is put in words.

import type { Stop } from "./record";

export interface Form {
  name: string;
  /** Of the record; null for the kernel. */
  step: number | null;
  phase: string;
}
export interface TensorBytes {
  name: string;
  bytes: number;
  loaded: number;
  stored: number;
  read: number;
  written: number;
  exact: boolean;
}
export interface StageBytes {
  name: string;
  read: number;
  written: number;
  moved: number;
  chip: number;
  operations: number;
}
export interface Counts {
  tensors: TensorBytes[];
  stages: StageBytes[];
  read: number;
  written: number;
  moved: number;
  chip: number;
  operations: number;
  products: number;
  exact: boolean;
}
export interface Level {
  name: string;
  shared: boolean;
  bytes: number | null;
  gbps: number | null;
}
export interface Gpu {
  name: string;
  sm_count: number;
  tflops: number;
  gbps: number;
  levels: Level[];
  /** Per form the position of its counts. */
  counts: number[];
  us: (number | null)[];
  bound: (string | null)[];
}
export interface Found {
  forms: Form[];
  counts: Counts[];
  gpus: Gpu[];
  here: string;
}

/** A form at one GPU. */
export interface At {
  form: Form;
  index: number;
  counts: Counts;
  us: number | null;
  bound: string | null;
}

export const gpuOf = (found: Found, name: string | undefined): Gpu => found.gpus.find((g) => g.name === name) ?? found.gpus.find((g) => g.name === found.here) ?? found.gpus[0]!;

export const formAt = (found: Found, gpu: Gpu, index: number): At => ({ form: found.forms[index]!, index, counts: found.counts[gpu.counts[index]!]!, us: gpu.us[index] ?? null, bound: gpu.bound[index] ?? null });

/** The form that a stop shows: its phase, the kernel for HTile and Triton; a refused step changed nothing. */
export function formOf(found: Found, stop: Stop): number {
  if (stop.kind !== "loops") return found.forms.length - 1;
  const loops = found.forms.filter((f) => f.step !== null);
  if (!stop.refused) {
    const at = loops.findIndex((f) => f.step === stop.step && f.phase === stop.phase);
    if (at >= 0) return at;
  }
  return Math.max(0, loops.filter((f) => f.step! < stop.step).length - 1);
}

/** The stop of the explorer that shows a form. */
export const stopKey = (form: Form): string => (form.step === null ? "triton" : `${form.step}.${form.phase}`);

export const hbm = (c: { read: number; written: number }): number => c.read + c.written;

/** Operations per byte of HBM. */
export const intensity = (c: { read: number; written: number; operations: number }): number => c.operations / Math.max(1, hbm(c));

/** 10^12 operations per second that the roof allows at this intensity. */
export const roof = (gpu: Gpu, perByte: number): number => Math.min(gpu.tflops, (perByte * gpu.gbps) / 1000);

const scaled = (value: number, units: string[], base = 1000): string => {
  let n = 0;
  let x = value;
  while (Math.abs(x) >= base && n < units.length - 1) (x /= base), n++;
  const digits = x === 0 || x >= 100 ? 0 : x >= 10 ? 1 : 2;
  return `${Number(x.toFixed(digits)).toLocaleString("en")} ${units[n]}`.trim();
};

export const bytesText = (n: number): string => scaled(n, ["B", "kB", "MB", "GB", "TB", "PB"]);
/** A size of a memory, which is a power of two. */
export const sizeText = (n: number): string => (n % 1024 ? bytesText(n) : scaled(n, ["B", "KiB", "MiB", "GiB"], 1024));
export const opsText = (n: number): string => scaled(n, ["", "k", "M", "G", "T", "P"]);
export const rateText = (gbps: number): string => (gbps >= 10_000 ? `${Number((gbps / 1000).toPrecision(3))} TB/s` : `${gbps.toLocaleString("en", { maximumFractionDigits: 0 })} GB/s`);
export const usText = (us: number | null): string => (us === null ? "–" : us >= 1000 ? `${Number((us / 1000).toPrecision(3))} ms` : us > 0 && us < 0.001 ? "under 0.001 µs" : `${Number(us.toPrecision(3))} µs`);

/** What `before` is to be divided or multiplied by: "÷ 20", "× 1.5"; "+2 %" for less than 5 %. */
export function ratioText(before: number, after: number): string {
  if (before === after) return "the same";
  if (!before || !after) return after ? "from none" : "none left";
  const by = before > after ? before / after : after / before;
  const number = by >= 9.95 ? Math.round(by).toLocaleString("en") : Number(by.toPrecision(2)).toString();
  // A change of less than 5 % would read "× 1".
  if (by < 1.05) return `${before > after ? "−" : "+"}${Number((100 * Math.abs(after / before - 1)).toPrecision(2))} %`;
  return `${before > after ? "÷" : "×"} ${number}`;
}

/** Forms one after the other that count the same, as [first, last]. */
export function runs(gpu: Gpu, forms: Form[]): [number, number][] {
  const out: [number, number][] = [];
  forms.forEach((form, n) => {
    const last = out[out.length - 1];
    if (last && form.step !== null && n > 1 && gpu.counts[n] === gpu.counts[last[1]]) last[1] = n;
    else out.push([n, n]);
  });
  return out;
}
