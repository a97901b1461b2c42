// The warps over simulated steps as one drawing, to be saved: the pane itself draws elements, which have the focus.

import { svg } from "./dom";
import { SIGNS, type Timeline, type WarpKind, waiting } from "./warps";

const NAMES = 132;
const LANE = 46;
const RULER = 20;
const KEY = 30;
const END = 16;
/** What each kind of bar is, as the pane says it. */
export const KINDS: readonly [WarpKind, string][] = [["compute", "computes"], ["copy", "starts a copy"], ["product", "starts a product"], ["arrive", "arrives at a barrier"], ["wait", "waits"]];

/** All groups at `px` pixels per step, with a ruler above and the key below. */
export function warpsFigure(timeline: Timeline, px: number): SVGSVGElement {
  const steps = Math.min(timeline.steps, timeline.limit);
  const ticks = Math.max(10, Math.ceil(60 / px / 10) * 10);
  const last = Math.max(steps, ...timeline.groups.flatMap((group) => group.flights.map(([, , end]) => end)));
  const width = Math.max(NAMES + last * px + END, NAMES + 600);
  const bottom = RULER + timeline.groups.length * LANE;
  const marks = Array.from({ length: Math.ceil(steps / ticks) }, (_, n) => n * ticks);
  const bar = (kind: WarpKind, x: number, y: number, w: number) => [
    svg("rect", { class: `w-${kind}`, x, y, width: Math.max(w - 1, 0.5), height: 22 }),
    SIGNS[kind] && w >= 8 ? svg("text", { class: `c s-${kind}`, x: x + w / 2, y: y + 15 }, SIGNS[kind]) : null,
  ];
  return svg("svg", { class: "warpsfigure", viewBox: `0 0 ${width} ${bottom + KEY + 18}` },
    ...marks.flatMap((n) => [svg("line", { class: "grid", x1: NAMES + n * px, x2: NAMES + n * px, y1: 4, y2: bottom }), svg("text", { class: "w", x: NAMES + n * px + 3, y: 13 }, n === 0 ? "step 0" : String(n))]),
    ...timeline.groups.flatMap((group, g) => {
      const top = RULER + g * LANE;
      return [
        svg("line", { class: "grid", x1: 0, x2: width, y1: top, y2: top }),
        svg("text", { class: "n", x: 8, y: top + 16 }, group.name),
        svg("text", { class: "w", x: 8, y: top + 31 }, `${group.warps} ${group.warps === 1 ? "warp" : "warps"} · waits ${waiting(group)} %`),
        ...group.events.flatMap(([kind, start, end]) => bar(kind, NAMES + start * px, top + 5, (end - start) * px)),
        ...group.flights.map(([kind, start, end]) => svg("rect", { class: `w-${kind}`, x: NAMES + start * px, y: top + (kind === "copy" ? 36 : 30), width: (end - start) * px, height: 4 })),
      ];
    }),
    ...KINDS.flatMap(([kind, text], n) => [...bar(kind, 8 + n * 140, bottom + 8, 18), svg("text", { class: "w", x: 31 + n * 140, y: bottom + 23 }, text)]),
    svg("text", { class: "w", x: 8, y: bottom + KEY + 12 }, `Simulated steps of the first program: order and dependence, not time. Thin bars: copies and products in flight.`));
}

export const FIGURE_STYLE = `
.nx .warpsfigure text { fill: var(--ink); font: 11px var(--sans); }
.nx .warpsfigure .w { fill: var(--dim); }
.nx .warpsfigure .n { font-weight: 600; }
.nx .warpsfigure .c { text-anchor: middle; fill: var(--bg); font: 11px var(--mono); }
.nx .warpsfigure .c.s-wait { fill: var(--dim); }
.nx .warpsfigure .grid { stroke: var(--line); stroke-width: .6; }
.nx .warpsfigure .w-compute { fill: var(--edge); }
.nx .warpsfigure .w-copy { fill: var(--right); }
.nx .warpsfigure .w-product { fill: var(--fixed); }
.nx .warpsfigure .w-arrive { fill: var(--early); }
.nx .warpsfigure rect.w-wait { fill: var(--soft); stroke: var(--line); stroke-width: 1; }
`;
