// The elements of a graph: nodes, folded groups, frames of unfolded ones, links.

import { svg } from "./dom";
import { type Content, type Link, groupCaption, shortLabel, wordsOf } from "./graph_scene";
import { type Box, edgePath, fittingFont } from "./layout";
import type { EdgeKind } from "./record";

export const KINDS: Record<EdgeKind, { sign: string; word: string }> = {
  plain: { sign: "", word: "through memory" },
  fused: { sign: "", word: "inside one loop" },
  repaired: { sign: "↻", word: "repaired" },
  early: { sign: "!", word: "read too early" },
};

/** Zoom under which names need more room. */
export const SMALL = 0.7;

type Entry = Content["shapes"][number];

const place = (box: Box) => `translate(${box.x - box.width / 2},${box.y - box.height / 2})`;

/** A node, a folded group, or the frame of an unfolded one, at a scale. */
export function shapeEl({ shape, nodes, fresh, inside }: Entry, scale: number): SVGGElement {
  const { box, node, group } = shape;
  const { width, height } = box;
  const small = scale < SMALL;
  const detail = wordsOf(shape);
  const label = node ? node.label : shortLabel(group!.label);
  const name = shape.open || !group ? label : `▸ ${label}`;
  const font = small ? fittingFont(name, box, scale) : 12;
  const size = small ? `font-size:${font}px` : null;
  if (group && shape.open) {
    const title = small ? Math.min(font, 20) : 12;
    return svg(
      "g",
      { class: "frame", transform: place(box) },
      svg("rect", { width, height, rx: 8 }),
      svg(
        "g",
        { class: "node head", role: "button", tabindex: -1, "aria-expanded": "true", "aria-pressed": "false", "aria-label": `group ${group.label}, ${groupCaption(group)}, unfolded` },
        svg("rect", { width, height: 24, rx: 8 }),
        svg("title", {}, `${group.label}: ${groupCaption(group)}. Press to fold.`),
        svg("text", { x: 12, y: 12 + 0.35 * title, style: small ? `font-size:${title}px` : null }, `▾ ${label}`),
        " ",
        small ? null : svg("text", { class: "t", x: width - 12, y: 16, "text-anchor": "end" }, detail),
      ),
    );
  }
  const sign = KINDS[inside].sign;
  const plus = fresh ? svg("text", { class: "plus", x: width - 4, y: 11, "text-anchor": "end" }, node ? "+" : `+${fresh}`) : null;
  const y = small || !detail ? height / 2 + 0.35 * font : height / 2 - 2;
  const kind = node ? node.kind : "group";
  const spoken = node
    ? `${label} ${detail}${fresh ? " + new in this phase" : ""}, ${kind}`
    : `group ${group!.label}, ${detail}${sign ? `, ${KINDS[inside].word} inside` : ""}${fresh ? `, ${fresh} new in this phase` : ""}, folded`;
  const el = svg(
    "g",
    { class: `node ${kind}${fresh ? " fresh" : ""}`, transform: place(box), role: "button", tabindex: -1, "aria-pressed": "false", "aria-expanded": group ? "false" : null, "aria-label": spoken },
    group ? svg("rect", { class: "behind", x: 4, y: 4, width, height, rx: 6 }) : null,
    svg("rect", { width, height, rx: kind === "input" ? height / 2.6 : 6 }),
    svg("title", {}, node ? `${label}${detail ? `: ${detail}` : ""}` : `${group!.label}: ${detail}. Press to unfold.\n${list(nodes)}`),
    svg("text", { "text-anchor": "middle", x: width / 2, y, style: size }, name),
    " ",
    detail ? svg("text", { class: "t", x: width / 2, y: height / 2 + 12, "text-anchor": "middle" }, detail) : null,
    " ",
    plus,
    group && sign ? svg("text", { class: `sign ${inside}`, x: 11, y: 16, "text-anchor": "middle" }, sign) : null,
  );
  if (node?.role) el.append(svg("desc", {}, node.role));
  return el;
}

const list = (names: readonly string[]): string => (names.length > 12 ? `${names.slice(0, 12).join(", ")} …` : names.join(", "));

/** Where along a path, as [x, y], a text of this width hides no box: as near to the middle as possible; null if it does everywhere. */
export function clearPlace(numbers: readonly number[], width: number, boxes: readonly Box[]): [number, number] | null {
  const points: [number, number][] = [];
  for (let from = 0; from + 7 < numbers.length; from += 6)
    for (let u = 0.05; u < 1; u += 0.1) {
      const at = (n: number) => (1 - u) ** 3 * numbers[n]! + 3 * (1 - u) ** 2 * u * numbers[n + 2]! + 3 * (1 - u) * u ** 2 * numbers[n + 4]! + u ** 3 * numbers[n + 6]!;
      points.push([at(from), at(from + 1)]);
    }
  const middle = [0, 1].map((n) => (numbers[n]! + numbers[numbers.length - 2 + n]!) / 2) as [number, number];
  const far = ([x, y]: [number, number]) => Math.hypot(x - middle[0], y - middle[1]);
  for (const [x, line] of points.sort((p, q) => far(p) - far(q)))
    for (const y of [line - 5, line + 14])
      if (boxes.every((b) => Math.abs(b.x - x) > (b.width + width) / 2 || Math.abs(b.y - (y - 4)) > b.height / 2 + 7)) return [x, y];
  return null;
}

/** A link with its arrow, and the words or the sign over it; `own`: the places are the record's, and so are the lines;
`boxes`: the nodes that the words must not hide. */
export function linkEl(link: Link, from: Box, to: Box, lane: number, own: boolean, boxes: readonly Box[]): { el: SVGGElement; sign: SVGTextElement | null; low: number } {
  const points = own ? link.edges[0]!.points : [];
  const d = edgePath(from, to, points, lane);
  const numbers = d.match(/-?[\d.]+/g)!.map(Number);
  const [cx, cy, x, y] = numbers.slice(-4) as [number, number, number, number];
  let low = 0;
  for (let n = 1; n < numbers.length; n += 2) low = Math.max(low, numbers[n]! + 8);
  const angle = Math.atan2(y - cy, x - cx);
  const tip = [angle + 2.7, angle - 2.7].map((t) => `${(x + 8 * Math.cos(t)).toFixed(1)},${(y + 8 * Math.sin(t)).toFixed(1)}`);
  const { sign, word } = KINDS[link.kind];
  const said = link.edges.slice(0, 8).map((e) => `${e.target} reads ${e.tensor} of ${e.source}: ${KINDS[e.kind].word}`);
  const el = svg(
    "g",
    { class: `edge ${link.kind}${link.fresh ? " fresh" : ""}` },
    svg("title", {}, `${said.join("\n")}${link.edges.length > 8 ? `\nand ${link.edges.length - 8} more` : ""}`),
    svg("path", { class: "line", d }),
    svg("path", { class: "tip", d: `M${tip[0]} L${x.toFixed(1)},${y.toFixed(1)} L${tip[1]}` }),
  );
  if (!sign) return { el, sign: null, low };
  // Its words where there is room, else its sign; above the nodes, so that it can always be read.
  const words = `${sign} ${word}`;
  const place = clearPlace(numbers, 6.4 * words.length, boxes);
  const [left, top] = place ?? clearPlace(numbers, 12, boxes) ?? [(numbers[0]! + x) / 2, (numbers[1]! + y) / 2 + 4];
  return { el, sign: svg("text", { class: `t sign ${link.kind}`, x: left.toFixed(1), y: top.toFixed(1), "text-anchor": "middle" }, place ? words : sign), low };
}
