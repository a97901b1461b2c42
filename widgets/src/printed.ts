// A page on paper: a printed page cannot scroll or be pressed, so everything of the record stands in it, one below the other.

import type { Context } from "./context";
import { h, svg } from "./dom";
import { canvas } from "./graph_canvas";
import { KINDS } from "./graph_draw";
import { unfoldedOf } from "./graph_folds";
import { graphBefore, graphStop, planOf, sceneOf } from "./graph_plan";
import { contentOf } from "./graph_scene";
import { type Shown, emptyRow, fillRow, inQuotes } from "./listing_rows";
import { derivationEl, proofEl } from "./panes/derivation";
import { marked } from "./panes/program";
import { pane as TRAFFIC } from "./panes/traffic";
import { definitionRows } from "./python_lines";
import { type EdgeKind, type Line, type StepEntry, type Stop, stopBefore, stopName, wrongness } from "./record";
import { type StoryStop, storyOf } from "./story";
import { changedBlocks, elements, focus, only, tellingElement, varying } from "./tag_focus";
import { tagTable } from "./tag_table";

export const PRINT_STYLE = `
@media screen { .nx > .printed { display: none; } }
@media print {
.nx:has(> .printed) { display: block !important; height: auto !important; max-height: none !important; min-height: 0 !important; overflow: visible !important; border: 0 !important; }
.nx:has(> .printed) > :not(.printed) { display: none !important; }
.nx .printed { font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.nx .printed h2 { font-size: 18px; margin: 0 0 6px; }
.nx .printed h3 { font-size: 15px; margin: 22px 0 4px; break-after: avoid; }
.nx .printed h4 { font-size: 12px; margin: 12px 0 2px; color: var(--dim); break-after: avoid; }
.nx .printed p { max-width: none; }
.nx .printed h3 + p.dim, .nx .printed .tagnote, .nx .printed .traffic .lead { break-after: avoid; }
.nx .printed .lines { font-size: 11px; padding: 2px 0; }
.nx .printed .ln { break-inside: avoid; }
.nx .printed .drawing { max-width: 100%; height: auto; break-inside: avoid; }
.nx .printed .tabled, .nx .printed .wide, .nx .printed .trafficbody, .nx .printed .der { height: auto; max-height: none; overflow: visible; }
.nx .printed .tagtable thead th, .nx .printed .tagtable thead td, .nx .printed .tagtable tbody th { position: static; }
.nx .printed .tagtable tr, .nx .printed details, .nx .printed figure { break-inside: avoid; }
.nx .printed .arrows, .nx .printed .fold { display: none; }
.nx .printed .rows { overflow: visible; }
.nx .printed .all { list-style: none; margin: 0; }
.nx .printed .all li { margin: 2px 0; display: flex; gap: 8px; }
.nx .printed .all li i { flex: none; width: 44px; text-align: right; color: var(--dim); font-style: normal; }
}`;

function listing(lines: readonly Shown[]): HTMLElement {
  const quoted = inQuotes(lines);
  const box = h("div", { class: `lines${lines.some((l) => l.op !== "same") ? " signs" : ""}` });
  lines.forEach((line, n) => {
    const row = emptyRow(line, quoted[n]!, "", box);
    row.el.removeAttribute("id");
    fillRow(row);
    box.append(row.el);
  });
  return box;
}
const numbered = (lines: readonly Line[]): Shown[] => lines.map((l, n) => ({ node: l.node, text: l.text, number: n + 1, op: "same" }));

/** The whole graph of a stop, and the key to its lines. */
function drawing(ctx: Context, stop: Stop): Node[] {
  const shown = graphStop(ctx.doc, stop);
  if (!shown) return [];
  const { groups, nodes } = planOf(ctx.doc);
  const open = unfoldedOf(ctx.view.panes.unfolded, groups, nodes);
  const scene = sceneOf(ctx.doc, open);
  const { el, paint } = canvas(h("div"));
  el.classList.add("drawing");
  paint({ scene, content: contentOf(scene, shown.graph, graphBefore(ctx.doc, shown), 1), scale: 1, height: scene.height, flat: open === null, focused: "" }, true);
  el.setAttribute("width", String(Math.round(scene.width)));
  const kinds = (Object.keys(KINDS) as EdgeKind[]).filter((k) => shown.graph.edges.some((e) => e.kind === k));
  const key = kinds.map((k) => h("span", {}, svg("svg", { width: 20, height: 8, class: "dataflow" }, svg("g", { class: `edge ${k}` }, svg("path", { class: "line", d: "M1,4 L19,4" }))), ` ${KINDS[k].sign} ${KINDS[k].word}`));
  return [h("h4", {}, `Graph${shown === stop ? "" : ` of ${stopName(shown)}`}`), el, h("p", { class: "key" }, ...key)];
}

/** The rows of a stop's tag table that tell most. */
function tags(ctx: Context, stop: Stop): Node[] {
  const whole = stop.kind === "loops" ? ctx.tags.get(stop) : null;
  if (!whole) return [];
  const element = elements(whole).length > 1 && whole.rows.length > 10 ? tellingElement(whole) : "";
  return [h("h4", {}, `Tags${element && `, row ${element}`}: ${whole.title.replace(/^.*?: /, "")}`), tagTable(ctx, focus(only(whole, element), changedBlocks(ctx.doc, stop)), varying(whole)).el];
}

function program(ctx: Context, stop: Stop): Node[] {
  const before = stopBefore(ctx.doc, stop);
  return [h("h4", {}, before ? `Program, with what changed since ${stopName(before)}` : "Program"), listing(marked(stop, before, true))];
}

/** Derivations with nothing folded. */
function unfolded(el: HTMLElement): HTMLElement {
  for (const fold of el.querySelectorAll("details")) fold.open = true;
  return el;
}
const derivation = (stop: Stop): Node[] => (stop.derivation ? [h("h4", {}, `Derivation, ${stopName(stop)}`), unfolded(derivationEl(stop.derivation))] : []);

const whole = (ctx: Context, stop: Stop): Node[] => [...program(ctx, stop), ...drawing(ctx, stop), ...tags(ctx, stop), ...derivation(stop)];

/** A stop of the story. Its derivation has the program of the stop before; the kernel's code follows once, below. */
function told(ctx: Context, { title, text, key }: StoryStop, n: number): Node[] {
  const stop = ctx.doc.byKey.get(key)!;
  const shown = stop.derivation ? derivation(stop) : stop.kind === "loops" ? whole(ctx, stop) : [];
  return [h("h3", {}, `${n + 1} ${title}`), h("p", { class: "dim" }, stopName(stop)), h("p", {}, text), ...shown];
}

function step({ index, call, remark, stops, error }: StepEntry): Node[] {
  const name = h("li", {}, h("i", {}, String(index)), remark ? h("em", {}, call) : h("code", {}, call), error ? h("span", { class: "bad" }, `✗ refused: ${error}`) : null);
  const phases = stops.length < 2 ? [] : stops.map((s) => h("li", {}, h("i", {}, s.letter), h("span", {}, s.title, wrongness(s) && h("span", { class: "bad" }, ` ! ${wrongness(s)}`), s.note && `: ${s.note}`)));
  return [name, ...phases];
}

/** How bytes and operations changed, as the traffic pane shows it of the last stop. */
function traffic(ctx: Context, last: Stop): Node[] {
  if (!ctx.payload.panes.traffic) return [];
  const pane = TRAFFIC.make({ ...ctx, stop: last, view: { ...ctx.view, panes: {} } });
  pane.update();
  return [h("h3", {}, "Traffic"), pane.el];
}

/** Everything of the record that paper can hold. */
export function printed(ctx: Context): HTMLElement {
  const { doc, payload } = ctx;
  const { operator, versions } = doc.trace;
  const check = payload.check && `${payload.check.ok === null ? "–" : payload.check.ok ? "✓" : "✗"} ${payload.check.text}`;
  const tensors = [...operator.inputs, ...operator.outputs].map((t) => `${t.name} ${t.dtype}[${t.shape.join(" × ")}]`).join(", ");
  const story = storyOf(doc);
  const seen = new Set(story.map(({ key }) => key));
  const here = seen.has(ctx.stop.key) || ctx.stop.kind !== "loops" ? [] : [h("h3", {}, stopName(ctx.stop)), h("p", { class: "dim" }, ctx.stop.note), ...whole(ctx, ctx.stop)];
  const derivations = doc.stops.filter((s) => s.derivation && !seen.has(s.key) && (s !== ctx.stop || !here.length)).flatMap(derivation);
  const proofs = doc.stops.filter((s) => s.proof.length).flatMap((s) => [h("h4", {}, stopName(s)), unfolded(proofEl(s.proof))]);
  return h(
    "div",
    { class: "printed" },
    h("h2", {}, operator.title),
    h("p", {}, tensors),
    h("p", { class: "dim" }, [check, payload.device, ...Object.entries(versions).map(([name, v]) => `${name} ${v}`)].filter(Boolean).join(" · ")),
    h("h3", {}, "Definition"),
    listing(definitionRows(doc)),
    ...story.flatMap((stop, n) => told(ctx, stop, n)),
    ...here,
    h("h3", {}, "Steps"),
    h("ol", { class: "all" }, ...doc.steps.flatMap(step)),
    ...(derivations.length ? [h("h3", {}, "Other derivations"), ...derivations] : []),
    ...(proofs.length ? [h("h3", {}, "Proofs of the passes"), ...proofs] : []),
    ...traffic(ctx, doc.stops[doc.stops.length - 1]!),
    ...(doc.htile.length ? [h("h3", {}, "HTile"), listing(numbered(doc.htile))] : []),
    ...(doc.triton.length ? [h("h3", {}, doc.language), listing(numbered(doc.triton))] : []),
    h("p", { class: "dim" }, "Not on paper: programs, graphs and tag tables of other steps, the run, comparisons and machine code. In the page, go to a step to print it too; SVG and PNG beside a figure save it as a file."),
  );
}

/** Writes the page out before it is printed, in light colours, and takes that away after; ends with the function returned. */
export function onPaper(ctx: Context, theme: () => void): () => void {
  let paper: HTMLElement | null = null;
  const before = () => {
    paper?.remove();
    ctx.root.classList.remove("dark");
    ctx.root.append((paper = printed(ctx)));
  };
  const after = () => {
    paper?.remove();
    paper = null;
    theme();
  };
  addEventListener("beforeprint", before);
  addEventListener("afterprint", after);
  return () => {
    removeEventListener("beforeprint", before);
    removeEventListener("afterprint", after);
    after();
  };
}
