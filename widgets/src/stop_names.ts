// How steps and stops are called in the list of steps and in sentences.

import type { Doc, Stop } from "./record";

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
