// The memories of a GPU, and what a form of the program moves between them: arrows as wide as the bytes.

import { svg } from "./dom";
import { type Counts, type Gpu, type Level, bytesText, hbm, rateText, sizeText } from "./traffic_data";

const WIDTH = 300;
const HEIGHT = 236;
/** The widest arrow. */
const WIDEST = 46;
const THINNEST = 1.2;
const LEFT = 8;
const INNER = WIDTH - 2 * LEFT;

/** Bytes that go between two levels: down to the multiprocessors, and up. */
export interface Flow {
  down: number;
  up: number;
}
export interface Flows {
  /** Between HBM and the L2 cache. */
  hbm: Flow;
  /** Between the L2 cache and the multiprocessors. */
  l2: Flow;
  chip: number;
}

export function flowsOf(counts: Counts): Flows {
  const sum = (name: "loaded" | "stored") => counts.tensors.reduce((s, t) => s + t[name], 0);
  return { hbm: { down: counts.read, up: counts.written }, l2: { down: sum("loaded"), up: sum("stored") }, chip: counts.chip };
}

/** The bytes that the widest arrow of each level stands for, over all pictures side by side. */
export function scaleOf(all: readonly Flows[]): Flows {
  const most = (f: (x: Flows) => number) => Math.max(1, ...all.map(f));
  const level = (name: "hbm" | "l2") => { const n = most((x) => Math.max(x[name].down, x[name].up)); return { down: n, up: n }; };
  return { hbm: level("hbm"), l2: level("l2"), chip: most((x) => x.chip) };
}

/** The width of an arrow, in the picture's units; 0 if nothing moves. */
export const widthOf = (bytes: number, most: number): number => (bytes <= 0 ? 0 : Math.max(THINNEST, (WIDEST * bytes) / most));

/** A vertical arrow with its head at the end. */
function arrow(x: number, from: number, to: number, width: number): SVGElement {
  const down = to > from;
  const head = Math.min(12, Math.abs(to - from) * 0.45);
  const wing = width / 2 + Math.max(3, Math.min(7, width * 0.22));
  const neck = down ? to - head : to + head;
  const r = (v: number) => Math.round(v * 10) / 10;
  const points = [[x - width / 2, from], [x - width / 2, neck], [x - wing, neck], [x, to], [x + wing, neck], [x + width / 2, neck], [x + width / 2, from]];
  return svg("polygon", { class: "flow", points: points.map((p) => p.map(r).join(",")).join(" ") });
}

function pair(y: number, height: number, flow: Flow, most: Flow, words: [string, string]): SVGElement[] {
  const out: SVGElement[] = [];
  const one = (x: number, bytes: number, from: number, to: number, word: string, most: number) => {
    const width = widthOf(bytes, most);
    if (width) out.push(arrow(x, from, to, width));
    const at = x + Math.max(width / 2, 4) + 10;
    out.push(svg("text", { class: "n", x: at, y: y + height / 2 - 2 }, bytes ? bytesText(bytes) : "none"), svg("text", { class: "w", x: at, y: y + height / 2 + 11 }, word));
  };
  one(LEFT + 34, flow.down, y, y + height, words[0], most.down);
  one(LEFT + INNER / 2 + 34, flow.up, y + height, y, words[1], most.up);
  return out;
}

function box(y: number, height: number, title: string, facts: string, x = LEFT, width = INNER): SVGElement[] {
  return [
    svg("rect", { class: "level", x, y, width, height, rx: 5 }),
    svg("text", { class: "l", x: x + 8, y: y + 15 }, title),
    svg("text", { class: "w r", x: x + width - 8, y: y + 15 }, facts),
  ];
}

const facts = (level: Level | undefined): string => (level ? [level.bytes === null ? "size not published" : sizeText(level.bytes), level.gbps === null ? "" : rateText(level.gbps)].filter(Boolean).join(" · ") : "");

/** What the picture shows, as a sentence. */
export function inWords(title: string, flows: Flows): string {
  return `${title}: ${bytesText(flows.hbm.down)} read from HBM and ${bytesText(flows.hbm.up)} written to it; ${bytesText(flows.l2.down)} loaded from the L2 cache and ${bytesText(flows.l2.up)} stored; ${bytesText(flows.chip)} read and written on chip.`;
}

/** One form at one GPU; `most` is the scale that pictures side by side share. */
export function memoryPicture(title: string, gpu: Gpu, counts: Counts, most: Flows): SVGSVGElement {
  const flows = flowsOf(counts);
  const level = (name: string) => gpu.levels.find((l) => l.name === name);
  const [registers, shared, l2, memory] = ["registers", "shared memory", "L2 cache", "global memory"].map(level);
  const chip = (INNER * flows.chip) / most.chip;
  return svg(
    "svg",
    { class: "memories", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": inWords(title, flows) },
    svg("title", {}, inWords(title, flows)),
    ...box(2, 24, "HBM", facts(memory)),
    ...pair(29, 46, flows.hbm, most.hbm, ["read", "written"]),
    ...box(78, 24, "L2 cache", facts(l2)),
    ...pair(105, 46, flows.l2, most.l2, ["loaded", "stored"]),
    ...box(154, 80, `${gpu.sm_count} multiprocessors, each:`, ""),
    svg("text", { class: "w", x: LEFT + 8, y: 184 }, "shared memory"),
    svg("text", { class: "w r", x: LEFT + INNER - 8, y: 184 }, `${facts(shared && { ...shared, gbps: null })}${shared?.gbps ? ` · ${rateText(shared.gbps)} together` : ""}`),
    svg("text", { class: "w", x: LEFT + 8, y: 199 }, "registers"),
    svg("text", { class: "w r", x: LEFT + INNER - 8, y: 199 }, facts(registers)),
    svg("rect", { class: "track", x: LEFT + 8, y: 207, width: INNER - 16, height: 7, rx: 2 }),
    flows.chip ? svg("rect", { class: "flow", x: LEFT + 8, y: 207, width: Math.max(THINNEST, Math.min(INNER - 16, chip - 16)), height: 7, rx: 2 }) : null,
    svg("text", { class: "n", x: LEFT + 8, y: 228 }, bytesText(flows.chip)),
    svg("text", { class: "w", x: LEFT + 76, y: 228 }, "read and written on chip"),
  );
}

/** HBM bytes before and after, for the title of a picture. */
export const title = (name: string, counts: Counts): string => `${name}: ${counts.stages.length} ${counts.stages.length === 1 ? "kernel" : "kernels"}, ${bytesText(hbm(counts))} of HBM`;
