// A line explained: what it does, where it comes from, which step made or last changed it, and its repair. All of it is
// read from the record.

import { type Words, listed, ofBlock, ofCalls, ofLoop, ofPython, ofTile, ofWords, temporaryOf } from "./explain_words";
import { type Change, historyOf } from "./history";
import { type Index, blockOf, relate } from "./links";
import { stagesOf, userLines } from "./python_lines";
import type { Doc, Line, Stop } from "./record";

export interface Place {
  stage: "Python" | "Definition" | "Loops" | "HTile" | "Kernel code";
  /** Line numbers, counted from 1, and the ids to select. */
  numbers: number[];
  ids: string[];
}
export interface Explanation {
  title: string;
  sentences: string[];
  /** The lines of the definition that it comes from, or that it became. */
  definition: string[];
  /** The lines of the user's Python that it comes from. */
  python: string[];
  places: Place[];
  /** The stops that made, changed or moved it, the last one last. */
  history: Change[];
  repair: { stop: Stop; summary: string; rule: string } | null;
  terms: string[];
}

const only = <T>(items: readonly T[]): T[] => [...new Set(items)];

/** The loop stop whose program and graph a line belongs to: the current one, else the last. */
function loopStop(doc: Doc, stop: Stop): Stop {
  const loops = doc.stops.filter((s) => s.kind === "loops" && !s.refused);
  return stop.kind === "loops" ? stop : loops[loops.length - 1]!;
}

/** The loops of rolling updates up to a stop, by variable, with the blocks that they roll. */
function rollingLoops(doc: Doc, stop: Stop): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const step of doc.trace.steps) {
    const { block, loop } = step.arguments;
    if (step.primitive !== "rolling_update" || step.error !== null || step.index > stop.step || typeof block !== "string" || typeof loop !== "string") continue;
    const name = loop.slice(loop.lastIndexOf(".") + 1);
    found.set(name, [...(found.get(name) ?? []), block]);
  }
  return found;
}

/** The blocks inside the loop whose line has this id. */
function blocksUnder(lines: readonly Line[], node: string): string[] {
  const at = lines.findIndex((l) => l.node === node);
  const depth = (l: Line) => l.text.length - l.text.trimStart().length;
  const found: string[] = [];
  for (const line of at < 0 ? [] : lines.slice(at + 1)) {
    if (depth(line) <= depth(lines[at]!)) break;
    if (line.node.startsWith("store:")) found.push(line.node.slice(6));
  }
  return only(found);
}

const isRepaired = (stop: Stop, block: string): boolean => (stop.graph?.edges ?? []).some((e) => e.target === block && e.kind === "repaired");

/** The derivation of a block's repair: of the last step up to `stop` that fuses a block of the same stage. */
function repairOf(doc: Doc, stop: Stop, block: string): Explanation["repair"] {
  const origin = stageOf(stop, block);
  const end = doc.stops.indexOf(stop);
  for (const s of [...doc.stops.slice(0, end + 1)].reverse()) {
    if (!s.derivation?.accepted || s.refused) continue;
    const fused = doc.trace.steps.find((x) => x.index === s.step && x.error === null)?.arguments.block;
    if (typeof fused !== "string" || stageOf(s, fused) !== origin) continue;
    const names = only(s.derivation.steps.filter((x) => x.ok).map((x) => x.title.split(":")[0]!));
    const proofs = names.filter((n) => n.startsWith("Prove ")).map((n) => n.slice(6));
    const rules = names.filter((n) => !/^(Read|Prove|Check|Guard|Range)\b/.test(n));
    return { stop: s, summary: s.derivation.summary, rule: `By ${rules.join(", ") || "a given repair"}${proofs.length ? `; proved: ${proofs.join(", ")}` : ""}` };
  }
  return null;
}
const stageOf = (stop: Stop, block: string): string => stop.lines.find((l) => l.node === `store:${block}`)?.origin || block;

/** What a line does, and the block of the loop program that it belongs to. */
function wordsOf(doc: Doc, index: Index, id: string, stop: Stop, text: string): { words: Words[]; block: string | null } {
  const loops = loopStop(doc, stop);
  const user = index.python.get(id);
  if (user) return { words: ofPython(user.text, stagesOf(user.definition), stagesOf(user.within)), block: null };
  if (id.startsWith("triton:")) return ofCode(doc, index, id, stop, text);
  const stage = index.stage.get(id);
  if (stage === "definition") {
    const name = id.slice(id.indexOf(":") + 1);
    const line = doc.definition.find((l) => l.node === id);
    const graph = doc.stops[0]!.graph;
    return { words: [...(graph ? ofBlock(graph, name, (b) => b) : []), ...ofWords(line?.words ?? [])], block: null };
  }
  if (stage === "htile") {
    const stops = doc.stops.filter((s) => s.kind === "htile");
    const line = (stop.kind === "htile" ? [stop, ...stops.slice().reverse()] : stops.slice().reverse()).flatMap((s) => s.lines).find((l) => l.node === id);
    const block = line?.refs.map(blockOf).find((b) => b !== null) ?? null;
    const last = loopStop(doc, { ...stop, kind: "htile" });
    // What the block is in the algorithm, then how its tile is computed; of a tile on the way, only the latter.
    const meaning = block !== null && line?.kind === "tile" && temporaryOf(id) === "" && last.graph ? ofBlock(last.graph, block, (b) => stageOf(last, b)) : [];
    const loop = line?.kind === "for" ? last.lines.find((l) => line.refs.includes(l.node) && l.kind === "loop") : undefined;
    if (loop) meaning.push(...ofLoop(loop.text, rollingLoops(doc, last), blocksUnder(last.lines, loop.node), last.graph).slice(1));
    return { words: [...meaning, ...ofTile(id, line?.kind ?? "tile", line?.words ?? [])], block };
  }
  if (stage === undefined) {
    // A line of another pane, such as machine code, is what the line of the source is that it was compiled from.
    const source = [...relate(doc, index, [id], stop).triton][0];
    return source ? ofCode(doc, index, source, stop, text) : { words: [], block: null };
  }
  const here = loops.lines.some((l) => l.node === id) ? loops : ([...doc.stops].reverse().find((s) => s.kind === "loops" && s.lines.some((l) => l.node === id)) ?? loops);
  const block = blockOf(id);
  if (block === null) return { words: ofLoop(here.lines.find((l) => l.node === id)?.text ?? text, rollingLoops(doc, here), blocksUnder(here.lines, id), here.graph), block: null };
  const words = here.graph ? ofBlock(here.graph, block, (b) => stageOf(here, b)) : [];
  if (id.startsWith("guard:")) words.unshift({ text: "A condition: outside it, the block is not run for an iteration, since there is no such element.", terms: [] });
  return { words: [...words, ...ofWords(here.lines.find((l) => l.node === `store:${block}`)?.words ?? [])], block };
}

/** The statement of HTile that a line of the source was emitted for; undefined if it serves several. */
function statementOf(doc: Doc, id: string): string | undefined {
  const line = doc.source[Number(id.slice(7)) - 1];
  if (!line) return undefined;
  // The copies of a partitioned loop are one statement.
  const several = only(line.nodes.map((n) => n.replace(/\/(interior|left|right)$/, ""))).length > 1;
  return (/^\s*for\b/.test(line.text) ? line.nodes.find((n) => n.startsWith("for:")) : undefined) ?? (several ? undefined : line.nodes[0]);
}

/** A line of the kernel's source: what its calls do, and what the statements do that it was emitted for. */
function ofCode(doc: Doc, index: Index, id: string, stop: Stop, text: string): { words: Words[]; block: string | null } {
  const line = doc.source[Number(id.slice(7)) - 1];
  const { prepares, computes } = ofCalls(line?.text ?? text);
  if (!line?.nodes.length) return { words: [...prepares, ...computes, { text: "This line belongs to no statement of the program: it is an import, a helper, a name or the launch.", terms: [] }], block: null };
  const main = statementOf(doc, id);
  const loop = main?.startsWith("for:") && /^\s*for\b/.test(line.text);
  const made = main ? wordsOf(doc, index, main, stop, text) : null;
  if (made && (loop || !prepares.length)) return { words: [...made.words, ...computes], block: made.block };
  const blocks = only(line.blocks.map((b) => blockOf(b)).filter((b) => b !== null));
  const users = listed(blocks);
  const shared: Words = { text: blocks.length === 1 ? `It prepares the statement of ${users}.` : `${prepares.length ? "It is" : "A value that is"} shared by the statements of ${users}.`, terms: [] };
  return { words: [...prepares, ...computes, ...(users ? [shared] : [])], block: null };
}

/** Everything that there is to say of a line. `text` is what the pane shows of it. */
export function explain(doc: Doc, index: Index, id: string, stop: Stop, text: string): Explanation {
  const { words, block } = wordsOf(doc, index, id, stop, text);
  const user = index.python.has(id);
  const related = relate(doc, index, [id], stop);
  const shown = stop.kind === "loops" ? stop.lines : doc.program;
  const place = (stage: Place["stage"], lines: readonly { node: string }[], ids: ReadonlySet<string>): Place => ({
    stage,
    numbers: lines.flatMap((l, n) => (ids.has(l.node) ? [n + 1] : [])),
    ids: [...ids].filter((x) => lines.some((l) => l.node === x)),
  });
  const places = [
    {
      stage: "Python" as const,
      numbers: user ? [] : userLines(doc).flatMap((l) => (related.python.has(l.node) ? [l.number] : [])),
      ids: user ? [] : [...related.python],
    },
    place("Definition", doc.definition, related.definition),
    place("Loops", shown, related.loops),
    place("HTile", doc.htile, related.htile),
    place("Kernel code", doc.triton, related.triton),
  ].filter((p) => p.numbers.length > 0 && !(p.ids.length === 1 && p.ids[0] === id && related.definition.size === 0));
  const stage = id.startsWith("triton:") ? "code" : user ? "python" : (index.stage.get(id) ?? "code");
  // Of a line of code: the statement of HTile that it was emitted for, and the block of that.
  const source = id.startsWith("triton:") ? id : stage === "code" ? [...related.triton][0] : undefined;
  const tile = source ? statementOf(doc, source) : stage === "htile" ? id : undefined;
  const loop = stage === "loops" ? id : block ? `store:${block}` : undefined;
  const now = loopStop(doc, stop);
  const history = [
    ...(loop ? historyOf(doc, loop, "loops", stage === "loops" ? now : null) : []),
    ...(tile ? historyOf(doc, tile, "htile", stage === "htile" ? stop : null) : []).filter((c) => !loop || c.stop.key !== "htile.0"),
  ];
  const at = stage === "loops" ? now : loopStop(doc, { ...stop, kind: "triton" });
  const repair = block && ["", "repair"].includes(tile ? temporaryOf(tile) : "") && isRepaired(at, block) ? repairOf(doc, at, block) : null;
  const sentences = only(words.map((w) => w.text));
  return {
    title: text.trim().length > 60 ? `${text.trim().slice(0, 59)}…` : text.trim(),
    sentences,
    python: user ? [] : [...related.python].map((p) => index.python.get(p)!.text.trim()),
    definition: doc.definition.filter((l) => related.definition.has(l.node)).map((l) => l.text),
    places,
    history,
    repair,
    terms: only(words.flatMap((w) => w.terms)).slice(0, 6),
  };
}
