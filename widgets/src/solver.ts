// The solver's panel: fields for a term, and below them its derivation or its refusal, as Python last answered.

import type { Model } from "./app";
import { debounce, h } from "./dom";
import { hideStatic } from "./hide_static";
import { mathml } from "./mathml";
import { ownKeys } from "./own_keys";
import { stepEl } from "./derivation_step";
import type { DerivationStep } from "./record";
import style from "./solver.css";

type Fields = Record<"g" | "reducer" | "producers" | "assumptions" | "constants", string>;
interface Attempt {
  title: string;
  formula: string;
  steps: DerivationStep[];
  refusal: { step: string; expression: string; reason: string; help: string } | null;
}
interface Answer {
  question: Fields;
  state: "solved" | "family" | "refused" | "unread" | "failed";
  words: string;
  attempts: Attempt[];
}

const WAIT = 250; // milliseconds without a key, after which a term is solved
const SIGNS: Record<Answer["state"], [string, string]> = {
  solved: ["✓", "There is a repair term:"],
  family: ["✓", "No repair term alone, but a family of sums has one:"],
  refused: ["✗", "There is no repair:"],
  unread: ["…", "Not readable yet:"],
  failed: ["✗", "An error of the solver:"],
};
const EXAMPLES: [string, Partial<Fields>][] = [
  ["softmax", { g: "exp(c - r)" }],
  ["attention", { g: "exp(c - r1)*v/r2", producers: "r1, r2" }],
  ["sum of squares", { g: "(c/r)**2", assumptions: "r >= 0" }],
  ["deviation", { g: "(c - r)**2" }],
  ["maximum", { g: "c*r", reducer: "max" }],
  ["not invertible", { g: "max(c, r)" }],
];
let uids = 0;

/** The panel's fields with what an example says; what it does not say is as in a new panel. */
export function example(given: Partial<Fields>): Fields {
  return { reducer: "sum", producers: "r", assumptions: "", constants: "", g: "", ...given };
}

export const same = (a: Fields, b: Fields): boolean => (Object.keys(a) as (keyof Fields)[]).every((k) => a[k] === b[k]);

export function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const uid = `ns${++uids}`;
  const root = h("div", { class: "ns", role: "region", "aria-label": "solver of repair terms" });
  let fields = { ...(model.get("question") as Fields) };
  let answer = model.get("answer") as Answer;

  const inputs = {} as Record<Exclude<keyof Fields, "reducer">, HTMLInputElement>;
  const field = (name: keyof typeof inputs, label: string, hint: string, width: string) => {
    const input = h("input", { type: "text", id: `${uid}${name}`, spellcheck: "false", autocomplete: "off", autocapitalize: "off", placeholder: hint, maxlength: 300, style: `width:${width}` });
    input.addEventListener("input", () => edit({ [name]: input.value }));
    inputs[name] = input;
    return h("div", { class: "field" }, h("label", { for: `${uid}${name}` }, label), input);
  };
  const radios = (model.get("reducers") as string[]).map((name) => {
    const input = h("input", { type: "radio", name: `${uid}f`, value: name, onchange: () => edit({ reducer: name }) });
    return { name, input, el: h("label", {}, input, h("span", {}, name)) };
  });
  const form = h(
    "form",
    { onsubmit: (e: Event) => e.preventDefault() } as never,
    h("div", { class: "line" }, h("fieldset", {}, h("legend", {}, "reducer f"), h("div", { class: "radios" }, ...radios.map((r) => r.el))), field("g", "term g(r, c)", "exp(c - r)", "26em")),
    h("div", { class: "line" }, field("producers", "results r", "r", "7em"), field("assumptions", "what is known", "r >= 0, eps > 0", "15em"), field("constants", "constants of the reduction", "eps", "9em")),
    h(
      "div",
      { class: "line examples" },
      h("span", { class: "dim", id: `${uid}e` }, "examples"),
      ...EXAMPLES.map(([name, given]) => h("button", { type: "button", onclick: () => (edit(example(given)), ask.flush()) }, name)),
    ),
  );
  const stop = h("button", { type: "button", onclick: () => (model.set("running", false), model.save_changes()) }, "Stop");
  const busy = h("div", { class: "busy" }, h("span", { class: "dim" }, "deriving …"), stop);
  const sign = h("b", {});
  const says = h("span", {});
  const formula = h("div", { class: "formula" });
  const words = h("div", { class: "vh" });
  const status = h("div", { class: "status", role: "status", "aria-live": "polite", "aria-atomic": "true" }, h("p", {}, sign, says), words);
  const body = h("div", { class: "attempts" });
  const style_ = h("style", {}, style);

  const ask = debounce(() => {
    model.set("question", { ...fields });
    model.save_changes();
  }, WAIT);

  function edit(change: Partial<Fields>): void {
    fields = { ...fields, ...change };
    fill();
    stale();
    ask();
  }
  function fill(): void {
    for (const [name, input] of Object.entries(inputs)) {
      const value = fields[name as keyof Fields];
      if (input.value !== value) input.value = value;
    }
    for (const r of radios) r.input.checked = r.name === fields.reducer;
  }
  /** What is shown belongs to an earlier text until Python has answered. */
  function stale(): void {
    root.classList.toggle("stale", !same(fields, answer.question));
  }
  function draw(): void {
    const [mark, said] = SIGNS[answer.state];
    sign.textContent = `${mark} ${said} `;
    const last = answer.attempts[answer.attempts.length - 1];
    const math = last ? mathml(last.formula) : null;
    formula.replaceChildren(...(math ? [math] : []));
    formula.hidden = !math;
    // A formula is read out as text; where there is none, the sentence itself is seen.
    says.textContent = math ? "" : answer.words;
    words.textContent = math ? answer.words : "";
    status.className = `status ${answer.state}`;
    const open = new Set([...body.querySelectorAll<HTMLDetailsElement>("details[open]")].map((d) => d.dataset.title));
    body.replaceChildren(...answer.attempts.map((a) => attemptEl(a, open)));
    stale();
  }

  const onRunning = () => {
    busy.hidden = !model.get("running");
  };
  const onAnswer = () => {
    answer = model.get("answer") as Answer;
    draw();
  };
  // Python, or another view of the same panel, may change the fields; what is being typed here wins.
  const onQuestion = () => {
    const theirs = model.get("question") as Fields;
    if (same(theirs, fields) || root.contains(document.activeElement)) return;
    fields = { ...theirs };
    fill();
    stale();
  };
  model.on("change:answer", onAnswer as never);
  model.on("change:question", onQuestion as never);
  model.on("change:running", onRunning as never);
  ownKeys(root);
  root.append(style_, form, busy, status, formula, body);
  fill();
  onRunning();
  draw();
  el.append(root);
  const restore = hideStatic(root);
  return () => {
    ask.flush();
    restore();
    model.off("change:answer", onAnswer as never);
    model.off("change:question", onQuestion as never);
    model.off("change:running", onRunning as never);
    root.remove();
  };
}

function attemptEl(a: Attempt, open: ReadonlySet<string | undefined>): HTMLElement {
  const steps = a.steps.map((step) => {
    const el = stepEl(step) as HTMLDetailsElement;
    el.dataset.title = `${a.title}${step.title}`;
    el.open = open.has(el.dataset.title);
    return el;
  });
  const r = a.refusal;
  const refusal =
    r &&
    h(
      "div",
      { class: "refusal" },
      h("p", {}, h("b", {}, `✗ refused at the step “${r.step}”`)),
      h("dl", {}, h("dt", {}, "on"), h("dd", {}, h("code", {}, r.expression)), h("dt", {}, "because"), h("dd", {}, r.reason), ...(r.help ? [h("dt", {}, "how to fix it"), h("dd", {}, r.help)] : [])),
    );
  return h("section", { "aria-label": a.title }, h("h4", {}, a.title), ...steps, refusal);
}

export default { render };
