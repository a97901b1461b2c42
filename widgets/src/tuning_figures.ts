// Two figures of a tuning run: the time of every candidate in order, and how many candidates each rule leaves.

import { svg } from "./dom";
import { usText } from "./traffic_data";

/** How many combinations of options there are, and how many are left after each rule. */
export interface Space {
  size: number;
  levels: { rule: string; says: string; left: number }[];
}
interface Bar {
  name: string;
  count: number;
  says: string;
}

const WIDTH = 420;
const BOX = { left: 46, right: 12, top: 14, bottom: 30 };
const PLOT = 168;
const ROW = 19;
const NAME = 132;

/** The fastest so far, after each candidate; null before the first that has a time. */
export function bestSoFar(times: readonly (number | null)[]): (number | null)[] {
  let best: number | null = null;
  return times.map((us) => (best = us === null ? best : best === null ? us : Math.min(best, us)));
}

/** What is left of the space: all combinations, after each rule, and of those tried the ones with a time. */
export function levels(space: Space | null, times: readonly (number | null)[]): Bar[] {
  const found: Bar[] = space ? [{ name: "combinations", count: space.size, says: "all combinations of the options' values" }] : [];
  for (const level of space?.levels ?? []) found.push({ name: `− ${level.rule}`, count: level.left, says: level.says });
  found.push({ name: "tried so far", count: times.length, says: "compiled, checked and timed, or refused" });
  found.push({ name: "with a time", count: times.filter((us) => us !== null).length, says: "compiled, right and timed" });
  return found;
}

/** The time of every candidate; a cross at the top has none, the line is the fastest so far. */
export function timesPlot(times: readonly (number | null)[]): SVGSVGElement {
  const timed = times.filter((us): us is number => us !== null);
  const [low, high] = [Math.min(...timed), Math.max(...timed)];
  const best = bestSoFar(times);
  const failed = times.length - timed.length;
  const label = timed.length ? `${times.length} candidates, ${failed} without a time; times from ${usText(low)} to ${usText(high)}` : `${times.length} candidates, none with a time yet`;
  const inner = { width: WIDTH - BOX.left - BOX.right, height: PLOT - BOX.top - BOX.bottom };
  const x = (n: number) => BOX.left + (inner.width * (n + 0.5)) / Math.max(times.length, 10);
  // Logarithmic, with room for the crosses above.
  const y = (us: number) => BOX.top + 14 + (inner.height - 14) * (1 - (high > low ? Math.log(us / low) / Math.log(high / low) : 0));
  const marks = times.map((us, n) => {
    const words = `candidate ${n + 1}: ${us === null ? "no time" : usText(us)}`;
    const at = us === null ? svg("path", { class: "f", d: `M${x(n) - 3},${BOX.top - 3}l6,6M${x(n) - 3},${BOX.top + 3}l6,-6` }) : svg("circle", { class: "m", cx: x(n), cy: y(us), r: 2.6 });
    at.append(svg("title", {}, words));
    return at;
  });
  const steps = best.flatMap((us, n) => (us === null ? [] : [`${best[n - 1] === null || n === 0 ? "M" : "H"}${x(n)}${best[n - 1] === null || n === 0 ? `,${y(us)}` : `V${y(us)}`}`]));
  const ends = timed.length ? [high, ...(low < high ? [low] : [])] : [];
  return svg("svg", { class: "tuneplot", viewBox: `0 0 ${WIDTH} ${PLOT}`, role: "img", "aria-label": label },
    ...ends.flatMap((us) => [svg("line", { class: "grid", x1: BOX.left, x2: WIDTH - BOX.right, y1: y(us), y2: y(us) }), svg("text", { class: "w r", x: BOX.left - 5, y: y(us) + 4 }, usText(us))]),
    svg("path", { class: "best", d: steps.join("") }),
    ...marks,
    failed ? svg("text", { class: "w r", x: BOX.left - 5, y: BOX.top + 4 }, "no time") : null,
    svg("text", { class: "w c", x: BOX.left + inner.width / 2, y: PLOT - 8 }, `${times.length} candidates, in order`));
}

/** The waterfall: a bar for each level, on a logarithmic scale. */
export function waterfall(bars: readonly Bar[]): SVGSVGElement {
  const most = Math.log(1 + Math.max(1, ...bars.map((b) => b.count)));
  const room = WIDTH - NAME - 60;
  const label = bars.map((b) => `${b.name}: ${b.count}`).join("; ");
  return svg("svg", { class: "tuneplot", viewBox: `0 0 ${WIDTH} ${Math.max(PLOT, bars.length * ROW + 8)}`, role: "img", "aria-label": `Candidates left. ${label}` },
    ...bars.flatMap((bar, n) => {
      const width = (room * Math.log(1 + bar.count)) / most;
      const top = 6 + n * ROW;
      const own = svg("g", {}, svg("title", {}, bar.says), svg("text", { class: "n r", x: NAME - 6, y: top + 11 }, bar.name), svg("rect", { class: bar.name.startsWith("−") || bar.name === "combinations" ? "space" : "m", x: NAME, y: top + 2, width: Math.max(width, 1), height: 11 }), svg("text", { class: "w", x: NAME + Math.max(width, 1) + 5, y: top + 11 }, bar.count.toLocaleString("en")));
      return [own];
    }));
}
