// The roofline of a GPU: operations per second against operations per byte of HBM, on logarithmic axes.

import { h, svg } from "./dom";
import { type Gpu, bytesText, hbm, intensity, opsText, rateText, roof } from "./traffic_data";

/** What is drawn: a form, one of its stages, or something measured. */
export interface Point {
  /** "definition", "stage", "wrong", "here", "kernel" or "measured"; each has a sign of its own. */
  kind: "definition" | "stage" | "wrong" | "here" | "kernel" | "measured";
  name: string;
  read: number;
  written: number;
  operations: number;
  /** Measured time; without it the point is on the roof. */
  us?: number;
  /** The stop that it leads to. */
  key?: string;
}

const WIDTH = 560;
const HEIGHT = 258;
const BOX = { left: 52, right: 14, top: 20, bottom: 34 };
const SIGN: Record<Point["kind"], string> = { stage: "∘", definition: "○", wrong: "△ !", here: "□", kernel: "◆", measured: "×" };
const WORD: Record<Point["kind"], string> = { stage: "a stage of the definition", definition: "the definition, each stage a kernel", wrong: "fused, wrong", here: "the selected step", kernel: "the kernel", measured: "measured" };

/** 10^12 operations per second. */
export const tflopsOf = (gpu: Gpu, p: Point): number => (p.us ? p.operations / p.us / 1e6 : roof(gpu, intensity(p)));

/** The powers of ten of an axis: all points are inside, and it has at least two of them. */
export function decades(values: readonly number[]): [number, number] {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.ceil(Math.log10(Math.max(...values)));
  return [low, Math.max(high, low + 2)];
}

/** What a point says. */
export function said(gpu: Gpu, p: Point): string {
  const rate = tflopsOf(gpu, p);
  const least = p.us ? `${Number((100 * rate / roof(gpu, intensity(p))).toPrecision(2))} % of the roof` : intensity(p) * gpu.gbps < gpu.tflops * 1000 ? "bound by bytes" : "bound by operations";
  return `${p.name}: ${opsText(p.operations)} operations, ${bytesText(hbm(p))} of HBM, ${Number(intensity(p).toPrecision(3))} operations per byte, ${p.us ? "" : "at most "}${Number(rate.toPrecision(3))} TFLOP/s, ${least}`;
}

function mark(kind: Point["kind"], x: number, y: number): SVGElement {
  const size = kind === "stage" ? 2.6 : 5.5;
  switch (kind) {
    case "kernel": return svg("polygon", { class: "m", points: `${x},${y - 7} ${x + 7},${y} ${x},${y + 7} ${x - 7},${y}` });
    case "wrong": return svg("polygon", { class: "m", points: `${x},${y - 7} ${x + 7},${y + 5} ${x - 7},${y + 5}` });
    case "here": return svg("rect", { class: "m", x: x - 5, y: y - 5, width: 10, height: 10 });
    case "measured": return svg("path", { class: "m", d: `M${x - 5},${y - 5}l10,10M${x - 5},${y + 5}l10,-10` });
    default: return svg("circle", { class: "m", cx: x, cy: y, r: size });
  }
}

/** Heights of labels, so that none covers another: each moves down from its wish until it is free. */
export function apart(labels: readonly { x: number; y: number; width: number }[], height: number): number[] {
  const placed: { x: number; y: number; width: number }[] = [];
  return labels.map((label) => {
    let y = label.y;
    const hits = () => placed.some((p) => Math.abs(p.y - y) < height && p.x < label.x + label.width && label.x < p.x + p.width);
    while (hits()) y += height;
    placed.push({ ...label, y });
    return y;
  });
}

/** The plot, and its signs in words below. */
export function roofline(gpu: Gpu, all: readonly Point[], go: (key: string) => void): HTMLElement {
  const points = all.filter((p) => p.operations > 0 && hbm(p) > 0);
  const ridge = (gpu.tflops * 1000) / gpu.gbps;
  const [x0, x1] = decades([...points.map(intensity), ridge / 3, ridge * 3]);
  const low = 10 ** x0;
  const [y0, y1] = decades([roof(gpu, low) * 1.5, gpu.tflops, ...points.map((p) => tflopsOf(gpu, p))]);
  const innerWidth = WIDTH - BOX.left - BOX.right;
  const innerHeight = HEIGHT - BOX.top - BOX.bottom;
  const x = (v: number) => BOX.left + (innerWidth * (Math.log10(v) - x0)) / (x1 - x0);
  const y = (v: number) => BOX.top + innerHeight * (1 - (Math.log10(v) - y0) / (y1 - y0));
  const powers = (a: number, b: number) => Array.from({ length: b - a + 1 }, (_, n) => 10 ** (a + n));
  const show = (v: number) => (v >= 1 ? v.toLocaleString("en") : String(Number(v.toPrecision(1))));
  const named = points.filter((p) => p.kind !== "stage");
  const places = apart(
    named.map((p) => {
      const width = 7 + 6.2 * p.name.length;
      const px = x(intensity(p));
      const right = px + 10 + width < WIDTH - BOX.right;
      return { x: right ? px + 10 : px - 10 - width, y: y(tflopsOf(gpu, p)) + (right ? 14 : 16), width };
    }),
    13,
  );
  const label = points.map((p) => said(gpu, p)).join("; ");
  const drawn = svg(
    "svg",
    { class: "roofline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `Roofline of the ${gpu.name.toUpperCase()}: at most ${gpu.tflops} TFLOP/s and ${rateText(gpu.gbps)}. ${label}` },
    ...powers(x0, x1).flatMap((v) => [svg("line", { class: "grid", x1: x(v), x2: x(v), y1: BOX.top, y2: HEIGHT - BOX.bottom }), svg("text", { class: "w c", x: x(v), y: HEIGHT - BOX.bottom + 13 }, show(v))]),
    ...powers(y0, y1).flatMap((v) => [svg("line", { class: "grid", x1: BOX.left, x2: WIDTH - BOX.right, y1: y(v), y2: y(v) }), svg("text", { class: "w r", x: BOX.left - 6, y: y(v) + 4 }, show(v))]),
    svg("text", { class: "w c", x: BOX.left + innerWidth / 2, y: HEIGHT - 4 }, "operations per byte of HBM"),
    svg("text", { class: "w c", transform: `translate(11 ${BOX.top + innerHeight / 2}) rotate(-90)` }, "TFLOP/s"),
    svg("path", { class: "roof", d: `M${x(low)},${y(roof(gpu, low))}L${x(ridge)},${y(gpu.tflops)}L${x(10 ** x1)},${y(gpu.tflops)}` }),
    svg("text", { class: "w", x: x(ridge) + 6, y: y(gpu.tflops) - 5 }, `${gpu.tflops.toLocaleString("en")} TFLOP/s`),
    slope(x, y, low, ridge, gpu),
    ...points.filter((p) => p.kind === "stage").map((p) => dot(p)),
    ...named.map((p, n) => {
      const at = places[n]!;
      return dot(p, svg("text", { class: "n", x: labelX(p), y: at }, p.name));
    }),
  );
  function labelX(p: Point): number {
    const width = 7 + 6.2 * p.name.length;
    const px = x(intensity(p));
    return px + 10 + width < WIDTH - BOX.right ? px + 10 : px - 10 - width;
  }
  function dot(p: Point, text?: SVGElement): SVGElement {
    const words = said(gpu, p);
    const g = svg("g", { class: `point ${p.kind}`, tabindex: 0, role: p.key ? "button" : "img", "aria-label": words }, svg("title", {}, words), mark(p.kind, x(intensity(p)), y(tflopsOf(gpu, p))), text ?? null);
    if (p.key) {
      g.addEventListener("click", () => go(p.key!));
      g.addEventListener("keydown", (e) => {
        if (e.key !== "Enter" && e.key !== " ") return;
        e.preventDefault();
        go(p.key!);
      });
    }
    return g;
  }
  const kinds = [...new Set(points.map((p) => p.kind))];
  return h("figure", {}, drawn, h("figcaption", { class: "note signs" }, ...kinds.map((k) => h("span", {}, `${SIGN[k]} ${WORD[k]}`))));
}

/** The memory's rate, along the slope. */
function slope(x: (v: number) => number, y: (v: number) => number, low: number, ridge: number, gpu: Gpu): SVGElement {
  const at = low ** 0.62 * ridge ** 0.38;
  const angle = (Math.atan2(y(roof(gpu, ridge)) - y(roof(gpu, low)), x(ridge) - x(low)) * 180) / Math.PI;
  return svg("text", { class: "w c", transform: `translate(${x(at)} ${y(roof(gpu, at)) - 6}) rotate(${angle.toFixed(1)})` }, rateText(gpu.gbps));
}
