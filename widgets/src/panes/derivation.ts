// The algebra: each step with the formula that came of it, and what it did when opened.

import type { Context, Pane } from "../context";
import { h } from "../dom";
import { mathml } from "../mathml";
import { type Derivation, type DerivationStep, type Stop, stopName } from "../record";
import { tabs } from "../tabs";

/** Rows of a step: words, and a formula as MathML. */
function rowsOf(step: DerivationStep): { label: string; math: Element | null; text: string }[] {
  const math = mathml(step.mathml);
  const texts = step.text.split("\n").slice(1).map((t) => t.trim());
  const rows = math ? [...math.getElementsByTagName("mtr")] : [];
  if (!math || rows.length !== texts.length)
    return math ? [{ label: "", math, text: step.text }] : texts.map((text) => ({ label: "", math: null, text }));
  return rows.map((row, n) => {
    const [label, formula] = [...row.children];
    const m = document.createElementNS("http://www.w3.org/1998/Math/MathML", "math");
    if (formula) m.append(...[...formula.childNodes].map((c) => c.cloneNode(true)));
    const words = label?.textContent ?? "";
    return m.childNodes.length ? { label: words, math: m, text: texts[n]! } : { label: "", math: null, text: words || texts[n]! };
  });
}

export function stepEl(step: DerivationStep): HTMLElement {
  const colon = step.title.indexOf(":");
  const [name, rest] = colon > 0 ? [step.title.slice(0, colon), step.title.slice(colon + 1).trim()] : [step.title, ""];
  const rows = rowsOf(step);
  const last = rows[rows.length - 1];
  const result = last?.math ? (last.math.cloneNode(true) as Element) : h("span", {}, last?.text ?? rest);
  const sign = step.ok ? h("span", { class: "s ok" }, "✓", h("span", { class: "vh" }, " holds")) : h("span", { class: "s bad" }, "✗", h("span", { class: "vh" }, " refused"));
  return h(
    "details",
    { class: `step${step.ok ? "" : " refused"}`, ...(step.ok ? {} : { open: true }) },
    h("summary", {}, h("span", { class: "n" }, name), h("span", { class: "f" }, result), sign),
    rest ? h("p", { class: "what" }, rest) : null,
    h(
      "div",
      { class: "rows", tabindex: 0, role: "group", "aria-label": step.title },
      ...rows.map((r) => h("div", { class: r.math && r.label ? "r" : "r one" }, r.label || !r.math ? h("span", { class: "dim" }, r.label || r.text) : null, r.math ? (h("span", { class: "f" }, r.math) as Node) : null)),
    ),
  );
}

export function derivationEl(d: Derivation): HTMLElement {
  return h(
    "div",
    { class: "der" },
    h("p", { class: "sum" }, h("span", { class: d.accepted ? "s ok" : "s bad" }, d.accepted ? "✓ " : "✗ "), d.accepted ? h("code", {}, d.summary) : d.summary),
    h("p", { class: "g" }, "reducer ", h("code", {}, d.reducer), " of ", h("code", {}, d.term)),
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

export function derivationPane(ctx: Context): Pane {
  const bar = tabs(ctx, "derivation", "Derivation", [{ id: "derivation", label: "Derivation" }]);
  bar.update("derivation");
  const where = h("span", { class: "dim" });
  const all = h("button", { type: "button", class: "small", onclick: () => unfold() }, "Unfold all");
  bar.extra.append(where, all);
  const body = h("div", { class: "body scroll", role: "tabpanel", tabindex: 0, "aria-label": "derivation" });
  const el = h("section", { class: "pane", "aria-label": "derivation" }, bar.el, body);
  const cache = new WeakMap<Derivation, HTMLElement>();
  let drawn: Stop | null = null;

  function unfold(): void {
    const steps = [...body.querySelectorAll("details")];
    const open = steps.some((s) => !s.open);
    for (const s of steps) s.open = open;
    all.textContent = open ? "Fold all" : "Unfold all";
  }

  return {
    el,
    update() {
      if (drawn === ctx.stop) return;
      drawn = ctx.stop;
      if (ctx.stop.proof.length) {
        where.textContent = `proof of ${ctx.stop.title}`;
        all.hidden = false;
        all.textContent = "Fold all";
        body.replaceChildren(proofEl(ctx.stop.proof));
        return;
      }
      const { shown, nearest } = nearestDerivation(ctx.doc.stops, ctx.stop);
      where.textContent = shown && shown !== ctx.stop ? `from ${stopName(shown)}` : "";
      all.hidden = !shown;
      if (shown) {
        let made = cache.get(shown.derivation!);
        if (!made) cache.set(shown.derivation!, (made = derivationEl(shown.derivation!)));
        if (body.firstChild !== made) body.replaceChildren(made);
        all.textContent = [...body.querySelectorAll("details")].every((s) => s.open) ? "Fold all" : "Unfold all";
      } else if (nearest) {
        const to = nearest;
        body.replaceChildren(
          h("p", { class: "note" }, "No algebra in this phase, the nearest is step ", h("button", { type: "button", class: "link", onclick: () => ctx.dispatch({ type: "go", key: to.key }) }, stopName(to)), "."),
        );
      } else body.replaceChildren(h("p", { class: "note" }, "This schedule repairs nothing, so there is no algebra to show."));
    },
  };
}
