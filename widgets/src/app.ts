// The explorer: one view, every pane a function of it and of the record.

import { type Watch, watchConnection } from "./connection";
import type { Context, Message } from "./context";
import { debounce, h } from "./dom";
import { EXPLAIN_STYLE, explainPanel } from "./explain_panel";
import { footer, header, helpOverlay } from "./header";
import { frame } from "./layout_panes";
import { hideStatic } from "./hide_static";
import { indexLinks, relate } from "./links";
import { slides, staysHere, takesText } from "./own_keys";
import { type Head, Parts, inParts, parsedParts } from "./parts";
import { PRINT_STYLE, onPaper } from "./printed";
import { type Doc, type Payload, readSource, readTrace, stopName, wrongness } from "./record";
import { KEYS, PANES, PLACES, STYLE, makePanes } from "./registry";
import { type Action, EMPTY, type View, readView, reduce, stopOf } from "./state";
import { type Address, address } from "./share";
import { AT_REST } from "./status";
import { STORY_STYLE, storyStrip } from "./story_strip";
import style from "./style.css";
import { TagStore } from "./tagstore";
import { viewHistory } from "./view_history";

/** What of anywidget's model is used. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(name: string, f: (...args: never[]) => void): void;
  off(name: string, f?: (...args: never[]) => void): void;
}

/** Numbers of messages: one row a model, since several views may share one. */
const counters = new WeakMap<object, { n: number }>();
let uids = 0;
const NAMES = PLACES.map((kind) => kind.id);

export function parsePayload(payload: unknown): Payload {
  const data = (typeof payload === "string" ? JSON.parse(payload) : payload) as Payload | null;
  if (typeof data !== "object" || data === null || !("trace" in data)) throw new Error("this payload has no record");
  return { ...data, check: data.check ?? null, tags: data.tags ?? null, tags_note: data.tags_note ?? "", editor: data.editor ?? null, device: data.device ?? "", python: data.python ?? "", live: data.live ?? false, panes: data.panes ?? {} };
}

export function explorer(el: HTMLElement, given: unknown, model: Model | null, firstView: unknown): () => void {
  const root = h("div", { class: "nx", tabindex: -1, role: "region", "aria-label": "compiler explorer" });
  const payload = parsePayload(given);
  let parts = inParts(payload.trace) ? new Parts(payload.trace, null) : null;
  const doc = parts ? readSource(parts) : readTrace(payload.trace);
  // A page of its own has its address; a notebook's belongs to the notebook.
  const shared: Address | null = model === null || model.get("page") === true ? address((change) => setView(change(ctx.view, ctx.doc), "")) : null;
  const chosen = readView(firstView, EMPTY, NAMES);
  const view = shared?.open(chosen, doc) ?? { ...chosen };
  const stop = stopOf(view, doc);
  view.step = stop.step;
  view.phase = stop.phase;
  const index = indexLinks(doc);
  const listeners: ((m: Message) => void)[] = [];
  const polite = h("div", { class: "vh", role: "status", "aria-live": "polite" });
  const left = viewHistory();
  let lastText = typeof given === "string" ? given : "";
  let drawing = false;
  let again = false;
  let python: Watch | null = null;
  const connected = () => python !== null && python.state() !== "lost";

  const ctx: Context = {
    payload,
    doc,
    index,
    view,
    stop,
    related: relate(doc, index, view.selection, stop),
    source: "",
    uid: `nx${++uids}`,
    live: payload.live && model !== null,
    connection: "alive",
    editing: AT_REST,
    tags: undefined as unknown as TagStore,
    root,
    dispatch(action: Action, source = "") {
      const before = ctx.view;
      const next = reduce(before, action, ctx.doc);
      if (next === before) return;
      left.left(before, next, performance.now());
      setView(next, source);
    },
    past: {
      undoable: left.undoable,
      redoable: left.redoable,
      undo: () => revisit(left.undo(ctx.view), "back to what was shown before"),
      redo: () => revisit(left.redo(ctx.view), "forward again"),
    },
    send(message) {
      if (!model || !python || !(ctx.live || (message.kind === "recompile" && ctx.payload.again && connected()))) return 0;
      const counter = counters.get(model) ?? { n: 0 };
      counters.set(model, counter);
      const seq = ++counter.n;
      return python.send({ ...message, seq }) ? seq : 0;
    },
    setEditing(now) {
      if (now.busy === ctx.editing.busy && now.error === ctx.editing.error) return;
      ctx.editing = now;
      head.update();
    },
    onAnswer: (f) => void listeners.push(f),
    setPayload,
    announce(text) {
      polite.textContent = "";
      polite.textContent = text;
    },
    refresh: () => update(),
  };
  ctx.tags = new TagStore(ctx);

  function revisit(next: View | null, said: string): void {
    if (!next) return ctx.announce("nothing was shown before");
    setView(next, "");
    ctx.announce(said);
  }
  function setView(next: View, source: string): void {
    const before = ctx.view;
    ctx.view = next;
    ctx.source = source;
    place(before);
    update();
    sync();
    shared?.follow(next, ctx.doc);
  }
  /** The stop and what is lit, from the view. */
  function place(before: View): void {
    const was = ctx.stop;
    ctx.stop = stopOf(ctx.view, ctx.doc);
    // The error of a refused step stands at its block, in every pane.
    const node = was !== ctx.stop && ctx.stop.error && ctx.editing.error?.node;
    if (node) ctx.view = { ...ctx.view, selection: [`graph:${node.replace(/^\w+:/, "")}`] };
    root.classList.toggle("refusal", ctx.stop.error !== null);
    if (was !== ctx.stop || before.selection !== ctx.view.selection) ctx.related = relate(ctx.doc, ctx.index, ctx.view.selection, ctx.stop);
    if (was !== ctx.stop) {
      if (ctx.source === "") ctx.source = "step";
      const s = ctx.stop;
      const wrong = wrongness(s);
      ctx.announce(`${stopName(s)}${wrong && `, ${wrong}`}${s.error ? ", refused" : ""}${s.note ? `. ${s.note}` : ""}`);
    }
  }
  const sync = debounce(() => {
    model?.set("view", ctx.view);
    model?.save_changes();
  }, 200);

  function setPayload(next: unknown): void {
    if (typeof next === "string") {
      if (next === lastText) return;
      lastText = next;
    }
    const fresh = parsePayload(next);
    parts = inParts(fresh.trace) ? new Parts(fresh.trace, null) : null;
    const record = parts ? readSource(parts) : readTrace(fresh.trace);
    ctx.payload = fresh;
    ctx.live = fresh.live && connected();
    ctx.tags.reset();
    setDoc(record);
    askRest();
    askCheck();
  }

  function setDoc(record: Doc): void {
    const before = ctx.stop;
    ctx.doc = record;
    ctx.index = indexLinks(record);
    if (!record.byKey.has(before.key)) {
      const loops = record.stops.filter((s) => s.kind === "loops");
      const kernel = before.kind !== "loops" && record.stops.find((s) => s.kind === before.kind);
      const to = kernel || loops.find((s) => s.step === before.step) || loops[loops.length - 1]!;
      ctx.view = { ...ctx.view, step: to.step, phase: to.phase };
    }
    ctx.stop = stopOf(ctx.view, record);
    ctx.related = relate(record, ctx.index, ctx.view.selection, ctx.stop);
    ctx.source = "step";
    update();
    sync();
  }

  /** Asks for the other parts of a record that is sent in parts, unless they are here. */
  function askRest(): void {
    if (!parts || parts.complete || takeRest()) return;
    try {
      model?.send({ kind: "rest", seq: -3, name: (ctx.payload.trace as Head).parts.name });
    } catch {
      // Python is gone: what is here stays readable.
    }
  }
  /** The other parts, if they are those of the record that is shown. */
  function takeRest(): boolean {
    const rest = model?.get("rest") as { name?: unknown; parts?: unknown } | undefined;
    const head = ctx.payload.trace;
    if (!inParts(head) || rest?.name !== head.parts.name || !Array.isArray(rest.parts)) return false;
    void parsedParts(rest.parts as string[]).then((made) => {
      if (ctx.payload.trace !== head || !parts || parts.complete) return;
      parts = new Parts(head, made, parts);
      setDoc(readSource(parts));
    });
    return true;
  }

  let checking = 0;
  function askCheck(): void {
    if (ctx.live && ctx.payload.check === null) checking = ctx.send({ kind: "check" });
  }

  const style_ = h("style", {}, style, STORY_STYLE, EXPLAIN_STYLE, STYLE, PRINT_STYLE);
  const help = helpOverlay(ctx);
  const head = header(ctx, () => void help.toggle());
  const { panes, places } = makePanes(ctx);
  const body = frame(ctx, places);
  const story = storyStrip(ctx);
  const explained = explainPanel(ctx);
  const foot = footer(ctx);
  root.append(head.el, story.el, body.el, foot.el, explained.el, help.el, polite);

  function update(): void {
    // A pane that asks for more while it draws is served after.
    if (drawing) {
      again = true;
      return;
    }
    drawing = true;
    const focused = focusedIn();
    const pane = focused?.closest("section") ?? null;
    try {
      do {
        again = false;
        head.update();
        story.update();
        for (const kind of PLACES) places.get(kind.id)!.el.classList.toggle("slim", kind.empty?.(ctx) ?? false);
        body.update();
        for (const kind of PLACES) if (kind.behind || !places.get(kind.id)!.el.hidden) places.get(kind.id)!.update();
        foot.update();
        explained.update();
      } while (again);
    } finally {
      drawing = false; // one pane's error must not stop every later update
    }
    const now = focusedIn(); // (a pane that draws again may have given it to what stands there now)
    if (focused && (!now || cannotFocus(now))) keepFocus(pane);
  }
  function focusedIn(): Element | null {
    const { activeElement } = root.getRootNode() as Document | ShadowRoot;
    return root.contains(activeElement) ? activeElement : null;
  }
  /** What has the focus is gone, or is about to lose it: the next key is still meant for this widget, not for the notebook
   * around it. */
  function keepFocus(pane: Element | null): void {
    ([...(pane?.querySelectorAll<HTMLElement>("[tabindex='0']") ?? [])].find((el) => el.offsetParent) ?? root).focus({ preventScroll: true });
  }
  /** Whether the browser takes the focus from it as soon as it draws: a button that was disabled or hidden by its press. */
  function cannotFocus(el: Element): boolean {
    return el !== root && ((el as HTMLButtonElement).disabled || (el instanceof HTMLElement && !el.offsetParent));
  }
  root.addEventListener("click", () => {
    const focused = focusedIn();
    if (focused && cannotFocus(focused)) keepFocus(focused.closest("section"));
  });

  const actions = new Map<string, () => void>([
    ["?", () => void help.toggle()],
    ["s", () => story.toggle()],
    ["[", () => story.move(-1)],
    ["]", () => story.move(1)],
    ["x", () => explained.open()],
    ["z", () => ctx.past.undo()],
    ["y", () => ctx.past.redo()],
    ["Escape", () => {
      if (explained.close() || help.toggle(false) || head.close()) return;
      if (ctx.view.selection.length) ctx.dispatch({ type: "clear" });
      else ctx.dispatch({ type: "compareOff" });
    }],
    ...KEYS.flatMap(({ kind, key }) => Object.entries(key.press ?? {}).map(([name, press]): [string, () => void] => [name, () => press(ctx, panes.get(kind.id)!)])),
  ]);
  root.addEventListener("keydown", (e) => {
    if (staysHere(e)) e.stopPropagation();
    if (takesText(e.composedPath()[0] as Element)) {
      if (e.key === "Escape") root.focus();
      return;
    }
    if (e.ctrlKey || e.metaKey || e.altKey || slides(e.composedPath()[0] as Element, e.key)) return;
    const act = actions.get(e.key.length === 1 ? e.key.toLowerCase() : e.key);
    if (!act) return;
    e.preventDefault();
    act();
  });

  // Themes: JupyterLab, VS Code and marimo each say it their way; else the system does.
  const system = matchMedia("(prefers-color-scheme: dark)");
  function theme(): void {
    const b = document.body;
    const all = `${b.className} ${document.documentElement.className}`;
    const said = b.dataset.jpThemeLight ?? b.dataset.theme ?? document.documentElement.dataset.theme;
    const dark =
      said === "false" || said === "dark" ? true : said === "true" || said === "light" ? false
      : /\bvscode-(dark|high-contrast)\b/.test(all) && !/high-contrast-light/.test(all) ? true
      : /\bvscode-light\b/.test(all) ? false
      : /(^|\s)dark(\s|$)/.test(all) ? true
      : system.matches;
    root.classList.toggle("dark", dark);
  }
  theme();
  system.addEventListener("change", theme);
  const themes = new MutationObserver(theme);
  for (const t of [document.body, document.documentElement]) themes.observe(t, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-theme"] });

  const onMessage = (m: Message) => {
    if (!m || typeof m !== "object") return;
    python?.heard(m.seq);
    if (m.kind === "checked" || (m.kind === "failed" && m.seq === checking)) {
      if (m.seq === checking) {
        ctx.payload = { ...ctx.payload, check: m.kind === "checked" ? { ok: m.ok as boolean | null, text: String(m.text) } : { ok: null, text: String(m.message) } };
        head.update();
      }
      return;
    }
    if (ctx.tags.answer(m)) return update();
    for (const f of listeners) f(m);
  };
  const onPayload = () => setPayload(model!.get("payload"));
  const onRest = () => void (parts && !parts.complete && takeRest());
  const onView = () => {
    const theirs = model!.get("view");
    if (JSON.stringify(theirs) === JSON.stringify(ctx.view)) return;
    const next = readView(theirs, ctx.view, NAMES);
    if (JSON.stringify(next) !== JSON.stringify(ctx.view)) setView(next, "");
  };
  model?.on("msg:custom", onMessage as never);
  model?.on("change:payload", onPayload as never);
  model?.on("change:rest", onRest as never);
  model?.on("change:view", onView as never);

  el.append(style_, root);
  if (model)
    python = watchConnection(model, () => {
      ctx.connection = python!.state();
      ctx.live = ctx.payload.live && connected();
      if (ctx.connection === "lost") ctx.announce("Python is gone: run the cell again to edit");
      update();
    });
  update();
  askRest();
  askCheck();
  const restore = hideStatic(root);
  const unprint = shared ? onPaper(ctx, theme) : () => {};
  // Nothing else is on a page of its own that keys could be meant for.
  if (shared && document.activeElement === document.body && document.querySelectorAll(".nx").length === 1) root.focus({ preventScroll: true });

  return () => {
    sync.flush();
    shared?.destroy();
    model?.off("msg:custom", onMessage as never);
    model?.off("change:payload", onPayload as never);
    model?.off("change:rest", onRest as never);
    model?.off("change:view", onView as never);
    system.removeEventListener("change", theme);
    themes.disconnect();
    restore();
    unprint();
    body.destroy();
    python?.destroy();
    explained.destroy();
    for (const kind of PANES) panes.get(kind.id)!.destroy?.();
    style_.remove();
    root.remove();
  };
}
