// What a statement does, as a sentence, with the terms of the glossary that the sentence uses.

import { withoutStage } from "./python_lines";
import type { Graph } from "./record";

export interface Words {
  text: string;
  terms: string[];
}
const say = (text: string, ...terms: string[]): Words => ({ text, terms });
export const listed = (names: readonly string[]): string => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`);
const only = <T>(items: readonly T[]): T[] => [...new Set(items)];

/** "sum over d" as the graph says it; of a scan, "max by tags". */
const fold = (detail: string): string => detail.replace(/^(\S+) (over .*|by tags)$/, "$1 $2");

/** What a block of a loop program does, by its node of the dataflow graph; `stageOf` gives the stage of a block. */
export function ofBlock(graph: Graph, block: string, stageOf: (block: string) => string): Words[] {
  const node = graph.nodes.find((n) => n.id === block);
  if (!node) return [];
  const edges = graph.edges.filter((e) => e.target === block);
  const reads = listed(only(edges.map((e) => e.tensor)));
  const early = only(edges.filter((e) => e.kind === "early").map((e) => stageOf(e.source)));
  const by = only(edges.filter((e) => e.kind === "repaired").map((e) => stageOf(e.source)));
  const partial = graph.nodes.find((n) => (n.role === "tile" || n.role === "local") && edges.some((e) => e.source === n.id));
  const said: Words[] = [];
  switch (node.role) {
    case "tile":
      said.push(say(`Reduces one tile (${fold(node.detail)}): the partial result of this iteration of the rolling loop.`, "tile", "reduction", "rolling loop"));
      break;
    case "local":
      said.push(say(`Reduces one part of the split loop (${fold(node.detail)}). The parts run side by side, each with a partial result of its own.`, "split-k", "privatise", "reduction"));
      break;
    case "scan":
      said.push(say(`A running reduction that keeps its value of every iteration, one per tag, in a scan buffer.`, "scan buffer", "tag", "rolling loop"));
      break;
    case "current":
      said.push(say(`A running reduction: the value of this iteration, from ${reads}. Only this value and the previous one are kept.`, "reduction", "rolling loop", "tag"));
      break;
    case "initial":
      said.push(say(`Writes the start value: the identity of the reduction, which changes nothing when it is folded.`, "identity", "accumulator"));
      break;
    case "retire":
      said.push(say(`Copies the value of this iteration to where the next iteration reads the previous one.`, "tag", "rolling loop"));
      break;
    case "rolled":
      said.push(say(`Computes ${block} element by element from ${reads}, again in each iteration of the rolling loop, with the values so far.`, "rolling loop"));
      break;
    case "cache":
      said.push(say(`Copies ${reads} to faster memory.`, "shared memory", "registers"));
      break;
    case "global":
      said.push(
        partial?.role === "local"
          ? say(`Combines the partial results of all parts (${fold(node.detail)}).`, "split-k", "reduction")
          : say(`The accumulator: folds the partial result of each tile (${fold(node.detail)}).`, "accumulator", "fold", "reduction"),
      );
      break;
    default:
      said.push(
        node.kind === "reduce"
          ? say(`A reduction (${fold(node.detail)}) of values computed from ${reads}.`, "reduction", "reducer")
          : say(`Computes ${block} element by element from ${reads || "constants"}.`, "stage"),
      );
  }
  if (by.length) said.push(say(`The repair term corrects what was folded with an old value of ${listed(by)}, before the new value is added.`, "repair term", "f, g, h"));
  if (early.length) said.push(say(`It reads ${listed(early)} before that is complete: in this phase the numbers are wrong on purpose.`, "producer", "consumer"));
  return said;
}

/** What a line of the user's Python became: `own` are its stages, `within` those that compute something of it. */
export function ofPython(text: string, own: readonly string[], within: readonly string[]): Words[] {
  if (!own.length && !within.length) return [say(withoutStage(text))];
  const said: Words[] = [];
  const stages = (names: readonly string[]) => `${names.length === 1 ? "the stage" : `${names.length} stages:`} ${listed(names)}`;
  if (own.length) said.push(say(`This line of your function became ${stages(own)}.`, "stage"));
  if (within.length) said.push(say(`${own.length ? "It is also" : "This line of your function has no stage of its own: it is"} computed inside ${stages(within)}.`, "stage"));
  return said;
}

/** What the words behind a line's kind add: masks and guards. */
export function ofWords(words: readonly string[]): Words[] {
  const said: Words[] = [];
  if (words.includes("mask")) said.push(say("A mask on positions hides elements: the value that stands for them does not change the result.", "mask"));
  if (words.includes("guard")) said.push(say("A guard replaces an infinite value by a finite one, so that the difference of two infinities cannot occur.", "guard"));
  return said;
}

/** What a line "for …" of a loop program does. */
export function ofLoop(text: string, rolling: ReadonlyMap<string, readonly string[]>, blocks: readonly string[], graph: Graph | null): Words[] {
  const m = /^\s*for (.+) in (?:range|grid)\((.*)\):\s*(?:#\s*(.*))?$/.exec(text);
  if (!m) return [];
  const names = m[1]!.split(", ");
  const extents = m[2]!.split(", ");
  const said = [say(names.length > 1 ? `Loops over ${listed(names.map((n, k) => `${n} (${extents[k]})`))}.` : `A loop over ${names[0]}: ${extents[0]} ${extents[0] === "1" ? "iteration" : "iterations"}.`)];
  if (/\bblockIdx\./.test(m[3] ?? "")) said.push(say("Its iterations are program instances of the grid: they run in parallel.", "grid", "program instance"));
  else if ((m[3] ?? "").includes("parallel")) said.push(say("Its iterations run in parallel."));
  const rolled = only(names.flatMap((n) => rolling.get(n) ?? []));
  if (rolled.length && blocks.length > 1) said.push(say(`This is the rolling loop of ${listed(rolled)}: each iteration updates what the iterations before it have folded.`, "rolling loop", "tag", "fusion"));
  else if (blocks.length > 1) said.push(say(`Around ${listed(blocks)}.`, "nest"));
  else if (blocks.length === 1) {
    const detail = graph?.nodes.find((n) => n.id === blocks[0])?.detail ?? "";
    const reduced = names.filter((n) => new RegExp(`over .*\\b${n}\\b`).test(detail));
    said.push(say(`The loops of ${blocks[0]}${reduced.length ? `, which is reduced over ${listed(reduced)}` : ""}.`, "block", ...(reduced.length ? ["reduction"] : [])));
  }
  return said;
}

/** The tile that a statement of HTile computes on the way, as the id "tile:s_sum/repair/interior" says; "" for a block's own. */
export function temporaryOf(node: string): string {
  const [, ...rest] = node.replace(/#\d+$/, "").split("/");
  return rest.find((part) => !["interior", "left", "right"].includes(part)) ?? "";
}

/** Which copy of a statement this is, if its loop was partitioned; `node` is an id of HTile. */
function ofPart(node: string): Words[] {
  if (node.endsWith("/interior")) return [say("This copy is for interior tiles, where the mask is true everywhere.", "interior tile", "loop partition")];
  if (/\/(left|right)$/.test(node)) return [say("This copy is for the edge tiles, which the mask cuts.", "edge tile", "loop partition")];
  return [];
}

/** What a kernel, a loop or a tile store of HTile does. */
export function ofTile(node: string, kind: string, words: readonly string[]): Words[] {
  const has = (word: string) => words.includes(word);
  if (kind === "kernel") return [say("A kernel: it is launched once, with a program instance for each point of the grid.", "kernel", "grid", "program instance")];
  if (kind === "for" && !has("copies")) {
    if (has("interior")) return [say("The interior of a partitioned loop: its tiles need no mask.", "loop partition", "interior tile", "mask")];
    if (has("left-edge") || has("right-edge")) return [say("An edge of a partitioned loop: its tiles keep the mask.", "loop partition", "edge tile", "mask")];
    if (has("visited")) return [say("The loop over the tiles that are visited: tiles that the mask hides completely are skipped.", "loop partition", "mask")];
    return [say("A loop over tiles: its iterations run one after another in each program instance.", "tile", "program instance")];
  }
  const temporary = temporaryOf(node);
  const reducer = ["sum", "max", "min", "prod"].find(has);
  const from = has("loads") ? " A tile of an input is loaded from global memory for it." : "";
  const said: Words[] = [];
  if (temporary === "repair") said.push(say("Computes the repair term as a tile of its own, once for all statements that use it.", "repair term", "tile"));
  else if (has("dot")) said.push(say(`Multiplies two tiles as matrices${has("accumulates") ? " and adds the product to the accumulator" : ""}.${from}`, "dot", ...(has("accumulates") ? ["accumulator"] : [])));
  else if (reducer) said.push(say(`Reduces a tile over one of its dimensions (${reducer}).${from}`, "reduction", "tile"));
  else if (has("fills")) said.push(say("Fills a tile with a constant: the start value of a reduction.", "identity", "tile"));
  else if (has("gathers")) said.push(say("Reads a tensor element by element, at computed positions.", "global memory"));
  else if (has("loads") && has("copies")) said.push(say("Loads a tile from global memory once, to be used many times.", "global memory", "tile"));
  else if (has("copies")) said.push(say("Copies a tile.", "tile"));
  else said.push(say(`Computes a tile element by element.${from}`, "tile"));
  if (has("loads")) said[0]!.terms.push("global memory");
  if (has("stores")) said.push(say("Writes the tile to global memory.", "global memory"));
  return [...said, ...ofWords(words), ...ofPart(node)];
}

/** Calls in a line of Triton or Gluon: those that prepare a statement, and those that are one. */
const PREPARE: [RegExp, Words][] = [
  [/\bprogram_id\(/, say("Asks which program instance this is: its number along one axis of the grid.", "program instance", "grid")],
  [/\bwarp_specialize\(/, say("Starts groups of warps that do different work: some load tiles, others compute.", "program instance")],
  [/\basync_copy_global_to_shared\(|\basync_load\(/, say("Starts a copy of a tile to shared memory, which runs beside the computation.", "shared memory", "global memory")],
  [/\bmbarrier\.wait\(/, say("Waits until a tile has arrived, or until its place is free again.", "shared memory")],
  [/\bmbarrier\.(arrive|expect)\(/, say("Tells the other group of warps that a tile is there, or that its place is free.", "shared memory")],
  [/\bload\(|\b_load\w*\(/, say("Loads a tile from global memory.", "global memory", "tile")],
  [/\barange\(/, say("The positions that a tile covers, as a vector.", "tile")],
];
const COMPUTE: [RegExp, Words][] = [
  [/\bwarpgroup_mma\(/, say("This is the matrix instruction of a Hopper GPU, on tiles in shared memory.", "dot", "shared memory")],
  [/\bdot\(/, say("This is the matrix instruction of the GPU.", "dot")],
  [/\bexp2\(/, say("exp is computed as exp2, which the GPU has; the argument contains the factor log2(e) = 1.4427.")],
];
const found = (calls: [RegExp, Words][], text: string): Words[] => calls.flatMap(([call, words]) => (call.test(text.replace(/#.*$/, "")) ? [words] : []));

/** What the calls in a line of emitted code do: `prepares` is what they do for a statement that another line computes. */
export const ofCalls = (text: string): { prepares: Words[]; computes: Words[] } => ({ prepares: /\bstore\(/.test(text) ? [] : found(PREPARE, text), computes: found(COMPUTE, text) });
