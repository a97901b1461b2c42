// The dataflow graph as SVG: drawn once a phase, nodes where they were; kinds of edges by colour, dash and sign.

import type { Context, Pane } from "../context";
import { download, h, svg } from "../dom";
import { type Box, boxOf, caption, edgePath, fittingFont, layoutOf } from "../layout";
import { definePane } from "../pane";
import { type EdgeKind, type Graph, type GraphEdge, type Stop, stopName } from "../record";

const KINDS: Record<EdgeKind, { sign: string; word: string }> = {
  plain: { sign: "", word: "through memory" },
  fused: { sign: "", word: "inside one loop" },
  repaired: { sign: "↻", word: "repaired" },
  early: { sign: "!", word: "read too early" },
};

/** Zoom under which names need more room. */
const SMALL = 0.7;
/** Nodes from which on a graph is shown smaller at first. */
const MANY = 20;

interface Drawing {
  el: SVGSVGElement;
  nodes: Map<string, SVGGElement>;
  edges: { el: SVGGElement; edge: GraphEdge }[];
  /** The names of the nodes, with their boxes and their places beside a detail. */
  names: { el: SVGTextElement; box: Box; y: number }[];
  width: number;
  height: number;
}

function graphPane(ctx: Context): Pane {
  const scroll = h("div", { class: "gbox", tabindex: 0, role: "group", "aria-label": "dataflow graph" });
  const legend = h("p", { class: "key" });
  const el = h("div", { class: "graph" }, scroll, legend);
  const tool = (label: string, title: string, f: () => void) => h("button", { type: "button", class: "small", title, "aria-label": title, onclick: f }, label);
  const tools = h(
    "span",
    { class: "tools" },
    tool("−", "zoom out", () => zoom(1 / 1.25)),
    tool("+", "zoom in", () => zoom(1.25)),
    tool("Fit", "fit the whole graph", () => fit()),
    tool("SVG", "download the graph as SVG", () => save("svg")),
    tool("PNG", "download the graph as PNG", () => save("png")),
  );
  const cache = new Map<Graph, Drawing>();
  let drawn: Drawing | null = null;
  let drawnStop: Stop | null = null;
  let lit: unknown = null;
  let scale = 1;

  const auto = (d: Drawing, least: number) => Math.max(least, Math.min(1.15, (scroll.clientWidth - 4) / d.width, (scroll.clientHeight - 4) / d.height));
  function size(): void {
    if (!drawn) return;
    const chosen = ctx.view.sizes.zoom;
    scale = chosen ? Math.min(Math.max(chosen, 0.1), 4) : scroll.clientWidth ? auto(drawn, drawn.nodes.size > MANY ? 0.5 : 0.78) : 1;
    // Zoomed out, a node shows its name alone, as large as its box allows.
    const small = scale < SMALL;
    drawn.el.classList.toggle("small", small);
    for (const { el, box, y } of drawn.names) {
      const font = small ? fittingFont(el.textContent ?? "", box, scale) : 12;
      el.style.fontSize = small ? `${font}px` : "";
      el.setAttribute("y", String(small ? box.height / 2 + 0.35 * font : y));
    }
    drawn.el.setAttribute("width", String(Math.round(drawn.width * scale)));
    drawn.el.setAttribute("height", String(Math.round(drawn.height * scale)));
  }
  function zoom(by: number): void {
    const [x, y] = [(scroll.scrollLeft + scroll.clientWidth / 2) / scale, (scroll.scrollTop + scroll.clientHeight / 2) / scale];
    ctx.dispatch({ type: "size", name: "zoom", value: Math.min(Math.max(scale * by, 0.1), 4) });
    size();
    scroll.scrollTo(x * scale - scroll.clientWidth / 2, y * scale - scroll.clientHeight / 2);
  }
  function fit(): void {
    if (drawn) ctx.dispatch({ type: "size", name: "zoom", value: auto(drawn, 0.1) });
    size();
  }
  scroll.addEventListener(
    "wheel",
    (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      zoom(e.deltaY < 0 ? 1.12 : 1 / 1.12);
    },
    { passive: false },
  );
  let drag: { x: number; y: number; left: number; top: number } | null = null;
  scroll.addEventListener("pointerdown", (e) => {
    if ((e.target as Element).closest(".node") || e.button) return;
    drag = { x: e.clientX, y: e.clientY, left: scroll.scrollLeft, top: scroll.scrollTop };
    scroll.setPointerCapture(e.pointerId);
  });
  scroll.addEventListener("pointermove", (e) => {
    if (drag) scroll.scrollTo(drag.left - e.clientX + drag.x, drag.top - e.clientY + drag.y);
  });
  for (const end of ["pointerup", "pointercancel"] as const) scroll.addEventListener(end, () => (drag = null));

  const press = (id: string, add: boolean) => ctx.dispatch({ type: "select", ids: [`graph:${id}`], add }, "graph");

  function draw(graph: Graph, before: Graph | null): Drawing {
    const layout = layoutOf(ctx.doc);
    const nodes = new Map<string, SVGGElement>();
    const boxes = new Map(graph.nodes.map((n) => [n.id, boxOf(layout, n)]));
    const old = before && new Set(before.nodes.map((n) => n.id));
    const oldEdges = before && new Map(before.edges.map((e) => [`${e.source}→${e.target}→${e.tensor}`, e.kind]));
    let low = layout.height;
    const lanes = new Map<string, number>();
    const signs: SVGTextElement[] = [];
    const names: Drawing["names"] = [];
    const edges = graph.edges.flatMap((edge) => {
      const from = boxes.get(edge.source);
      const to = boxes.get(edge.target);
      if (!from || !to) return [];
      const between = `${edge.source}`;
      const lane = lanes.get(between) ?? 0;
      lanes.set(between, lane + 1);
      const d = edgePath(from, to, edge.points, lane);
      const numbers = d.match(/-?[\d.]+/g)!.map(Number);
      const ends = numbers.slice(-8);
      const [ax, ay, bx, by, cx, cy, x, y] = ends.length === 8 ? (ends as [number, number, number, number, number, number, number, number]) : [0, 0, 0, 0, 0, 0, 0, 0];
      for (let n = 1; n < numbers.length; n += 2) low = Math.max(low, numbers[n]! + 8);
      const angle = Math.atan2(y - cy, x - cx);
      const tip = [angle + 2.7, angle - 2.7].map((t) => `${(x + 8 * Math.cos(t)).toFixed(1)},${(y + 8 * Math.sin(t)).toFixed(1)}`);
      const { sign, word } = KINDS[edge.kind];
      const fresh = oldEdges !== null && oldEdges.get(`${edge.source}→${edge.target}→${edge.tensor}`) !== edge.kind;
      const middle = edge.points.length > 1 ? edge.points[edge.points.length >> 1]! : [(ax + 3 * bx + 3 * cx + x) / 8, (ay + 3 * by + 3 * cy + y) / 8];
      const g = svg(
        "g",
        { class: `edge ${edge.kind}${fresh ? " fresh" : ""}` },
        svg("title", {}, `${edge.target} reads ${edge.tensor} of ${edge.source}: ${word}`),
        svg("path", { class: "line", d }),
        svg("path", { class: "tip", d: `M${tip[0]} L${x.toFixed(1)},${y.toFixed(1)} L${tip[1]}` }),
      );
      // Its words where there is room, else its sign; above the nodes, so that it can always be read.
      const room = Math.max(Math.abs(from.x - to.x) - (from.width + to.width) / 2, Math.abs(from.y - to.y) - (from.height + to.height) / 2 + 30);
      if (sign) signs.push(svg("text", { class: `t sign ${edge.kind}`, x: middle[0]!, y: middle[1]! + (room > 100 ? -5 : 4), "text-anchor": "middle" }, room > 100 ? `${sign} ${word}` : sign));
      return [{ el: g, edge }];
    });
    graph.nodes.forEach((n, at) => {
      const b = boxes.get(n.id)!;
      const fresh = old !== null && !old.has(n.id);
      const detail = caption(n);
      const name = { el: svg("text", { "text-anchor": "middle", x: b.width / 2 }, n.label), box: b, y: detail ? b.height / 2 - 2 : b.height / 2 + 4 };
      names.push(name);
      const g = svg(
        "g",
        {
          class: `node ${n.kind}${fresh ? " fresh" : ""}`,
          transform: `translate(${b.x - b.width / 2},${b.y - b.height / 2})`,
          role: "button",
          tabindex: at ? -1 : 0,
          "aria-pressed": "false",
          "aria-label": `${n.label} ${detail}${fresh ? " + new in this phase" : ""}, ${n.kind}`,
        },
        svg("rect", { width: b.width, height: b.height, rx: n.kind === "input" ? b.height / 2.6 : 6 }),
        svg("title", {}, `${n.label}${detail ? `: ${detail}` : ""}`),
        name.el,
        " ",
        detail ? svg("text", { class: "t", x: b.width / 2, y: b.height / 2 + 12, "text-anchor": "middle" }, detail) : null,
        " ",
        fresh ? svg("text", { class: "plus", x: b.width - 4, y: 11, "text-anchor": "end" }, "+") : null,
      );
      if (n.role) g.append(svg("desc", {}, n.role));
      g.addEventListener("click", (e) => press(n.id, e.ctrlKey || e.metaKey || e.shiftKey));
      g.addEventListener("keydown", (e) => {
        const ids = graph.nodes.map((x) => x.id);
        const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
        if (step) {
          const to = nodes.get(ids[(at + step + ids.length) % ids.length]!)!;
          g.setAttribute("tabindex", "-1");
          to.setAttribute("tabindex", "0");
          to.focus();
        } else if (e.key === "Enter" || e.key === " ") press(n.id, e.ctrlKey || e.shiftKey);
        else return;
        e.preventDefault();
        e.stopPropagation();
      });
      nodes.set(n.id, g);
    });
    const width = layout.width;
    const root = svg("svg", { viewBox: `0 0 ${width} ${low}`, class: "dataflow", role: "group", "aria-label": `dataflow: ${graph.edges.map((e) => `${e.source} to ${e.target}`).slice(0, 40).join(", ")}` });
    root.append(svg("g", {}, ...edges.map((e) => e.el)), svg("g", {}, ...nodes.values()), svg("g", { class: "signs", "aria-hidden": "true" }, ...signs));
    return { el: root, nodes, edges, names, width, height: low };
  }

  function save(kind: "svg" | "png"): void {
    if (!drawn) return;
    const copy = drawn.el.cloneNode(true) as SVGSVGElement;
    const properties = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font", "opacity", "paint-order", "stroke-linejoin"];
    const here = [drawn.el, ...drawn.el.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((to, n) => {
      const style = getComputedStyle(here[n]!);
      to.setAttribute("style", properties.map((p) => `${p}:${style.getPropertyValue(p)}`).join(";"));
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", String(drawn.width));
    copy.setAttribute("height", String(drawn.height));
    const paper = getComputedStyle(ctx.root).backgroundColor;
    copy.prepend(svg("rect", { width: drawn.width, height: drawn.height, style: `fill:${paper}` }));
    const text = new XMLSerializer().serializeToString(copy);
    const name = `${ctx.doc.trace.operator.name}-${ctx.stop.key}`;
    if (kind === "svg") return download(`${name}.svg`, text, "image/svg+xml");
    const image = new Image();
    image.onload = () => {
      const canvas = h("canvas", { width: drawn!.width * 2, height: drawn!.height * 2 });
      canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => blob && download(`${name}.png`, blob, "image/png"));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  }

  /** Brings into view what a drawing is about; set until the pane has a size to do it in. */
  let bring: (() => void) | null = null;
  function brought(): void {
    if (!bring || !scroll.clientWidth) return;
    bring();
    bring = null;
  }
  const resized = new ResizeObserver(() => {
    if (!ctx.view.sizes.zoom) size();
    brought();
  });
  resized.observe(scroll);

  return {
    el,
    tools,
    update() {
      const { doc, stop } = ctx;
      const withGraph = doc.stops.filter((s) => s.graph);
      const shown = stop.graph ? stop : withGraph[withGraph.length - 1];
      if (!shown?.graph) {
        scroll.replaceChildren(h("p", { class: "note" }, "The record has no graph here."));
        return;
      }
      if (drawnStop !== shown) {
        const before = withGraph[withGraph.indexOf(shown) - 1]?.graph ?? null;
        let d = cache.get(shown.graph);
        if (!d) {
          if (cache.size > 40) cache.clear();
          cache.set(shown.graph, (d = draw(shown.graph, before)));
        }
        drawn = d;
        drawnStop = shown;
        scroll.replaceChildren(d.el);
        size();
        const kinds = new Set(shown.graph.edges.map((e) => e.kind));
        legend.replaceChildren(
          ...(Object.keys(KINDS) as EdgeKind[])
            .filter((k) => kinds.has(k))
            .map((k) => h("span", {}, svg("svg", { width: 26, height: 8, "aria-hidden": "true", class: "dataflow" }, svg("g", { class: `edge ${k}` }, svg("path", { class: "line", d: "M1,4 L25,4" }))), ` ${KINDS[k].sign} ${KINDS[k].word}`)),
          ...(shown !== stop ? [h("span", {}, `of ${stopName(shown)}, the last loop program`)] : []),
        );
        lit = null;
        // A read that is early or repaired now is what the phase is about.
        const edges = d.edges.filter((e) => e.el.classList.contains("fresh"));
        const told = edges.find(({ edge }) => KINDS[edge.kind].sign);
        const node = [...d.nodes.values()].find((n) => n.classList.contains("fresh"));
        const edge = told ?? (node ? undefined : edges[0]);
        bring = () => (edge ? into(edge.el, d.nodes.get(edge.edge.source), d.nodes.get(edge.edge.target)) : node ? into(node) : begin(d));
        brought();
      }
      if (lit !== ctx.related && drawn) {
        let first: SVGGElement | null = null;
        for (const [id, g] of drawn.nodes) {
          const on = ctx.related.blocks.has(id);
          g.classList.toggle("lit", on);
          g.setAttribute("aria-pressed", String(on));
          if (on) first ??= g;
        }
        const some = ctx.related.blocks.size > 0;
        for (const { el: e, edge } of drawn.edges) e.classList.toggle("lit", some && (ctx.related.blocks.has(edge.source) || ctx.related.blocks.has(edge.target)));
        if (first && ctx.source !== "graph" && ctx.source !== "step") into(first);
        lit = ctx.related;
      }
    },
  };

  /** Shows the beginning: the left end, at the height at which most of its nodes are. */
  function begin(d: Drawing): void {
    const near = d.names.map(({ box }) => box).filter((box) => (box.x - box.width / 2) * scale < scroll.clientWidth);
    const middle = near.map((box) => box.y).sort((a, b) => a - b)[near.length >> 1];
    if (middle !== undefined) scroll.scrollTo(0, middle * scale - scroll.clientHeight / 2);
  }
  /** Brings elements into view, all together. */
  function into(...elements: (Element | undefined)[]): void {
    const b = scroll.getBoundingClientRect();
    if (!b.width) return;
    const all = elements.flatMap((g) => (g ? [g.getBoundingClientRect()] : []));
    const [left, right] = [Math.min(...all.map((e) => e.left)), Math.max(...all.map((e) => e.right))];
    const [top, bottom] = [Math.min(...all.map((e) => e.top)), Math.max(...all.map((e) => e.bottom))];
    if (left < b.left || right > b.right) scroll.scrollLeft += (left + right - b.left - b.right) / 2;
    if (top < b.top || bottom > b.bottom) scroll.scrollTop += (top + bottom - b.top - b.bottom) / 2;
  }
}

export const pane = definePane({
  id: "graph",
  title: "Graph",
  help: "The dataflow graph: which blocks are fused, which reads are too early, which are repaired.",
  place: { column: "right", weight: 1.15, shared: true },
  order: 10,
  make: graphPane,
});
