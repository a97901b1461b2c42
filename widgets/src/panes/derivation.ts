// The algebra: each step with the formula that came of it, and what it did when opened.

import type { Context, Pane } from "../context";
import { rowsOf, stepEl } from "../derivation_step";
import { h } from "../dom";
import { definePane } from "../pane";
import { type Derivation, type Stop, stopName } from "../record";
import { tabs } from "../tabs";

/** The repair function as the steps typeset it; as text if no step has it. */
function typeset(d: Derivation): Element {
  const value = (text: string) => text.slice(text.indexOf(" = "));
  const row = d.steps.flatMap(rowsOf).find(({ math, text }) => math && /(?:^|: )h(?:_0)?\(/.test(text) && value(text) === value(d.summary));
  return row ? (row.math!.cloneNode(true) as Element) : h("code", {}, d.summary);
}

/** Text is shown in place of a formula that would have to be smaller than this share of its size to fit. */
const SMALLEST = 0.75;

/** Makes the repair function fit its line: a little smaller, or as text, which has line breaks. */
function fit(body: HTMLElement): void {
  const line = body.querySelector<HTMLElement>(".der > .sum:has(> math)");
  const math = line?.querySelector<HTMLElement>("math");
  if (!line || !math || !line.clientWidth) return;
  line.classList.remove("long");
  math.style.fontSize = "";
  const share = (line.clientWidth - 24) / math.getBoundingClientRect().width;
  line.classList.toggle("long", share < SMALLEST);
  if (share < 1) math.style.fontSize = `${Math.floor(150 * share) / 10}px`;
}

/** The repair function as a formula and, for narrow panes, as text. */
function shownAs(d: Derivation): Element[] {
  const made = typeset(d);
  return made.localName === "math" ? [made, h("code", { class: "plain" }, d.summary)] : [made];
}

/** Whether the term is no g, but the expression at which the algebra refused. */
const refusedAt = (d: Derivation): boolean => !d.accepted && d.steps.length === 1 && !d.steps[0]!.ok;

export function derivationEl(d: Derivation): HTMLElement {
  return h(
    "div",
    { class: "der" },
    h("p", { class: "sum" }, h("span", { class: d.accepted ? "s ok" : "s bad" }, d.accepted ? "✓ " : "✗ "), ...(d.accepted ? shownAs(d) : [d.summary])),
    h("p", { class: "g" }, ...(d.reducer ? ["reducer ", h("code", {}, d.reducer), refusedAt(d) ? "; refused: " : " of "] : ["refused: "]), h("code", {}, d.term)),
    ...d.steps.map(stepEl),
  );
}

/** The proof of an HTile pass: what it says, and under it, folded, why. */
export function proofEl(proof: readonly string[]): HTMLElement {
  const claims: { text: string; why: string[] }[] = [];
  for (const line of proof) {
    if (line.startsWith("  ") && claims.length) claims[claims.length - 1]!.why.push(line.slice(2));
    else claims.push({ text: line, why: [] });
  }
  const claim = ({ text, why }: { text: string; why: string[] }) =>
    why.length
      ? h("details", { class: "step", open: true }, h("summary", {}, h("span", { class: "f" }, text)), h("div", { class: "rows", tabindex: 0, role: "group", "aria-label": text }, ...why.map((w) => h("div", { class: "r one" }, h("code", {}, w)))))
      : h("p", { class: "sum" }, text);
  return h("div", { class: "der proof" }, ...claims.map(claim));
}

/** The stop whose algebra is shown: this one's, else that of the same step, else none, with the nearest to jump to. */
export function nearestDerivation(stops: readonly Stop[], stop: Stop): { shown: Stop | null; nearest: Stop | null } {
  if (stop.derivation) return { shown: stop, nearest: stop };
  const now = stops.indexOf(stop);
  const same = stop.step >= 0 ? stops.find((s) => s.step === stop.step && s.derivation && stops.indexOf(s) < now) : undefined;
  if (same) return { shown: same, nearest: same };
  let nearest: Stop | null = null;
  stops.forEach((s, n) => {
    if (s.derivation && (!nearest || Math.abs(n - now) < Math.abs(stops.indexOf(nearest) - now))) nearest = s;
  });
  return { shown: null, nearest };
}

/** The stage of the definition whose repair a stop derives. */
function stageOf(ctx: Context, stop: Stop): string {
  const fused = ctx.doc.trace.steps.find((s) => s.index === stop.step && s.error === null)?.arguments.block;
  return typeof fused === "string" ? (stop.lines.find((l) => l.node === `store:${fused}`)?.origin ?? fused) : "";
}
const selected = (ctx: Context, stop: Stop): boolean => ctx.view.selection.length > 0 && ctx.related.definition.has(`def:${stageOf(ctx, stop)}`);

/** The stop whose algebra is shown: the nearest of this step or, if the phase has none, that of the selected reduction. */
function shownAt(ctx: Context): { shown: Stop | null; nearest: Stop | null } {
  const { shown, nearest } = nearestDerivation(ctx.doc.stops, ctx.stop);
  const few = ctx.related.definition.size > 0 && ctx.related.definition.size <= 2;
  return { shown: shown ?? (few ? (ctx.doc.stops.find((s) => s.derivation?.accepted && selected(ctx, s)) ?? null) : null), nearest };
}

function derivationPane(ctx: Context): Pane {
  const bar = tabs(ctx, "derivation", "Derivation", [{ id: "derivation", label: "Derivation" }]);
  bar.update("derivation");
  const where = h("span", { class: "dim" });
  const all = h("button", { type: "button", class: "small", onclick: () => unfold() }, "Unfold all");
  const mark = h("span", { class: "chip tiny litmark", hidden: true });
  bar.extra.append(mark, where, all);
  const body = h("div", { class: "body scroll", role: "tabpanel", tabindex: 0, "aria-label": "derivation" });
  const el = h("section", { class: "pane", "aria-label": "derivation" }, bar.el, body);
  const cache = new WeakMap<Derivation, HTMLElement>();
  const resized = new ResizeObserver(() => fit(body));
  resized.observe(body);
  let drawn: Stop | null = null;
  let shownStop: Stop | null = null;
  let related: unknown = null;

  function unfold(): void {
    const steps = [...body.querySelectorAll("details")];
    const open = steps.some((s) => !s.open);
    for (const s of steps) s.open = open;
    all.textContent = open ? "Fold all" : "Unfold all";
  }

  function light(): void {
    const on = shownStop !== null && selected(ctx, shownStop);
    body.querySelector(".der:not(.proof)")?.classList.toggle("lit", on);
    mark.hidden = !on;
    mark.textContent = on ? `repair of ${stageOf(ctx, shownStop!)}, selected` : "";
  }

  return {
    el,
    destroy: () => resized.disconnect(),
    update() {
      if (drawn === ctx.stop && related === ctx.related) return;
      draw();
      drawn = ctx.stop;
      related = ctx.related;
      light();
    },
  };

  function draw(): void {
    if (ctx.stop.proof.length) {
      if (drawn === ctx.stop) return;
      shownStop = null;
      where.textContent = `proof of ${ctx.stop.title}`;
      all.hidden = false;
      all.textContent = "Fold all";
      body.replaceChildren(proofEl(ctx.stop.proof));
      return;
    }
    const { shown, nearest } = shownAt(ctx);
    if (drawn === ctx.stop && shown === shownStop) return;
    shownStop = shown;
    where.textContent = shown && shown !== ctx.stop ? `from ${stopName(shown)}` : "";
    all.hidden = !shown;
    if (shown) {
      let made = cache.get(shown.derivation!);
      if (!made) cache.set(shown.derivation!, (made = derivationEl(shown.derivation!)));
      if (body.firstChild !== made) body.replaceChildren(made);
      fit(body);
      all.textContent = [...body.querySelectorAll("details")].every((s) => s.open) ? "Fold all" : "Unfold all";
    } else if (nearest) {
      const to = nearest;
      body.replaceChildren(
        h("p", { class: "note" }, "No algebra in this phase; the nearest is in step ", h("button", { type: "button", class: "link", onclick: () => ctx.dispatch({ type: "go", key: to.key }) }, stopName(to)), "."),
      );
    } else body.replaceChildren(h("p", { class: "note" }, "This schedule repairs nothing, so there is no algebra to show."));
  }
}

export const pane = definePane({
  id: "derivation",
  title: "Derivation",
  help: "The algebra of the repair term, step by step; for a pass, its proof.",
  place: { column: "right", weight: 0.8 },
  order: 20,
  make: derivationPane,
  empty: (ctx) => !ctx.stop.proof.length && shownAt(ctx).shown === null,
  style: `
.nx .der.lit { box-shadow: inset 3px 0 0 var(--accent); background: linear-gradient(90deg, var(--accent-soft), transparent 40%); }
.nx .der .sum .plain { display: none; white-space: pre-wrap; overflow-wrap: anywhere; }
.nx .der .sum.long math { display: none; }
.nx .der .sum.long .plain { display: inline; }
.nx .chip.litmark { color: var(--accent); border-color: currentColor; flex: none; }
`,
});
