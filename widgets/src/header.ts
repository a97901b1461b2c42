// The line on top: what is shown, whether it is right, and what can be done; the footer with keys and versions; the help.

import type { Context } from "./context";
import { copyText } from "./copy";
import { download, h, ticked } from "./dom";
import { extents, sampled } from "./extents";
import { KEYS, MORE } from "./keys";
import { type Key, bringUp, isUp } from "./pane";
import { pane as CODE } from "./panes/code";
import { pane as OPERATOR } from "./panes/operator";
import { LARGE, PANES, PLACES } from "./registry";
import { status } from "./status";
import { viewFile, viewIn } from "./view_file";

export interface Bar {
  el: HTMLElement;
  update(): void;
  close(): boolean;
}

export function header(ctx: Context, help: () => void): Bar {
  const name = h("b", { class: "name" });
  const shape = h("button", { type: "button", class: "chip", onclick: () => bringUp(ctx, OPERATOR) });
  const check = h("span", { class: "chip check", role: "status" });
  // Jupyter's kernel is another thing. The reason is in the pane that a press shows, since only a pointer sees a title.
  const noKernel = h("button", { type: "button", class: "chip whole bad", onclick: () => bringUp(ctx, CODE) }, "✗ makes no kernel yet");
  const device = h("span", { class: "chip" });
  const notice = h("div", { class: "notice", role: "alert", hidden: true });
  /** An error that belongs to no pane: shown until it is closed. */
  const tell = (text: string) => {
    notice.replaceChildren(h("span", {}, `✗ ${text}`), h("button", { type: "button", class: "mini", "aria-label": "close this message", onclick: () => (notice.hidden = true) }, "✕"));
    notice.hidden = false;
  };
  const button = (text: string, title: string, f: () => void, extra = "") => h("button", { type: "button", class: extra, title, onclick: f }, text);
  const compare = button("Compare", "compare any two phases (D)", () => ctx.dispatch(ctx.view.compare ? { type: "compareOff" } : { type: "compare" }));
  const shows = PANES.flatMap((kind) => (kind.button ? [{ kind, el: button(kind.button.label, kind.button.title, () => bringUp(ctx, kind)) }] : []));
  const save = button("Save view", "download what is shown now, as JSON", () => download(`${ctx.doc.trace.operator.name}-view.json`, viewFile(ctx.view), "application/json"));
  const file = h("input", { type: "file", accept: "application/json,.json", class: "vh", tabindex: -1, "aria-label": "view to open", onchange: () => void open() });
  const openView = button("Open view", "open a saved view", () => file.click());
  const exported = button("Export", "one page with everything, as a file", () => exportPage(), "p");
  const question = button("?", "keys and help", help, "round");
  question.setAttribute("aria-label", "help");

  const toggled = (slot: string) => ctx.dispatch(ctx.view.hidden.includes(slot) ? { type: "show", slot } : { type: "hide", slot, large: LARGE });
  const boxes = new Map(PLACES.map(({ id }) => [id, h("input", { type: "checkbox", onchange: () => (toggled(id), sync()) })]));
  const sync = () => { for (const [s, b] of boxes) b.checked = !ctx.view.hidden.includes(s); };
  const shown = h("div", { role: "group", "aria-label": "panes shown" }, ...PLACES.map((kind) => h("label", { title: kind.help }, boxes.get(kind.id)!, ` ${kind.title}`)));
  const list = h("div", { class: "menu" }, shown, save, openView, file);
  list.hidden = true;
  const panes = button("View", "show and hide panes; save what is shown, and open it again", () => toggle(list.hidden === true));
  panes.setAttribute("aria-expanded", "false");
  const toggle = (on: boolean) => {
    list.hidden = !on;
    panes.setAttribute("aria-expanded", String(on));
  };
  const holder = h("span", { class: "holder" }, panes, list);
  holder.addEventListener("focusout", (e) => { if (e.relatedTarget && !holder.contains(e.relatedTarget as Node)) toggle(false); });
  ctx.root.addEventListener("pointerdown", (e) => { if (!list.hidden && !e.composedPath().includes(holder)) toggle(false); });

  async function open(): Promise<void> {
    const chosen = file.files?.[0];
    file.value = "";
    if (!chosen) return;
    notice.hidden = true;
    try {
      ctx.dispatch({ type: "load", view: viewIn(await chosen.text()), panes: PLACES.map((kind) => kind.id) });
      ctx.announce("view opened");
    } catch (error) {
      tell(`${chosen.name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  const again = button("Recompile", "make the operator and the steps of this saved record again, to edit, play, count and check it", () => {
    notice.hidden = true;
    remaking = ctx.send({ kind: "recompile" });
    if (remaking) again.textContent = "Recompiling …";
  }, "p");
  let remaking = 0;
  ctx.onAnswer((m) => {
    if (m.seq !== remaking || !remaking) return;
    remaking = 0;
    again.textContent = "Recompile";
    if (m.payload) ctx.setPayload(m.payload);
    if (m.kind !== "recompiled") tell(String(m.message ?? "it could not be made again"));
    else if (m.note) tell(String(m.note));
    ctx.announce(m.kind === "recompiled" ? "recompiled" : "not recompiled");
  });
  let exporting = 0;
  function exportPage(): void {
    exporting = ctx.send({ kind: "export", view: ctx.view });
    exported.textContent = "Exporting …";
  }
  ctx.onAnswer((m) => {
    if (m.seq !== exporting || !exporting) return;
    exporting = 0;
    exported.textContent = "Export";
    if (m.kind === "exported") download(`${ctx.doc.trace.operator.name}.html`, String(m.html), "text/html");
    if (m.kind === "exported") ctx.announce("exported");
    else tell(String(m.message ?? "the export failed"));
  });

  const el = h(
    "header",
    { role: "group", "aria-label": "operator" },
    name,
    shape,
    check,
    noKernel,
    device,
    h("span", { class: "do", role: "group", "aria-label": "actions" }, compare, ...shows.map(({ el }) => el), again, holder, exported, question),
    notice,
  );
  return {
    el,
    close: () => {
      const was = !list.hidden;
      toggle(false);
      if (was) panes.focus();
      return was;
    },
    update() {
      const { doc, payload, live, view } = ctx;
      const { operator } = doc.trace;
      name.textContent = operator.name;
      name.title = operator.title;
      const first = operator.inputs[0];
      shape.hidden = !first;
      if (first) shape.textContent = `${extents(first).join(" × ") || "scalar"} · ${first.dtype}`;
      const sample = sampled(operator);
      shape.title = [...operator.inputs, ...operator.outputs].map((t) => `${t.name}: ${extents(t).join(" × ")} ${t.dtype}`).join("\n") + (sample && `\nOne kernel for every value; loop programs and counts are for ${sample}`) + "\nThe operator's sizes and options (O)";
      const said = status(payload, live, ctx.connection, ctx.editing);
      check.className = `chip check ${said.css}`;
      check.textContent = said.text;
      check.title = said.title;
      const wrong = payload.kernel_error;
      noKernel.hidden = !wrong;
      noKernel.title = wrong ? `no kernel: ${wrong.message}${wrong.help ? `\nhelp: ${wrong.help}` : ""}` : "";
      device.textContent = payload.device;
      device.hidden = !payload.device;
      compare.setAttribute("aria-pressed", String(view.compare !== null));
      for (const { kind, el } of shows) {
        el.hidden = !(kind.available?.(ctx) ?? true);
        el.setAttribute("aria-pressed", String(isUp(view, kind)));
      }
      exported.hidden = !live;
      again.hidden = !payload.again || live || ctx.connection === "lost";
      sync();
    },
  };
}

const keyEl = ({ keys, text }: Key) => h("span", {}, ...keys.flatMap((k) => [h("kbd", {}, k), " "]), text);

export function footer(ctx: Context): { el: HTMLElement; update(): void } {
  const versions = h("span", { class: "versions" });
  const el = h("footer", { role: "group", "aria-label": "keys and versions" }, ...KEYS.map(keyEl), h("span", { class: "sp" }), versions);
  return {
    el,
    update() {
      const v = ctx.doc.trace.versions;
      const main = ["apache-tvm", "triton", "sympy"].filter((k) => v[k]);
      versions.textContent = main.map((k) => `${k} ${v[k]}`).join(" · ");
      versions.title = Object.entries(v).map(([k, x]) => `${k} ${x}`).join("\n");
    },
  };
}

export function helpOverlay(ctx: Context): { el: HTMLElement; toggle(on?: boolean): boolean } {
  const facts = h("div", { class: "facts" });
  const close = h("button", { type: "button", class: "small end", onclick: () => toggle(false) }, "Close");
  const box = h(
    "div",
    { class: "help", role: "dialog", "aria-label": "help" },
    h("div", { class: "helphead" }, h("b", {}, "Keys"), close),
    h("div", { class: "keys" }, ...[...KEYS, ...MORE].map(({ keys, text, explained }) => h("p", {}, h("span", {}, ...keys.flatMap((x) => [h("kbd", {}, x), " "])), h("span", {}, ...ticked(explained ?? text, "kbd"))))),
    h("b", {}, "Signs"),
    h("p", { class: "signs" }, "+ added  ~ changed  − removed  ↕ moved  ! read too early, or wrong on purpose  ↻ repaired  ✓ holds  ✗ refused, not proved, or wrong  ≠ what it should be"),
    facts,
  );
  box.hidden = true;
  let back: HTMLElement | null = null;
  function toggle(on = box.hidden === true): boolean {
    const was = !box.hidden;
    if (on === was) return was;
    box.hidden = !on;
    if (on) {
      back = (ctx.root.getRootNode() as Document | ShadowRoot).activeElement as HTMLElement | null;
      const { command, versions } = ctx.doc.trace;
      const { python } = ctx.payload;
      const code = [command, python].filter(Boolean).join("\n");
      const copy = h("button", { type: "button", class: "small", onclick: () => void copyText(ctx, code).then(() => (copy.textContent = "Copied")) }, "Copy");
      facts.replaceChildren(
        h("b", {}, "Made by"),
        h("p", {}, Object.entries(versions).map(([k, v]) => `${k} ${v}`).join(" · ")),
        ...(code ? [h("div", { class: "helphead" }, h("b", {}, "To make it again"), copy), h("pre", { class: "repeat", tabindex: 0, "aria-label": "code that makes it again" }, code.trim())] : []),
      );
      close.focus();
    } else back?.focus();
    return was;
  }
  return { el: box, toggle };
}
