// A step of a derivation: the formula that came of it, and what it did when opened.

import { h } from "./dom";
import { mathml } from "./mathml";
import type { DerivationStep } from "./record";

/** Rows of a step: words, and a formula as MathML. */
export function rowsOf(step: DerivationStep): { label: string; math: Element | null; text: string }[] {
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
