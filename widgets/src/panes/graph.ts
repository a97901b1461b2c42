// The dataflow graph of the phase, or of the last one that has a graph. Large graphs are shown in groups that unfold; of
// any graph only what is near the visible part is in the page, and what stays from step to step is kept.

import type { Context, Pane } from "../context";
import { h, svg } from "../dom";
import { figureButtons } from "../figures";
import { canvas } from "../graph_canvas";
import { KINDS, SMALL } from "../graph_draw";
import { FOLDABLE_FROM, shownWith, toggled, unfoldedOf, written } from "../graph_folds";
import { graphBefore, graphStop, planOf, sceneOf } from "../graph_plan";
import { type Content, type Scene, contentOf, groupId } from "../graph_scene";
import type { Box } from "../layout";
import { definePane } from "../pane";
import { type Doc, type EdgeKind, type Graph, type Stop, stopName } from "../record";

/** The smallest scale at which a graph opens: names are read down to it, and a graph that needs less opens in part. */
const LEAST = 0.5;

function graphPane(ctx: Context): Pane {
  const scroll = h("div", { class: "gbox", tabindex: 0, role: "group", "aria-label": "dataflow graph" });
  const legend = h("p", { class: "key" });
  const part = h("span", { class: "part", hidden: true, title: "the graph goes on at the shaded edges: drag it, or press the arrow keys when it has the focus; Ctrl + wheel, − and + zoom" }, "drag; Ctrl + wheel zooms");
  const tool = (label: string, title: string, f: () => void) => h("button", { type: "button", class: "small", title, "aria-label": title, onclick: f }, label);
  const foldAll = tool("Fold", "fold all groups", () => choose(someOpen() ? new Set() : null));
  const tools = h(
    "span",
    { class: "tools" },
    part,
    foldAll,
    tool("−", "zoom out", () => zoom(1 / 1.25)),
    tool("+", "zoom in", () => zoom(1.25)),
    tool("Fit", "fit the whole graph", () => fit()),
    figureButtons("the graph", () => ctx.root, (take) => {
      if (!scene) return;
      paint(true); // those far from the visible part, too
      take({ name: `${ctx.doc.trace.operator.name}-${ctx.stop.key}`, drawings: [{ el: drawing, width: scene.width, height }] });
      paint();
    }),
  );
  // Below the drawing, beside the key: above it they would take a row of their own in all but the widest windows.
  const el = h("div", { class: "graph" }, scroll, h("div", { class: "under" }, legend, tools));
  const drawn = canvas(scroll);
  const drawing = drawn.el;
  let scene: Scene | null = null;
  let content: Content | null = null;
  let graph: Graph | null = null;
  let before: Graph | null = null;
  let drawnStop: Stop | null = null;
  let lit: unknown = null;
  let scale = 1;
  let height = 0;
  let focused = "";

  const unfolded = () => {
    const { groups, nodes } = planOf(ctx.doc);
    return unfoldedOf(ctx.view.panes.unfolded, groups, nodes);
  };
  const someOpen = (): boolean => (unfolded()?.size ?? 1) > 0;
  /** Keeps a choice of unfolded groups; null: all. */
  function choose(chosen: ReadonlySet<string> | null): void {
    ctx.dispatch({ type: "tab", slot: "unfolded", tab: chosen ? written(chosen) : "all" }, "graph");
  }

  const auto = (least: number) => Math.max(least, Math.min(1.15, (scroll.clientWidth - 4) / scene!.width, (scroll.clientHeight - 4) / height));
  /** The scale at which the whole can be seen; of groups, which stand in rows as wide as a pane, at least their width. */
  const whole = () => {
    const scaled = auto(0.05);
    return unfolded() && scaled < 0.4 ? Math.min(1.15, Math.max(0.3, (scroll.clientWidth - 4) / scene!.width)) : scaled;
  };
  function size(): void {
    if (!scene || !graph) return;
    const { zoom: chosen, fit: fitted } = ctx.view.sizes;
    const was = scale;
    const high = height;
    const fits = Math.min((scroll.clientWidth - 4) / scene.width, (scroll.clientHeight - 4) / height);
    // What is in groups is laid out to the width of a pane: if it is too much to be seen whole, it is read from top to bottom.
    const least = fits < LEAST && unfolded() ? Math.min(0.9, Math.max(0.55, (scroll.clientWidth - 20) / scene.width)) : LEAST;
    const free = () => (fitted ? whole() : auto(least));
    scale = chosen && !fitted ? Math.min(Math.max(chosen, 0.05), 4) : scroll.clientWidth ? free() : 1;
    drawing.classList.toggle("small", scale < SMALL);
    drawing.style.setProperty("--zoom", String(Math.max(scale, LEAST)));
    drawing.setAttribute("width", String(Math.round(scene.width * scale)));
    drawing.setAttribute("height", String(Math.round(height * scale)));
    if (was !== scale) content = null;
    paint();
    if (fitted && height > high) size(); // an edge that was drawn now reaches below the nodes
  }
  function zoom(by: number): void {
    const [x, y] = [(scroll.scrollLeft + scroll.clientWidth / 2) / scale, (scroll.scrollTop + scroll.clientHeight / 2) / scale];
    const next = Math.min(Math.max(scale * by, 0.05), 4);
    ctx.dispatch({ type: "size", name: "fit", value: 0 });
    ctx.dispatch({ type: "size", name: "zoom", value: next });
    size();
    scroll.scrollTo(x * scale - scroll.clientWidth / 2, y * scale - scroll.clientHeight / 2);
    paint();
  }
  /** From now on, at every step and size of the pane, until the next zoom. */
  function fit(): void {
    ctx.dispatch({ type: "size", name: "fit", value: 1 });
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
  /** Where it was scrolled to: while another tab is shown, the browser forgets it. */
  let seen = { left: 0, top: 0 };
  let gone = false;
  function back(): void {
    if (!gone || !scroll.clientWidth) return;
    gone = false;
    scroll.scrollTo(seen);
    paint();
  }
  let asked = 0;
  scroll.addEventListener("scroll", () => {
    if (!gone) seen = { left: scroll.scrollLeft, top: scroll.scrollTop };
    if (!asked) asked = requestAnimationFrame(() => ((asked = 0), paint()));
  });

  /** Selects a node; folds or unfolds a group, or with `add` selects all of it. */
  function press(id: string, add: boolean): void {
    const shape = scene?.shapes.get(id);
    if (!shape?.group) return ctx.dispatch({ type: "select", ids: [`graph:${id}`], add }, "graph");
    const nodes = content?.shapes.find((e) => e.shape.id === id)?.nodes ?? [];
    if (add) return ctx.dispatch({ type: "select", ids: nodes.map((n) => `graph:${n}`), add: true }, "graph");
    const open = unfolded() ?? new Set(planOf(ctx.doc).groups.all.keys());
    choose(toggled(open, shape.group));
    ctx.announce(`group ${shape.group.label} ${open.has(shape.group.id) ? "folded" : "unfolded"}`);
    const now = scene?.shapes.get(id);
    if (now) into([now.box]);
    focusOn(id);
  }
  /** Gives the focus to a shape that is or comes into view. */
  function focusOn(id: string): void {
    const shape = scene?.shapes.get(id);
    if (!shape) return;
    focused = id;
    into([shape.open ? { ...shape.box, height: 24, y: shape.box.y - shape.box.height / 2 + 12 } : shape.box]);
    paint();
    drawn.buttonOf(id)?.focus({ preventScroll: true });
  }
  const idOf = (target: EventTarget | null): string => (target as Element | null)?.closest("[data-id]")?.getAttribute("data-id") ?? "";
  drawing.addEventListener("click", (e) => {
    if ((e.target as Element).closest(".node")) press(idOf(e.target), e.ctrlKey || e.metaKey || e.shiftKey);
  });
  drawing.addEventListener("keydown", (e) => {
    const id = idOf(e.target);
    if (!id || !content || e.metaKey || e.altKey) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step) {
      const ids = content.shapes.map((entry) => entry.shape.id);
      focusOn(ids[(ids.indexOf(id) + step + ids.length) % ids.length]!);
    } else if (e.key === "Enter" || e.key === " ") press(id, e.ctrlKey || e.shiftKey);
    else if (e.key === "-" || e.key === "Backspace") {
      const group = scene?.shapes.get(id)?.open ? scene.shapes.get(id)!.group : (planOf(ctx.doc).groups.of.get(id) ?? scene?.shapes.get(id)?.group?.parent);
      if (!group || !unfolded()) return;
      press(groupId(group), false);
    } else return;
    e.preventDefault();
    e.stopPropagation();
  });

  /** Brings what is to be seen up to date: near the visible part, and nothing else. */
  function paint(everything = false): void {
    if (!scene || !graph) return;
    content ??= contentOf(scene, graph, before, scale);
    height = drawn.paint({ scene, content, scale, height, flat: unfolded() === null, focused }, everything);
    light();
    edges();
  }
  /** Shows at which edges the drawing goes on. */
  function edges(): void {
    const { clientWidth: w, clientHeight: t, scrollLeft: x, scrollTop: y } = scroll;
    // What is there now: the drawing also has room for the nodes of other steps.
    const boxes = content?.shapes.map(({ shape }) => shape.box) ?? [];
    const beyond = (of: (box: Box) => number) => boxes.some((box) => of(box) > 1);
    const more = {
      left: beyond((b) => x - scale * (b.x - b.width / 2)),
      right: beyond((b) => scale * (b.x + b.width / 2) - x - w),
      up: beyond((b) => y - scale * (b.y - b.height / 2)),
      down: beyond((b) => scale * (b.y + b.height / 2) - y - t),
    };
    for (const [side, on] of Object.entries(more)) scroll.classList.toggle(`more-${side}`, w > 0 && on);
    part.hidden = !w || !Object.values(more).some(Boolean);
  }
  const light = () => content && drawn.light(content, ctx.related.blocks);
  /** The shapes that show these nodes. */
  const shapesOf = (nodes: Iterable<string>): Box[] => [...new Set([...nodes].flatMap((id) => content?.rep(id) ?? []))].flatMap((id) => scene!.shapes.get(id)?.box ?? []);

  /** Brings into view what a drawing is about; set until the pane has a size to do it in. */
  let bring: (() => void) | null = null;
  function brought(): void {
    if (!bring || !scroll.clientWidth) return;
    bring();
    bring = null;
    paint();
  }
  const resized = new ResizeObserver(() => {
    if (!scroll.clientWidth) return void (gone = true);
    back();
    if (!ctx.view.sizes.zoom || ctx.view.sizes.fit) size();
    else paint();
    brought();
  });
  resized.observe(scroll);

  let drawnDoc: Doc | null = null;
  return {
    el,
    destroy: () => resized.disconnect(),
    update() {
      back();
      const { doc, stop } = ctx;
      const shown = graphStop(doc, stop);
      if (!shown?.graph) {
        scene = null;
        scroll.replaceChildren(h("p", { class: "note" }, "The record has no graph here."));
        return;
      }
      const plan = planOf(doc);
      const open = unfolded();
      const now = sceneOf(doc, open);
      foldAll.hidden = plan.nodes < FOLDABLE_FROM || plan.groups.all.size < 2;
      foldAll.textContent = someOpen() ? "Fold" : "Unfold";
      foldAll.title = someOpen() ? "fold all groups" : "unfold all groups";
      foldAll.setAttribute("aria-label", foldAll.title);
      const refolded = now !== scene;
      if (drawnStop !== shown || refolded) {
        graph = shown.graph;
        before = graphBefore(doc, shown);
        scene = now;
        content = null;
        height = now.height;
        if (drawing.parentNode !== scroll) scroll.replaceChildren(drawing);
        drawing.setAttribute("aria-label", `dataflow: ${graph.edges.slice(0, 40).map((e) => `${e.source} to ${e.target}`).join(", ")}`);
        size();
        const kinds = new Set(graph.edges.map((e) => e.kind));
        legend.replaceChildren(
          ...(Object.keys(KINDS) as EdgeKind[])
            .filter((k) => kinds.has(k))
            .map((k) => h("span", {}, svg("svg", { width: 20, height: 8, "aria-hidden": "true", class: "dataflow" }, svg("g", { class: `edge ${k}` }, svg("path", { class: "line", d: "M1,4 L19,4" }))), ` ${KINDS[k].sign} ${KINDS[k].word}`)),
          ...(open ? [h("span", {}, "▸ a group of blocks: press to unfold")] : []),
          ...(shown !== stop ? [h("span", {}, `loops after ${stopName(shown)}`)] : []),
        );
        lit = null;
        if (drawnStop !== shown || drawnDoc !== doc) bring = () => subject(drawnDoc === null);
        drawnStop = shown;
        brought();
        drawnDoc = doc;
      }
      if (lit !== ctx.related && content) {
        const first = lit;
        lit = ctx.related;
        const { blocks } = ctx.related;
        // What was searched for is shown itself, not only its group.
        if (open && ctx.source === "search" && blocks.size && blocks.size <= 3) {
          const more = shownWith(open, plan.groups, blocks);
          if (more.size > open.size) choose(more);
        }
        light();
        if (blocks.size && ctx.source !== "graph" && ctx.source !== "step" && first !== ctx.related) {
          const boxes = shapesOf(blocks);
          if (boxes.length) into(boxes.slice(0, 1));
          paint();
        }
      }
    },
  };

  /** Shows what the phase is about: a read that is early or repaired now, a new node, else the beginning. */
  function subject(first: boolean): void {
    if (!content || !scene) return;
    const links = content.links.filter((l) => l.fresh);
    const told = links.find((l) => KINDS[l.kind].sign);
    const node = content.shapes.find((e) => e.fresh && !e.shape.open);
    const inside = content.shapes.find((e) => e.shape.group && !e.shape.open && KINDS[e.inside].sign === "!");
    const link = told ?? (node || inside ? undefined : links[0]);
    if (link) into([scene.shapes.get(link.source)!.box, scene.shapes.get(link.target)!.box]);
    else if (inside ?? node) into([(inside ?? node)!.shape.box]);
    else if (first || before === null) begin();
  }
  /** Shows the beginning: the left end, at the height at which most of its nodes are. */
  function begin(): void {
    if (unfolded()) return scroll.scrollTo(0, 0);
    const near = content!.shapes.map((e) => e.shape.box).filter((box) => (box.x - box.width / 2) * scale < scroll.clientWidth);
    const middle = near.map((box) => box.y).sort((a, b) => a - b)[near.length >> 1];
    if (middle !== undefined) scroll.scrollTo(0, middle * scale - scroll.clientHeight / 2);
  }
  /** Brings boxes into view, all together. */
  function into(boxes: readonly Box[]): void {
    const { clientWidth: w, clientHeight: t, scrollLeft: x, scrollTop: y } = scroll;
    if (!w || !boxes.length) return;
    const least = (of: (b: Box) => number) => scale * Math.min(...boxes.map(of));
    const most = (of: (b: Box) => number) => scale * Math.max(...boxes.map(of));
    const [left, right] = [least((b) => b.x - b.width / 2), most((b) => b.x + b.width / 2)];
    const [top, bottom] = [least((b) => b.y - b.height / 2), most((b) => b.y + b.height / 2)];
    if (left < x || right > x + w) scroll.scrollLeft = (left + right - w) / 2;
    if (top < y || bottom > y + t) scroll.scrollTop = bottom - top > t ? top - 8 : (top + bottom - t) / 2;
  }
}

export const pane = definePane({
  id: "graph",
  title: "Graph",
  help: "The dataflow graph: which blocks are fused, which reads are too early, which are repaired. Large graphs are in groups that unfold.",
  place: { column: "right", weight: 1.3, shared: true },
  order: 10,
  make: graphPane,
  keys: [
    { keys: ["Enter"], text: "on a group of the graph: unfold or fold it; with Shift, select its blocks", order: 31, more: true },
    { keys: ["-"], text: "in the graph: fold the group that the node is in", order: 32, more: true },
  ],
  style: `
.nx .dataflow .frame > rect { fill: var(--soft); fill-opacity: .55; stroke: var(--line); stroke-width: 1; }
.nx .dataflow .frame .head rect { fill: transparent; stroke: none; }
.nx .dataflow .frame .head:hover rect { fill: var(--soft); }
.nx .dataflow .frame .head text { font-weight: 600; }
.nx .dataflow .frame .head .t { font-weight: 400; }
.nx .dataflow .node.group rect { stroke: var(--edge); stroke-width: 1.3; fill: var(--soft); }
.nx .dataflow .node.group rect.behind { fill: var(--bg); stroke-width: 1; }
.nx .dataflow .node.group.lit rect:not(.behind) { fill: var(--accent-soft); stroke: var(--accent); stroke-width: 2.4; }
.nx .dataflow .node.group > text { font-weight: 600; }
.nx .dataflow .node.group > .t { font-weight: 400; }
`,
});
