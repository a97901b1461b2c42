// The schedule as cards and as text, one list of steps behind both; each change is sent, and newer ones win.

import type { Context, Message, Pane } from "../context";
import { debounce, h, reveal, ticked } from "../dom";
import { type EditAction, type Edits, answered, asked, change, started, wire } from "../edits";
import { compareStops, countText, lastOf } from "../linked";
import { bringUp, definePane } from "../pane";
import { type Doc, type EditError, type Parameter, type StepEdit, callText, isRemark } from "../record";
import { controls } from "../schedule_controls";
import { asLines, sorted } from "../schedule_values";
import { type TextEditor, textEditor } from "../texteditor";

const WAIT = 250;
const TRYING = "Trying which values are legal …";

function schedulePane(ctx: Context): Pane {
  let edits: Edits = started(ctx.payload.editor?.steps ?? []);
  let from: unknown = null;
  let text: TextEditor | null = null;
  /** The question that took the last refused edit back. */
  let back = -1;
  /** The refused edit that was taken back last, which redo asks again; `text` if it was written as text. */
  let takenBack: { steps: StepEdit[]; text: string | null } | null = null;
  /** The text that was asked last; null if cards were. */
  let written: string | null = null;
  /** The error that was brought into view last. */
  let shownError: EditError | null = null;
  const open = new Set<number>();
  /** Controls asked for: by step number, for the step list they were asked with. */
  const choices = new Map<string, Parameter[]>();
  const choiceSeq = new Map<number, string>();
  /** What Python says beside the choices: that they are not all, or that it is still trying. */
  const remarks = new Map<string, string>();
  let draft: { index: number; primitive: string; args: Record<string, unknown>; seq: number; parameters: Parameter[] | null; message: string } | null = null;

  const undo = h("button", { type: "button", class: "small", "aria-label": "undo", title: "undo (Ctrl+Z)", onclick: () => ask("undo") }, "↶ Undo");
  const redo = h("button", { type: "button", class: "small", "aria-label": "redo", title: "redo (Ctrl+Shift+Z)", onclick: () => ask("redo") }, "↷ Redo");
  const asCards = h("button", { type: "button", class: "small", onclick: () => ctx.dispatch({ type: "tab", slot: "editor", tab: "cards" }) }, "Cards");
  const asText = h("button", { type: "button", class: "small", onclick: () => ctx.dispatch({ type: "tab", slot: "editor", tab: "text" }) }, "Text");
  const busy = h("span", { class: "busysign", role: "status" });
  const tools = h("span", { class: "tools" }, busy, h("span", { class: "seg", role: "group", "aria-label": "edit as" }, asCards, asText), undo, redo);
  const error = h("div", { class: "error", role: "alert" });
  const list = h("ol", { class: "cards", "aria-label": "steps of the schedule" });
  const textBox = h("div", { class: "textbox" });
  const effect = h("p", { class: "effect", hidden: true });
  const options = h("p", { class: "effect options", hidden: true });
  const el = h("div", { class: "schedule" }, error, effect, options, list, textBox);

  /** The choices are of steps that have changed; answers on their way are, too. */
  function forgetChoices(): void {
    choices.clear();
    choiceSeq.clear();
    remarks.clear();
  }
  const primitives = () => ctx.payload.editor?.primitives ?? [];
  const primitive = (name: string) => primitives().find((p) => p.name === name);

  function ask(kind: "undo" | "redo" | "default_code"): void {
    sendEdit.cancel();
    sendText.cancel();
    const again = kind === "redo" ? takenBack : null;
    takenBack = null;
    if (again) {
      text?.set(again.text ?? asLines(again.steps));
      ctx.announce("the refused edit is asked again");
      if (again.text === null) askSteps(again.steps);
      else askText(again.text);
      forgetChoices();
      cards();
      return;
    }
    if (kind === "undo" && edits.error) {
      takenBack = { steps: edits.steps, text: written };
      // A refused edit changed nothing behind the page: taking it back is showing the last good steps again.
      edits = started(ctx.payload.editor?.steps ?? []);
      forgetChoices();
      cards();
      text?.set(asLines(edits.steps));
      ctx.announce("the refused edit was undone");
      back = ctx.send({ kind: "edit", steps: wire(edits.steps) });
      edits = asked(edits, back);
      marks();
      return;
    }
    edits = asked(edits, ctx.send({ kind }));
    marks();
  }
  function askSteps(steps: StepEdit[]): void {
    written = null;
    edits = asked({ ...edits, error: null }, ctx.send({ kind: "edit", steps: wire(steps) }), steps);
    marks();
  }
  function askText(value: string): void {
    written = value;
    edits = asked({ ...edits, error: null }, ctx.send({ kind: "edit_text", text: value }));
    marks();
  }
  const sendEdit = debounce(() => askSteps(edits.steps), WAIT);
  const sendText = debounce(askText, WAIT);

  function act(action: EditAction, redraw: boolean): void {
    const steps = change(edits.steps, action);
    if (steps === edits.steps) return;
    // What was asked before is superseded at once, though the question itself waits a moment.
    edits = { ...edits, steps, seq: -1, busy: true, error: null };
    takenBack = null;
    if (action.type !== "set") {
      forgetChoices();
      const was = [...open];
      open.clear();
      for (const n of was) {
        if (action.type === "insert") open.add(n >= action.index ? n + 1 : n);
        else if (action.type === "remove" && n !== action.index) open.add(n > action.index ? n - 1 : n);
        else if (action.type === "move") open.add(n === action.from ? action.to : n > action.from && n <= action.to ? n - 1 : n < action.from && n >= action.to ? n + 1 : n);
      }
    }
    sendEdit();
    if (redraw) cards();
    marks();
  }

  function askChoices(index: number, name: string): number {
    const seq = ctx.send({ kind: "choices", steps: wire(edits.steps), index, primitive: name });
    return seq;
  }

  function card(step: StepEdit, n: number): HTMLElement {
    const id = primitive(step.primitive);
    const last = edits.steps.length - 1;
    const call = h(isRemark(step) ? "span" : "code", { class: isRemark(step) ? "says remark" : "says" }, callText(step.primitive, step.arguments));
    const mini = (label: string, name: string, off: boolean, f: () => void) => h("button", { type: "button", class: "mini", title: name, "aria-label": `${name}: step ${n + 1}, ${step.primitive}`, disabled: off, onclick: f }, label);
    const holder = h("div", { class: "unfolded" });
    const toggle = h("button", { type: "button", class: "call", "data-f": `call ${n}`, "aria-expanded": String(open.has(n)), onclick: () => { open.has(n) ? open.delete(n) : open.add(n); unfold(); toggle.setAttribute("aria-expanded", String(open.has(n))); } }, h("i", {}, String(n + 1)), call, id?.ours && !isRemark(step) ? h("span", { class: "chip tiny", title: "a primitive of this compiler; the others are those of TVM" }, "not in TVM") : null);
    const li = h(
      "li",
      { class: "card", draggable: "true", "data-n": n },
      h("div", { class: "line" }, h("span", { class: "grip", "aria-hidden": "true" }, "⠿"), toggle, mini("↑", "move up", n === 0, () => move(n, n - 1)), mini("↓", "move down", n === last, () => move(n, n + 1)), mini("+", "insert a step after", false, () => startDraft(n + 1)), mini("✕", "remove", false, () => act({ type: "remove", index: n }, true))),
      holder,
      h("div", { class: "cardbad" }),
    );
    function unfold(): void {
      holder.replaceChildren();
      if (!open.has(n)) return;
      const key = `${n}|${step.primitive}`;
      const legal = choices.get(key);
      if (!legal && ![...choiceSeq.values()].includes(key)) choiceSeq.set(askChoices(n, step.primitive), key);
      holder.append(
        id?.summary ? h("p", { class: "what" }, ...ticked(id.summary, "code")) : "",
        remarks.has(key) ? h("p", { class: "what" }, remarks.get(key)!) : "",
        controls(legal?.length ? legal : (id?.parameters ?? []), id?.parameters ?? [], edits.steps[n]?.arguments ?? step.arguments, step.primitive, (name, v) => {
          act({ type: "set", index: n, name, value: v }, false);
          list.querySelector(`[data-n="${n}"] .says`)!.textContent = callText(step.primitive, edits.steps[n]!.arguments);
        }),
      );
    }
    unfold();
    li.addEventListener("dragstart", (e) => {
      if ((e.target as Element) !== li) return;
      e.dataTransfer?.setData("text/x-neptune-step", String(n));
      if (e.dataTransfer) e.dataTransfer.effectAllowed = "move";
      dragged = n;
    });
    li.addEventListener("dragover", (e) => { if (dragged !== null && dragged !== n) { e.preventDefault(); li.classList.add(dragged < n ? "dropafter" : "dropbefore"); } });
    li.addEventListener("dragleave", () => li.classList.remove("dropafter", "dropbefore"));
    li.addEventListener("dragend", () => (dragged = null));
    li.addEventListener("drop", (e) => { e.preventDefault(); if (dragged !== null) move(dragged, n); dragged = null; });
    return li;
  }
  let dragged: number | null = null;
  function move(a: number, b: number): void {
    act({ type: "move", from: a, to: b }, true);
    ctx.announce(`step ${a + 1} is now step ${b + 1}`);
    (list.querySelector(`[data-n="${b}"] .call`) as HTMLElement | null)?.focus();
  }

  function startDraft(index: number): void {
    draft = { index, primitive: "", args: {}, seq: -1, parameters: null, message: "" };
    cards();
    (list.querySelector(".draft select") as HTMLElement | null)?.focus();
    showDraft();
  }
  const showDraft = () => { const d = list.querySelector(".draft"); if (d) reveal(el, d, 12); };
  function draftCard(): HTMLElement {
    const d = draft!;
    const pick = h("select", { "aria-label": "primitive to insert", onchange: () => { d.primitive = pick.value; d.args = {}; d.parameters = null; if (pick.value) d.seq = askChoices(d.index, pick.value); cards(); (list.querySelector(".draft select") as HTMLElement | null)?.focus(); } },
      h("option", { value: "" }, "choose a primitive to insert"), ...primitives().map((p) => h("option", { value: p.name }, p.ours ? `${p.name} · not in TVM` : p.name)));
    pick.value = d.primitive;
    const known = primitive(d.primitive);
    const parameters = d.parameters ?? known?.parameters ?? [];
    const go = h("button", { type: "button", class: "small p", disabled: !d.primitive, onclick: () => { draft = null; open.add(d.index); act({ type: "insert", index: d.index, step: { primitive: d.primitive, arguments: d.args } }, true); } }, "Insert");
    return h("li", { class: "card draft" }, h("div", { class: "line" }, pick, go, h("button", { type: "button", class: "small", onclick: () => { draft = null; cards(); } }, "Cancel")),
      known ? h("div", { class: "unfolded" }, h("p", { class: "what" }, ...ticked(known.summary, "code")), d.message ? h("p", { class: "what bad" }, `✗ ${d.message}`) : null, controls(parameters, known.parameters, d.args, d.primitive, (name, v) => { v === undefined ? delete d.args[name] : (d.args[name] = v); })) : null);
  }

  function cards(): void {
    const top = el.scrollTop;
    const held = hold(list);
    const items = edits.steps.map(card);
    if (draft) items.splice(Math.min(draft.index, items.length), 0, draftCard());
    const empty = !edits.steps.length && !draft ? [h("li", { class: "note" }, "No steps yet: this is the definition.")] : [];
    const add = draft ? [] : [h("li", { class: "addline" }, h("button", { type: "button", class: "small", onclick: () => startDraft(edits.steps.length) }, "+ Add a step"))];
    list.replaceChildren(...empty, ...items, ...add);
    el.scrollTop = top;
    held(list);
    marks();
  }

  /** Where the error stands, and whether an answer is awaited. */
  function marks(): void {
    const e = edits.error;
    ctx.setEditing({ busy: edits.busy, error: e });
    busy.textContent = edits.busy ? "compiling …" : "";
    tools.classList.toggle("busy", edits.busy);
    undo.disabled = !ctx.live || (!edits.error && ctx.payload.editor?.undo === 0);
    redo.disabled = !ctx.live || Boolean(edits.error) || (!takenBack && ctx.payload.editor?.redo === 0);
    const at = e && typeof e.step === "number" ? e.step : -1;
    const atCard = e !== null && at >= 0 && list.querySelector(`[data-n="${at}"]`) !== null && mode() === "cards";
    error.replaceChildren();
    const marked = text?.mark(e) ?? null;
    const line = mode() === "text" ? marked : null;
    error.hidden = (e === null || atCard) && ctx.live;
    if (!ctx.live) error.append(h("p", {}, h("b", {}, "✗ "), "Python is gone: run the cell again to edit."));
    else if (e && line !== null) error.append(h("p", {}, h("b", {}, "✗ "), `line ${line}: ${e.message} `, h("button", { type: "button", class: "link", onclick: () => text?.reveal(line) }, `show line ${line}`)));
    else if (e && !atCard) error.append(...errorLines(e));
    for (const li of list.querySelectorAll<HTMLElement>(".card[data-n]")) {
      const bad = atCard && li.dataset.n === String(at);
      li.classList.toggle("bad", bad);
      li.querySelector(".cardbad")!.replaceChildren(...(bad ? [h("div", { role: "alert" }, ...errorLines(e!))] : []));
      if (bad && e !== shownError) reveal(el, li, 12);
    }
    shownError = e;
  }
  const errorLines = (e: EditError): Node[] => [h("p", {}, h("b", {}, "✗ "), e.message), ...(e.help ? [h("p", { class: "help" }, h("b", {}, "help: "), e.help)] : [])];
  const mode = () => (ctx.view.panes.editor === "text" ? "text" : "cards");

  function onAnswer(m: Message): void {
    if (m.kind === "choices") {
      const parameters = m.parameters as Parameter[];
      const more = m.more === true;
      if (draft && m.seq === draft.seq && more) {
        draft.message = "";
        draft.seq = askChoices(draft.index, draft.primitive);
      } else if (draft && m.seq === draft.seq) {
        draft.parameters = parameters;
        draft.message = String(m.message ?? "");
        for (const p of parameters) if (p.value !== undefined && p.value !== null && !(p.name in draft.args)) draft.args[p.name] = p.value;
        cards();
        (list.querySelector(".draft .p") as HTMLElement | null)?.focus();
        showDraft();
      }
      const key = choiceSeq.get(m.seq);
      choiceSeq.delete(m.seq);
      if (key) {
        const [at, name] = key.split("|") as [string, string];
        const n = Number(at);
        if (more && edits.steps[n]?.primitive === name && open.has(n)) choiceSeq.set(askChoices(n, name), key);
        else if (!more) choices.set(key, parameters);
        const remark = more ? TRYING : String(m.message ?? "");
        if (more && remarks.get(key) === remark) return;
        remark ? remarks.set(key, remark) : remarks.delete(key);
        renew(n);
      }
      return;
    }
    if (m.kind === "failed" && m.seq === edits.seq) {
      edits = answered(edits, m.seq, null, { message: String(m.message) })!;
      marks();
      return;
    }
    if (m.kind !== "edited" && m.kind !== "refused") return;
    const next = answered(edits, m.seq, null, m.kind === "refused" ? (m.error as EditError) : null);
    if (!next) return;
    edits = next;
    if (m.kind === "edited") {
      forgetChoices();
      ctx.announce("recompiled");
    } else {
      // What mends the step is asked for, as the step is written now.
      forgetChoices();
      effect.hidden = true;
      for (const n of open) renew(n);
      ctx.announce(`refused: ${(m.error as EditError).message}`);
    }
    if (m.payload) ctx.setPayload(m.payload);
    update();
    if (m.kind === "edited") said(m.seq === back);
    marks();
  }
  /** The record before the present one, which may come before the answer to the edit or with it. */
  let docs: [Doc, Doc] = [ctx.doc, ctx.doc];
  let told = ctx.doc;
  /** What the edit did to the code, in a line that leads to the rest; nothing for taking a refused edit back. */
  function said(nothing: boolean): void {
    const [was] = docs;
    const now = ctx.doc;
    effect.hidden = nothing || told === now;
    told = now;
    if (effect.hidden) return;
    // Of a large record the code may still be on its way.
    const kind = was.complete && now.complete ? (["triton", "loops"] as const).find((k) => lastOf(was, k) && lastOf(now, k)) : undefined;
    const what = kind === "triton" ? now.language : "the loop program";
    const count = kind ? countText(compareStops(was, lastOf(was, kind)!, now, lastOf(now, kind)!).counted) : "";
    const show = () => { ctx.dispatch({ type: "tab", slot: "changesFrom", tab: "before" }); ctx.dispatch({ type: "tab", slot: "graph", tab: "changes" }); };
    const change = !kind ? "Recompiled. " : count === "the same" ? `This edit left ${what} as it was. ` : `Lines of ${what}: ${count}. `;
    effect.replaceChildren(change, h("button", { type: "button", class: "link", onclick: show }, "What changed"));
  }
  /** Draws a card again, but for the field that is being typed in. */
  function renew(n: number): void {
    const old = list.querySelector(`[data-n="${n}"]`);
    if (!old || !edits.steps[n]) return;
    const fresh = card(edits.steps[n]!, n);
    const field = active();
    if (typing(field) && old.contains(field)) {
      const [now, next] = [old, fresh].map((c) => [...(c.querySelector(".controls")?.children ?? [])]) as [Element[], Element[]];
      if (now.length === next.length) now.forEach((control, k) => { if (!control.contains(field)) control.replaceWith(next[k]!); });
      return;
    }
    const held = hold(old);
    old.replaceWith(fresh);
    held(fresh);
    marks();
  }
  /** Remembers what has the focus in `box`; what it returns gives the focus back to its successor. */
  function hold(box: Element): (to: Element) => void {
    const now = active();
    const name = now && box.contains(now) ? (["data-f", "aria-label"].find((a) => now.hasAttribute(a)) ?? null) : null;
    const value = name && now!.getAttribute(name);
    return (to) => { if (name) to.querySelector<HTMLElement>(`[${name}="${CSS.escape(value!)}"]`)?.focus(); };
  }
  const typing = (e: Element | null) => e instanceof HTMLInputElement || e instanceof HTMLTextAreaElement;
  const active = () => (el.getRootNode() as Document | ShadowRoot).activeElement;
  ctx.onAnswer(onAnswer);

  el.addEventListener("keydown", (e) => {
    if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "z" && !(e.target as Element).closest(".cm-editor")) {
      e.preventDefault();
      e.stopPropagation();
      ask(e.shiftKey ? "redo" : "undo");
    }
  });

  function update(): void {
    const editor = ctx.payload.editor;
    if (!editor) return;
    if (docs[1] !== ctx.doc) docs = [docs[1], ctx.doc];
    options.hidden = !editor.code;
    options.replaceChildren("Compiled with ", h("code", {}, editor.code ?? ""), ". ", ctx.live ? h("button", { type: "button", class: "link", onclick: () => ask("default_code") }, "Use the default options") : "");
    asCards.setAttribute("aria-pressed", String(mode() === "cards"));
    asText.setAttribute("aria-pressed", String(mode() === "text"));
    list.hidden = mode() !== "cards";
    textBox.hidden = mode() !== "text";
    list.inert = textBox.inert = !ctx.live;
    if (!ctx.live && edits.busy) edits = { ...edits, busy: false };
    text?.attached();
    // A new payload brings its own steps, unless something newer is on its way or a refused edit waits to be mended.
    if (from !== editor && !(edits.busy || edits.error)) {
      from = editor;
      const same = sorted(editor.steps) === sorted(edits.steps);
      edits = { ...edits, steps: editor.steps };
      if (!same || !list.childNodes.length) cards();
      else for (const n of open) if (edits.steps[n]) choiceSeq.set(askChoices(n, edits.steps[n]!.primitive), `${n}|${edits.steps[n]!.primitive}`);
      if (text && !text.focused()) text.set(asLines(edits.steps));
    }
    if (mode() === "text") {
      if (!text) {
        text = textEditor(textBox, asLines(edits.steps), (value) => {
          edits = { ...edits, seq: -1, busy: true, error: null };
          takenBack = null;
          marks();
          sendText(value);
        });
        text.mark(edits.error);
      }
    } else if (text && !text.focused()) text.set(asLines(edits.steps));
    marks();
  }

  return { el, tools, update, destroy: () => (sendEdit.cancel(), sendText.cancel(), text?.destroy()) };
}

export const pane = definePane({
  id: "schedule",
  title: "Schedule",
  help: "The schedule editor: steps as cards or as text, recompiled after each edit.",
  place: { tabOf: "graph" },
  order: 20,
  make: schedulePane,
  available: (ctx) => ctx.payload.editor !== null,
  roomy: true,
  behind: true,
  button: { label: "Edit schedule", title: "edit the schedule (E)" },
  style: ".nx .schedule .effect { padding: 6px 14px; font-size: 12.5px; border-bottom: 1px solid var(--line); background: var(--soft); }",
  keys: [
    { keys: ["E"], text: "schedule", explained: "the schedule editor", order: 50, press: { e: (ctx) => { if (ctx.payload.editor) bringUp(ctx, pane); } } },
    { keys: ["Ctrl Z"], text: "undo, in the schedule editor; with Shift, redo", order: 50, more: true },
  ],
});
