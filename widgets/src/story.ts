// The lesson of a record in a few stops, made from the record alone: what is computed, fused and wrong, why, right, the kernel.

import { blockOf } from "./links";
import { type Doc, type Line, type Stop, stopName } from "./record";

export type Part = "definition" | "wrong" | "why" | "right" | "kernel";

export interface StoryStop {
  part: Part;
  title: string;
  /** One or two sentences, in the words of the record. */
  text: string;
  /** The stop of the record that the panes show. */
  key: string;
  /** What is lit: ids as in a selection. */
  select: string[];
  /** What these are, in a few words, where the text does not say it. */
  marks?: string;
}

/** Names as a sentence has them; of many the first few, since a sentence on dozens of blocks is not read. */
const list = (names: readonly string[]): string => {
  const shown = names.length > 6 ? [...names.slice(0, 4), `${names.length - 4} more`] : names;
  return shown.length < 2 ? shown.join("") : `${shown.slice(0, -1).join(", ")} and ${shown[shown.length - 1]}`;
};
const only = <T>(items: readonly T[]): T[] => [...new Set(items)];

/** Blocks of a stop that read a reduction before it is complete, with what they read. */
function earlyReads(stop: Stop): { reader: string; producer: string }[] {
  const found = (stop.graph?.edges ?? []).filter((e) => e.kind === "early").map((e) => ({ reader: e.target, producer: e.source }));
  return found.filter((e, n) => found.findIndex((x) => x.reader === e.reader && x.producer === e.producer) === n);
}

/** What the step that made `stop` repairs of `consumer`. */
function repairedReads(loops: readonly Stop[], stop: Stop, consumer: string): { reader: string; producer: string }[] {
  const edges = loops.filter((s) => s.step === stop.step).flatMap((s) => s.graph?.edges ?? []);
  return edges.filter((e) => e.kind === "repaired" && e.target === consumer).map((e) => ({ reader: e.target, producer: e.source }));
}

/** The lines of a program by node id; a long statement has several, of which the first is kept. */
const byNode = (lines: readonly Line[]): Map<string, string> => {
  const found = new Map<string, string>();
  for (const line of lines) if (line.node) found.set(line.node, `${found.get(line.node) ?? ""}${line.text}\n`);
  return found;
};

/** Ids of the stores that one program has and the other has not, or has otherwise. */
function changed(before: readonly Line[], after: readonly Line[]): string[] {
  const was = byNode(before);
  return [...byNode(after)].filter(([node, text]) => node.startsWith("store:") && was.get(node) !== text).map(([node]) => node);
}

const reductions = (doc: Doc): string[] => (doc.stops[0]!.graph?.nodes ?? []).filter((n) => n.kind === "reduce").map((n) => n.id);

/** The stops of the story, in order; empty if the record has nothing but its definition, or is not here whole. */
export function storyOf(doc: Doc): StoryStop[] {
  if (!doc.complete) return [];
  const first = doc.stops[0]!;
  const loops = doc.stops.filter((s) => s.kind === "loops" && !s.refused);
  const last = loops[loops.length - 1]!;
  const code = doc.byKey.get("triton");
  if (last === first && !code) return [];
  const wrong = loops.filter((s) => s.wrong && earlyReads(s).length > 0);
  const accepted = (stop: Stop) => loops.some((s) => s.step === stop.step && s.derivation?.accepted);
  // At small sizes a loop of one iteration reads nothing early, and the steps that repair it are the same.
  const told = wrong.find(accepted) ?? wrong[0] ?? loops.find((s) => s.phase === "naive" && accepted(s));
  return told ? repaired(doc, loops, told, code) : fused(doc, first, last, code);
}

/** The reduction that a step fuses, by the step's argument; else the first block that reads early. */
function consumerOf(doc: Doc, wrong: Stop, readers: readonly string[]): string {
  const block = doc.trace.steps.find((s) => s.index === wrong.step && s.error === null)?.arguments.block;
  return typeof block === "string" && wrong.graph?.nodes.some((n) => n.id === block) ? block : stageOf(wrong, readers[0]!);
}

/** The stage of the definition that a block came from. */
const stageOf = (stop: Stop, block: string): string => stop.lines.find((l) => l.node === `store:${block}`)?.origin || block;

/** What is said where a reduction rolls along another one's loop, and where each split of it stands by itself. */
const WORDS = {
  once: (c: string, p: string) => `${c} moves into the loop of ${p}. At these sizes the loop has one iteration: ${p} is complete when it is read, and nothing is wrong. At larger sizes a later iteration changes ${p}, and needs the repair.`,
  rolling: {
    wrong: (c: string, p: string, reader: string) => `${c} moves into the loop of ${p}. There ${reader} reads ${p} as it is so far. A later iteration changes ${p}, and the terms that were added before are wrong.`,
    why: (c: string, p: string, h: string) => `h turns a value t of ${c} that was made with the old ${p} into the one that the new ${p} gives: ${h}. It is derived from the terms of ${c}, and proved.`,
    right: (c: string) => `${c} applies h to what it has before it adds the next terms, so one pass is enough.`,
  },
  split: {
    wrong: (c: string, p: string, reader: string) => `${c} is cut into splits, and in each ${reader} reads the ${p} of that split alone. The splits have different ones, so what they sum does not add up to ${c}.`,
    why: (c: string, p: string, h: string) => `h turns a value t of ${c} that was made with the ${p} of one split into the one that the ${p} of all splits gives: ${h}. It is derived from the terms of ${c}, and proved.`,
    right: (c: string) => `${c} applies h to what each split has as it combines them, so the splits run side by side.`,
  },
};

function repaired(doc: Doc, loops: readonly Stop[], wrong: Stop, code: Stop | undefined): StoryStop[] {
  const first = doc.stops[0]!;
  const early = earlyReads(wrong);
  const readers = only(early.map((e) => e.reader));
  const made = doc.trace.steps.find((s) => s.index === wrong.step && s.error === null);
  const once = !early.length;
  const consumer = consumerOf(doc, wrong, readers);
  const found = only((once ? repairedReads(loops, wrong, consumer) : early).map((e) => stageOf(wrong, e.producer)));
  // A vector repair of a loop with one iteration shows no read of its own: the loop's reduction is what is read.
  const rolled = String(made?.arguments.loop ?? "").split(".")[0]!;
  const producers = found.length || !rolled ? found : [stageOf(wrong, rolled)];
  const producer = list(producers) || "the reductions before it";
  const reader = readers.includes(consumer) ? consumer : list(readers);
  const words = made?.primitive === "split_k_update" ? WORDS.split : WORDS.rolling;
  const step = loops.filter((s) => s.step === wrong.step);
  const why = step.find((s) => s.derivation) ?? null;
  const right = [...step].reverse().find((s) => !s.wrong) ?? null;
  const accepted = why?.derivation?.accepted ?? false;
  const others = only(loops.filter((s) => s.wrong && s.step !== wrong.step && earlyReads(s).length > 0).map((s) => s.step)).length;
  const ids = (blocks: readonly string[]) => only(blocks).map((b) => `graph:${b}`);

  const stops: StoryStop[] = [
    {
      part: "definition",
      title: "Definition",
      text: `${list(reductions(doc))} are reductions, each a loop of its own. The terms of ${consumer} need ${producer}, ${producers.length > 1 ? "which are complete only after their whole loops" : "which is complete only after its whole loop"}: two passes over the same values.`,
      key: first.key,
      select: ids([...producers, consumer]),
    },
    { part: "wrong", title: once ? "Fused" : "Fused: wrong", text: once ? WORDS.once(consumer, producer) : words.wrong(consumer, producer, reader), key: wrong.key, select: ids([...readers, consumer]) },
  ];
  if (why?.derivation) {
    const { summary } = why.derivation;
    const said = accepted ? words.why(consumer, producer, summary) : `There is no repair, so ${consumer} keeps a loop of its own: ${summary}.`;
    stops.push({ part: "why", title: accepted ? "Why" : "Why not", text: said, key: why.key, select: ids([consumer]) });
  }
  if (right && accepted) {
    const lines = changed(wrong.lines, right.lines);
    const own = lines.filter((id) => blockOf(id) === consumer);
    const more = others ? ` ${others === 1 ? "One more reduction is" : `${others} more reductions are`} repaired in the same way by later steps.` : "";
    stops.push({ part: "right", title: "Repaired: right", text: `${words.right(consumer)}${more}`, key: right.key, select: own.length ? own : lines });
  }
  if (code) stops.push(kernel(doc, code, [consumer]));
  return stops;
}

/** Nothing is read early: the stages are fused as they are. */
function fused(doc: Doc, first: Stop, last: Stop, code: Stop | undefined): StoryStop[] {
  const names = reductions(doc);
  const stages = `${doc.definition.length} ${doc.definition.length === 1 ? "stage" : "stages"}`;
  const stops: StoryStop[] = [
    {
      part: "definition",
      title: "Definition",
      text: names.length ? `${stages}; ${list(names)} ${names.length === 1 ? "is a reduction" : "are reductions"}.` : `${stages}, each element by element.`,
      key: first.key,
      select: names.map((n) => `graph:${n}`),
    },
  ];
  if (last !== first)
    stops.push({ part: "right", title: "Scheduled", text: `${doc.stops.some((s) => s.derivation && !s.derivation.accepted) ? "A repair was refused, as the derivation says: the stage that needs it has a loop of its own." : "No stage reads a reduction before it is complete, so nothing has to be repaired."} The loops after ${stopName(last)}.`, key: last.key, select: [] });
  if (code) stops.push(kernel(doc, code, names));
  return stops;
}

/** The lines of the kernel that compute these blocks. */
function kernel(doc: Doc, code: Stop, blocks: readonly string[]): StoryStop {
  const stages = new Set(blocks.map((b) => `store:${b}`));
  const lines = doc.source.filter((l) => l.blocks.some((b) => stages.has(b)));
  const launches = doc.trace.kernel?.launches.length ?? 0;
  return {
    part: "kernel",
    title: "Kernel",
    text: `${launches === 1 ? `One ${doc.language} kernel` : `${launches} ${doc.language} kernels`}.`,
    key: code.key,
    select: lines.map((l) => `triton:${l.number}`),
    ...(lines.length ? { marks: `the lines of ${list(blocks)}` } : {}),
  };
}
