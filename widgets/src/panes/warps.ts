// The warps of a Gluon kernel over simulated steps: what each group does, and for whom it waits.

import type { Context, Message, Pane } from "../context";
import { h } from "../dom";
import { figureButtons } from "../figures";
import { homeLine } from "../machine_code";
import { bringUp, definePane } from "../pane";
import { SIGNS, type Timeline, eventAt, litEvents, sentence, timelineIn, waiting } from "../warps";
import { FIGURE_STYLE, KINDS, warpsFigure } from "../warps_figure";

/** Pixels of a step, and the scales that the buttons choose from. */
const SCALES = [2, 3, 5, 8, 12, 18];

function warpsPane(ctx: Context): Pane {
  const made = new Map<string, Timeline | string>();
  let asking = { seq: 0, source: "" };
  let drawn: Timeline | null = null;
  let scale = -1;
  let related: unknown = null;
  let at = { group: 0, event: 0 };
  let bars: HTMLElement[][] = [];

  const zoom = (text: string, title: string, by: number) => h("button", { type: "button", class: "small", title, "aria-label": title, onclick: () => ctx.dispatch({ type: "size", name: "warps", value: Math.min(Math.max(scaleOf() + by, 0), SCALES.length - 1) + 1 }) }, text);
  // Only the drawing that is saved is an SVG: it is in the page while its colours are read.
  const paper = h("div", { hidden: true });
  const saving = figureButtons("the warps", () => ctx.root, (take) => {
    if (!drawn) return;
    const figure = warpsFigure(drawn, SCALES[scaleOf()]!);
    paper.replaceChildren(figure);
    const { width, height } = figure.viewBox.baseVal;
    take({ name: `${ctx.doc.trace.operator.name}-warps`, drawings: [{ el: figure, width, height }] });
    paper.replaceChildren();
  });
  const tools = h("span", { class: "tools" }, zoom("−", "fewer pixels per step", -1), zoom("+", "more pixels per step", 1), saving);
  const note = h("p", { class: "note" });
  const key = h("p", { class: "key" }, ...KINDS.map(([kind, text]) => h("span", {}, h("i", { class: `w-${kind} wkey` }, SIGNS[kind]), ` ${text}`)), h("span", {}, h("i", { class: "wflight wkey w-copy" }), h("i", { class: "wflight wkey w-product" }), " copy, product in flight"));
  const lanes = h("div", { class: "wlanes" });
  const box = h("div", { class: "wbox", tabindex: 0, role: "listbox", "aria-label": "warps over simulated steps" }, lanes);
  const says = h("p", { class: "wsays", role: "status" });
  const el = h("div", { class: "warps" }, note, box, says, key, paper);

  const source = () => ctx.doc.trace.kernel?.source ?? "";
  const scaleOf = () => Math.min(Math.max(Math.round(ctx.view.sizes.warps ?? 4) - 1, 0), SCALES.length - 1);

  function ask(): void {
    if (asking.source === source() || !ctx.live) return;
    const seq = ctx.send({ kind: "warps" });
    if (seq) asking = { seq, source: source() };
  }
  ctx.onAnswer((m: Message) => {
    if (m.seq !== asking.seq || !asking.seq || m.kind === "later") return;
    made.set(asking.source, timelineIn(m.timeline) ?? String(m.message ?? "there is no timeline"));
    asking = { seq: 0, source: "" };
    ctx.refresh();
  });

  function say(group: number, event: number): void {
    says.textContent = drawn ? sentence(drawn, group, event, ctx.doc) : "";
  }
  function go(group: number, event: number): void {
    bars[at.group]?.[at.event]?.classList.remove("act");
    at = { group, event };
    const bar = bars[group]?.[event];
    if (!bar) return;
    bar.classList.add("act");
    box.setAttribute("aria-activedescendant", bar.id);
    const left = bar.offsetLeft;
    if (left < box.scrollLeft || left + 40 > box.scrollLeft + box.clientWidth - 110) box.scrollLeft = Math.max(0, left - 80);
    say(group, event);
  }
  function press(group: number, event: number, add: boolean): void {
    const home = homeLine(drawn!.groups[group]!.events[event]![3], ctx.doc);
    if (home) ctx.dispatch({ type: "select", ids: [home], add }, "warps");
  }
  const placeOf = (target: EventTarget | null): [number, number] | null => {
    const bar = (target as Element | null)?.closest?.<HTMLElement>("[data-event]");
    return bar ? [Number(bar.dataset.group), Number(bar.dataset.event)] : null;
  };
  box.addEventListener("pointerover", (e) => { const p = placeOf(e.target); if (p) say(...p); });
  box.addEventListener("click", (e) => {
    const p = placeOf(e.target);
    if (p) (go(...p), press(...p, e.ctrlKey || e.metaKey || e.shiftKey));
  });
  box.addEventListener("keydown", (e) => {
    if (!drawn || e.ctrlKey || e.metaKey || e.altKey) return;
    const { group, event } = at;
    const events = drawn.groups[group]!.events;
    const other = { ArrowUp: group - 1, ArrowDown: group + 1 }[e.key];
    const to = { ArrowLeft: event - 1, ArrowRight: event + 1, Home: 0, End: events.length - 1 }[e.key];
    if (other !== undefined) {
      const next = drawn.groups[other];
      if (next) go(other, eventAt(next, events[event]![1]));
    } else if (to !== undefined) go(group, Math.min(Math.max(to, 0), events.length - 1));
    else if (e.key === "Enter" || e.key === " ") press(group, event, e.shiftKey);
    else return;
    e.preventDefault();
    e.stopPropagation();
  });

  function draw(timeline: Timeline): void {
    const px = SCALES[scaleOf()]!;
    const steps = Math.min(timeline.steps, timeline.limit);
    const ticks = Math.max(10, Math.ceil(60 / px / 10) * 10);
    const ruler = h("div", { class: "wline wruler", style: `width:${steps * px}px`, "aria-hidden": "true" });
    for (let n = 0; n < steps; n += ticks) ruler.append(h("i", { style: `left:${n * px}px` }, String(n)));
    bars = timeline.groups.map((group, g) =>
      group.events.map(([kind, start, end], n) => {
        const width = (end - start) * px;
        return h("div", { class: `wbar w-${kind}`, role: "option", "aria-selected": "false", id: `${ctx.uid}-warp-${g}-${n}`, "data-group": g, "data-event": n, style: `left:${start * px}px;width:${width}px`, "aria-label": sentence(timeline, g, n, ctx.doc) }, width >= 8 ? SIGNS[kind] : "");
      }),
    );
    lanes.replaceChildren(
      h("div", { class: "wlane", "aria-hidden": "true" }, h("b", {}, "step"), ruler),
      ...timeline.groups.map((group, g) =>
        h("div", { class: "wlane", role: "group", "aria-label": `${group.name}, waits ${waiting(group)} %` },
          h("b", { "aria-hidden": "true" }, group.name, h("span", { class: "dim" }, `${group.warps} ${group.warps === 1 ? "warp" : "warps"} · waits ${waiting(group)} %`)),
          h("div", { class: "wline", style: `width:${steps * px}px` }, ...bars[g]!, ...group.flights.map(([kind, start, end]) => h("i", { class: `wflight w-${kind}`, "aria-hidden": "true", style: `left:${start * px}px;width:${(end - start) * px}px` }))),
        ),
      ),
    );
    at = { group: 0, event: 0 };
  }

  return {
    el,
    tools,
    update() {
      const given = ctx.payload.panes.warps as { error?: string } | null | undefined;
      const found = made.get(source()) ?? timelineIn(given) ?? given?.error ?? null;
      if (found === null) ask();
      const timeline = typeof found === "object" ? found : null;
      note.textContent = timeline
        ? `Simulated steps of the first program: order and dependence, not time. A step is one operation; a copy takes ${timeline.copy} steps and a product ${timeline.product}. The producer copies tiles into shared memory; consumers compute with them.${timeline.steps > timeline.limit ? ` The first ${timeline.limit} of ${timeline.steps} steps.` : ""}`
        : (found as string | null) !== null ? `✗ ${String(found)}` : ctx.live ? "Simulating …" : "Simulating needs a running Python kernel.";
      box.hidden = says.hidden = key.hidden = tools.hidden = !timeline;
      if (!timeline) return;
      if (drawn !== timeline || scale !== scaleOf()) {
        if (drawn !== timeline) says.textContent = "Point at a step, or walk with the arrows; a press selects its line.";
        drawn = timeline;
        scale = scaleOf();
        draw(timeline);
        related = null;
      }
      if (related !== ctx.related) {
        related = ctx.related;
        const lit = timeline.groups.map((group) => litEvents(group, ctx.related.triton));
        lanes.classList.toggle("some", lit.some((events) => events.size > 0));
        bars.forEach((row, g) => row.forEach((bar, n) => {
          bar.classList.toggle("lit", lit[g]!.has(n));
          bar.setAttribute("aria-selected", String(lit[g]!.has(n)));
        }));
        const first = bars.flatMap((row, g) => [...lit[g]!].slice(0, 1).map((n) => row[n]!)).sort((a, b) => a.offsetLeft - b.offsetLeft)[0];
        if (first && ctx.source !== "warps" && ctx.source !== "step") box.scrollLeft = Math.max(0, first.offsetLeft - 80);
      }
    },
  };
}

export const pane = definePane({
  id: "warps",
  title: "Warps",
  help: "The groups of warps of a Gluon kernel over simulated steps, which are not time: what each does, and for whom it waits.",
  place: { tabOf: "graph" },
  order: 70,
  roomy: true,
  make: warpsPane,
  available: (ctx) => (ctx.doc.trace.kernel?.source ?? "").includes("gl.warp_specialize(") && (ctx.payload.live || Boolean(ctx.payload.panes.warps)),
  keys: [{ keys: ["W"], text: "warps of a Gluon kernel", order: 76, more: true, press: { w: (ctx) => { if (pane.available!(ctx)) bringUp(ctx, pane); } } }],
  style: `
.nx .warps { display: flex; flex-direction: column; flex: 1; min-height: 0; }
.nx .warps > .note { max-width: none; padding-bottom: 4px; flex: none; }
.nx .wbox { overflow: auto; flex: 0 1 auto; min-height: 60px; padding: 2px 0 6px; }
.nx .wlanes { width: max-content; min-width: 100%; }
.nx .wlane { display: flex; align-items: stretch; }
.nx .wlane > b { position: sticky; left: 0; z-index: 2; width: 142px; flex: none; padding: 3px 8px 3px 14px; background: var(--bg); font: 600 12px/1.35 var(--sans); border-right: 1px solid var(--line); }
.nx .wlane > b span { display: block; font: 11px/1.3 var(--sans); white-space: nowrap; }
.nx .wline { position: relative; height: 40px; margin-right: 20px; }
.nx .wruler { height: 18px; }
.nx .wruler i { position: absolute; font: 11px/18px var(--mono); color: var(--dim); padding-left: 3px; border-left: 1px solid var(--line); }
.nx .wbar { position: absolute; top: 4px; height: 22px; overflow: hidden; cursor: pointer; font: 11px/22px var(--mono); text-align: center; border-left: 1px solid var(--bg); color: var(--bg); }
.nx .w-compute { background: var(--edge); }
.nx .w-copy { background: var(--right); }
.nx .w-product { background: var(--fixed); }
.nx .w-arrive { background: var(--early); }
.nx .wbar.w-wait, .nx .wkey.w-wait { background: repeating-linear-gradient(135deg, var(--soft) 0 4px, var(--line) 4px 5px); color: var(--dim); }
.nx .wflight { position: absolute; top: 29px; height: 4px; border-radius: 2px; opacity: .75; }
.nx .wflight.w-copy { top: 34px; }
.nx .wlanes.some .wbar:not(.lit) { opacity: .35; }
.nx .wbar.lit { outline: 2px solid var(--accent); outline-offset: -2px; z-index: 1; }
.nx .wbox:focus-visible .wbar.act { outline: 2px dashed var(--ink); outline-offset: 1px; z-index: 2; opacity: 1; }
.nx .wsays { flex: none; padding: 4px 14px; font: 12px/1.45 var(--mono); border-top: 1px solid var(--line); min-height: 44px; overflow-wrap: anywhere; }
.nx .warps .key { flex: none; }
.nx .wkey { position: static; display: inline-block; width: 16px; height: 12px; font: 11px/12px var(--mono); text-align: center; color: var(--bg); vertical-align: -1px; }
.nx .wkey.wflight { height: 4px; top: 0; margin-right: 2px; vertical-align: 3px; }
${FIGURE_STYLE}`,
});
