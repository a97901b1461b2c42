// The drawing of a dataflow graph: of a large one, only what is near the visible part is in the page, and what stays from
// step to step is kept.

import { svg } from "./dom";
import { SMALL, linkEl, shapeEl } from "./graph_draw";
import type { Content, Scene } from "./graph_scene";

/** Shapes from which on those far from the visible part are left out, and how far that is, in px. */
const ALL = 150;
const NEAR = 250;

interface Built {
  sign: string;
  el: SVGGElement;
  over?: SVGTextElement | null;
}
/** What is to be drawn, and at which scale. */
export interface Picture {
  scene: Scene;
  content: Content;
  scale: number;
  /** At least so high. */
  height: number;
  /** The graph has no groups. */
  flat: boolean;
  /** The shape that has or had the focus. */
  focused: string;
}
export interface Canvas {
  el: SVGSVGElement;
  /** Brings what is near the visible part up to date, or everything; the height that the edges need. */
  paint(picture: Picture, everything?: boolean): number;
  /** Marks what belongs to the selection; of a folded group how much of it does. */
  light(content: Content, blocks: ReadonlySet<string>): void;
  /** The element of a shape that takes the focus, if it is in the page. */
  buttonOf(id: string): SVGGElement | null;
}

/** The children in this order; those that are there already stay, and with them the focus. */
function sync(parent: Element, children: readonly Element[]): void {
  const keep = new Set(children);
  for (const child of [...parent.children]) if (!keep.has(child)) child.remove();
  children.forEach((child, n) => {
    if (parent.children[n] !== child) parent.insertBefore(child, parent.children[n] ?? null);
  });
}

/** A drawing in a box that scrolls. */
export function canvas(scroll: HTMLElement): Canvas {
  const layers = { frames: svg("g", {}), edges: svg("g", {}), nodes: svg("g", {}), signs: svg("g", { class: "signs", "aria-hidden": "true" }) };
  const el = svg("svg", { class: "dataflow", role: "group" }, layers.frames, layers.edges, layers.nodes, layers.signs);
  const built = { shapes: new Map<string, Built>(), links: new Map<string, Built>() };

  const buttonOf = (id: string): SVGGElement | null => {
    const found = built.shapes.get(id)?.el;
    return found ? (found.classList.contains("frame") ? found.querySelector(".head") : found) : null;
  };

  function paint({ scene, content, scale, height: least, flat, focused }: Picture, everything = false): number {
    const cull = !everything && content.shapes.length + content.links.length > 2 * ALL;
    const [w, t] = [scroll.clientWidth || 900, scroll.clientHeight || 500];
    const [left, top] = [(scroll.scrollLeft - NEAR) / scale, (scroll.scrollTop - NEAR) / scale];
    const [right, bottom] = [(scroll.scrollLeft + w + NEAR) / scale, (scroll.scrollTop + t + NEAR) / scale];
    const near = (x1: number, y1: number, x2: number, y2: number) => !cull || (x1 < right && x2 > left && y1 < bottom && y2 > top);

    const wanted = new Map<string, Built>();
    const [frames, nodes]: [SVGGElement[], SVGGElement[]] = [[], []];
    for (const entry of content.shapes) {
      const { id, box, open } = entry.shape;
      if (!near(box.x - box.width / 2, box.y - box.height / 2, box.x + box.width / 2, box.y + box.height / 2)) continue;
      const sign = `${box.x},${box.y},${box.width},${box.height}|${scale < SMALL ? scale : ""}|${open}|${entry.nodes.length}|${entry.fresh}|${entry.inside}|${entry.shape.node?.detail}`;
      let found = built.shapes.get(id);
      if (found?.sign !== sign) {
        found = { sign, el: shapeEl(entry, scale) };
        found.el.setAttribute("data-id", id);
      }
      wanted.set(id, found);
      (open ? frames : nodes).push(found.el);
    }
    const boxes = content.shapes.filter(({ shape }) => !shape.open).map(({ shape }) => shape.box);
    const links = new Map<string, Built>();
    const lanes = new Map<string, number>();
    let low = scene.height;
    for (const link of content.links) {
      const [from, to] = [scene.shapes.get(link.source)!.box, scene.shapes.get(link.target)!.box];
      const lane = lanes.get(link.source) ?? 0;
      lanes.set(link.source, lane + 1);
      if (!near(Math.min(from.x - from.width / 2, to.x - to.width / 2), Math.min(from.y, to.y) - 40, Math.max(from.x + from.width / 2, to.x + to.width / 2), Math.max(from.y, to.y) + 40)) continue;
      const key = `${link.source}→${link.target}→${link.edges[0]!.tensor}`;
      const sign = `${from.x},${from.y},${to.x},${to.y}|${link.kind}|${link.fresh}|${link.edges.length}|${lane}|${flat}|${link.kind === "plain" || link.kind === "fused" ? "" : boxes.length}`;
      let found = built.links.get(key);
      if (found?.sign !== sign) {
        const made = linkEl(link, from, to, lane, flat, boxes);
        found = { sign, el: made.el, over: made.sign };
        found.el.setAttribute("data-low", String(made.low));
      }
      low = Math.max(low, Number(found.el.getAttribute("data-low")));
      links.set(key, found);
    }
    built.shapes = wanted;
    built.links = links;
    sync(layers.frames, frames);
    sync(layers.nodes, nodes);
    sync(layers.edges, [...links.values()].map((l) => l.el));
    sync(layers.signs, [...links.values()].flatMap((l) => (l.over ? [l.over] : [])));
    const height = low > least || !least ? low : least;
    el.setAttribute("height", String(Math.round(height * scale)));
    el.setAttribute("viewBox", `0 0 ${scene.width} ${height}`);
    // One stop of the Tab key: what had the focus last, or the first.
    const chosen = wanted.has(focused) ? focused : content.shapes.find((e) => wanted.has(e.shape.id))?.shape.id;
    for (const id of wanted.keys()) buttonOf(id)?.setAttribute("tabindex", id === chosen ? "0" : "-1");
    return height;
  }

  function light(content: Content, blocks: ReadonlySet<string>): void {
    const some = blocks.size > 0;
    for (const entry of content.shapes) {
      const found = buttonOf(entry.shape.id);
      if (!found) continue;
      const count = some ? entry.nodes.reduce((n, id) => n + (blocks.has(id) ? 1 : 0), 0) : 0;
      const on = count > 0 && !entry.shape.open;
      found.classList.toggle("lit", on);
      found.setAttribute("aria-pressed", String(on));
      const said = found.querySelector(".t");
      if (entry.shape.group && said) {
        const many = entry.nodes.length;
        const text = count ? `${count} of ${many} marked` : `${many} block${many === 1 ? "" : "s"}`;
        if (said.textContent !== text) said.textContent = text;
      }
    }
    for (const link of content.links) {
      const found = built.links.get(`${link.source}→${link.target}→${link.edges[0]!.tensor}`);
      found?.el.classList.toggle("lit", some && link.edges.some((e) => blocks.has(e.source) || blocks.has(e.target)));
    }
  }

  return { el, paint, light, buttonOf };
}
