// The operator: its arguments as fields. Python makes it again with others, and compiles its schedule.

import type { Context, Message, Pane } from "../context";
import { h } from "../dom";
import { extents } from "../extents";
import { bringUp, definePane } from "../pane";
import type { EditError } from "../record";
import { AGAIN } from "../status";

interface Field {
  name: string;
  kind: "int" | "number" | "switch" | "choice" | "tensor";
  value: boolean | number | string | null;
  choices: string[];
  optional: boolean;
}
interface Form {
  fields: Field[];
  fixed: string;
}
type Value = Field["value"];

/** What a field's text means; undefined if it is no number, which Python could not be sent. */
export function valueOf(field: Pick<Field, "kind" | "optional">, text: string): Value | undefined {
  const t = text.trim();
  if (field.kind !== "int" && field.kind !== "number") return t;
  if (!t) return field.optional ? null : undefined;
  const n = Number(t.replaceAll("_", ""));
  return Number.isFinite(n) && (field.kind === "number" || Number.isInteger(n)) ? n : undefined;
}

function operatorPane(ctx: Context): Pane {
  const form = h("form", { class: "controls", "aria-label": "arguments of the operator" });
  const go = h("button", { type: "submit", class: "small p", form: `${ctx.uid}operator` }, "Recompile");
  const anew = h("button", { type: "button", class: "small", title: "the schedule of the operator's template, instead of the present steps", onclick: () => ask(true) }, "Schedule anew");
  form.id = `${ctx.uid}operator`;
  const status = h("span", { class: "dim", role: "status" });
  const error = h("div", { class: "error", role: "alert", hidden: true });
  const note = h("p", { class: "note" });
  const shapes = h("ul", { class: "shapes", "aria-label": "inputs and outputs" });
  const code = h("pre", { class: "repeat", tabindex: 0, "aria-label": "code that makes it again" });
  const undo = h("button", { type: "button", class: "link", hidden: true, onclick: () => send({ kind: "undo" }) }, "Undo");
  const bar = h("p", { class: "acts" }, go, " ", anew, " ", status, " ", undo);
  const el = h("div", { class: "operator" }, h("p", { class: "note first" }), form, bar, error, note, shapes, code);
  /** What was typed, by name; it stays through an edit that is refused. */
  const typed = new Map<string, Value | undefined>();
  let drawn: unknown = null;
  let of: string | undefined;
  let wasLive = ctx.live;
  let seq = 0;

  const data = (): Form | null => {
    const found = ctx.payload.panes.operator as Form | { error: string } | undefined;
    return found && "fields" in found ? found : null;
  };
  function ask(fresh: boolean): void {
    const bad = (data()?.fields ?? []).filter((f) => typed.has(f.name) && typed.get(f.name) === undefined);
    if (bad.length) return refuse({ message: `${bad.map((f) => f.name).join(", ")}: expected ${bad[0]!.kind === "int" ? "a whole number" : "a number"}` });
    if (!typed.size && !fresh) {
      status.textContent = "nothing is changed";
      return;
    }
    send({ kind: "remake", values: Object.fromEntries(typed), anew: fresh });
  }
  function send(message: { kind: string; [key: string]: unknown }): void {
    seq = ctx.send(message);
    if (!seq) return;
    error.hidden = undo.hidden = true;
    status.textContent = "compiling …";
    ctx.setEditing({ busy: true, error: null });
  }
  function refuse(e: EditError): void {
    status.textContent = "";
    error.hidden = false;
    error.replaceChildren(h("p", {}, h("b", {}, "✗ "), e.message), ...(e.help ? [h("p", { class: "help" }, h("b", {}, "help: "), e.help)] : []));
  }
  function input(f: Field): HTMLElement {
    const label = `${f.name} of the operator`;
    const set = (v: Value | undefined) => {
      v === f.value ? typed.delete(f.name) : typed.set(f.name, v);
      status.textContent = "";
      marks();
    };
    const value = typed.has(f.name) ? (typed.get(f.name) ?? "") : f.value;
    const off = !ctx.live;
    if (f.kind === "switch") {
      const box = h("input", { type: "checkbox", "aria-label": label, disabled: off, onchange: () => set(box.checked) });
      box.checked = value === true;
      return box;
    }
    if (f.kind === "choice") {
      const pick = h("select", { "aria-label": label, disabled: off, onchange: () => set(pick.value) }, ...f.choices.map((c) => h("option", { value: c }, c)));
      pick.value = String(value);
      return pick;
    }
    const field = h("input", { type: "text", value: value === null ? "" : String(value), placeholder: f.optional ? "default" : null, inputmode: f.kind === "tensor" ? null : "decimal", "aria-label": label, spellcheck: "false", autocomplete: "off", disabled: off, oninput: () => set(valueOf(f, field.value)) });
    return field;
  }
  function marks(): void {
    for (const name of form.querySelectorAll<HTMLElement>(".pn")) name.classList.toggle("new", typed.has(name.textContent ?? ""));
    go.disabled = !ctx.live;
    anew.disabled = !ctx.live;
  }
  function draw(): void {
    const { operator } = ctx.doc.trace;
    const made = data();
    const first = el.querySelector(".first")!;
    first.textContent = operator.title;
    form.replaceChildren(...(made?.fields ?? []).map((f) => h("label", {}, h("span", { class: "pn" }, f.name), input(f))));
    const fixed = made?.fixed ?? "";
    bar.hidden = !ctx.live || Boolean(fixed) || !made;
    note.textContent = !ctx.payload.live
      ? "This page has no Python behind it, so nothing can be changed here: run the code below in a notebook, and show it with nl.explore(kernel)."
      : !ctx.live ? "Python is gone: run the cell again to edit."
      : fixed ? `Its sizes are fixed. ${fixed}`
      : "The schedule's steps are applied to the new operator; if one is refused, its template schedules it anew. The definition itself is Python: change it in the cell that makes it.";
    const python = ctx.payload.python ?? "";
    code.hidden = ctx.payload.live || !python;
    code.textContent = python.trim();
    if (!ctx.payload.live && !python) note.textContent = `This page shows a saved record: nothing can be changed here.${ctx.payload.again ? ` ${AGAIN}` : ""}`;
    shapes.replaceChildren(...[...operator.inputs.map((t) => ["in", t] as const), ...operator.outputs.map((t) => ["out", t] as const)].map(([way, t]) => h("li", {}, h("span", { class: "dim" }, `${way} `), h("code", {}, `${t.name}: ${t.dtype}[${extents(t).join(", ")}]`))));
    marks();
  }

  form.addEventListener("submit", (e) => {
    e.preventDefault();
    ask(false);
  });
  ctx.onAnswer((m: Message) => {
    if (!seq || m.seq !== seq || !["edited", "refused", "failed"].includes(m.kind)) return;
    seq = 0;
    const done = m.kind === "edited";
    if (done) {
      typed.clear();
      drawn = null;
    }
    if (m.payload) ctx.setPayload(m.payload);
    ctx.setEditing({ busy: false, error: null });
    if (done) {
      status.textContent = String(m.note ?? "as it was before");
      undo.hidden = m.note === undefined;
      ctx.announce(`recompiled: ${status.textContent}`);
      ctx.refresh();
    } else {
      const e = m.kind === "failed" ? { message: String(m.message) } : (m.error as EditError);
      refuse(e);
      ctx.announce(`refused: ${e.message}`);
    }
  });

  return {
    el,
    update() {
      if (drawn === ctx.doc && wasLive === ctx.live) return;
      if (drawn !== null && drawn !== ctx.doc && JSON.stringify(data()) !== of) {
        // Another operator, by undo or redo: what was typed was meant for the one before.
        typed.clear();
        status.textContent = "";
        error.hidden = undo.hidden = true;
      }
      drawn = ctx.doc;
      of = JSON.stringify(data());
      wasLive = ctx.live;
      draw();
    },
  };
}

export const pane = definePane({
  id: "operator",
  title: "Operator",
  help: "The operator's sizes and options, which can be changed if it was made by the library, by `nl.from_torch` or by a function given to `nl.explore`; its inputs and outputs.",
  place: { tabOf: "graph" },
  roomy: true,
  order: 22,
  make: operatorPane,
  keys: [{ keys: ["O"], text: "operator", explained: "the operator's sizes and options", order: 52, more: true, press: { o: (ctx) => bringUp(ctx, pane) } }],
  style: `
.nx .operator { flex: 1; min-height: 0; overflow: auto; padding: 4px 0 10px; }
.nx .operator .controls { grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); padding: 4px 16px; }
.nx .operator .controls label { display: grid; grid-template-columns: 92px minmax(0, 1fr); gap: 6px; align-items: baseline; }
.nx .operator .controls .pn { overflow-wrap: anywhere; }
.nx .operator .controls input[type=text] { width: 100%; max-width: 190px; }
.nx .operator .pn.new::after { content: " ~"; color: var(--accent); font-weight: 600; }
.nx .operator .acts { margin: 6px 16px; font-size: 12.5px; }
.nx .operator .error { margin: 6px 16px; border-radius: 6px; }
.nx .operator .shapes { list-style: none; margin: 8px 16px; padding: 0; font-size: 12.5px; }
.nx .operator .repeat { margin: 8px 16px; font: 12px/1.5 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); border-radius: 6px; padding: 8px 12px; }
`,
});
