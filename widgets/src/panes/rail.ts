// Steps and their phases, HTile's passes and Triton; the buttons that walk through them, and the search.

import type { Context, Pane } from "../context";
import { debounce, h, reveal } from "../dom";
import { definePane } from "../pane";
import type { Doc, Stop } from "../record";
import { type Match, search } from "../search";
import { shownStops, stopOf } from "../state";

interface Rail extends Pane {
  focusSearch(): void;
}

function railPane(ctx: Context): Rail {
  const step = (by: "first" | "back" | "next" | "last", label: string, text: string) =>
    h("button", { type: "button", class: "small", "aria-label": `${label} phase`, title: `${label} phase`, onclick: () => ctx.dispatch({ type: "move", by }, "step") }, text);
  const [first, back, next, last] = [step("first", "first", "⇤"), step("back", "previous", "←"), step("next", "next", "→"), step("last", "last", "⇥")];
  const box = h("input", { type: "search", placeholder: "Search all stages", "aria-label": "search all stages", oninput: () => typed(), onkeydown: (e) => keys(e as KeyboardEvent) });
  const count = h("span", { class: "count", role: "status" });
  const up = h("button", { type: "button", class: "mini", "aria-label": "previous match", title: "previous match", onclick: () => jump(-1) }, "↑");
  const down = h("button", { type: "button", class: "mini", "aria-label": "next match", title: "next match", onclick: () => jump(1) }, "↓");
  const quiet = h("input", { type: "checkbox", onchange: () => ctx.dispatch({ type: "tab", slot: "quiet", tab: quiet.checked ? "hide" : "show" }) });
  const quietText = h("span", {}, "hide steps that change nothing");
  const steps = h("ol", { role: "tree", "aria-label": "steps", tabindex: 0 });
  const kernel = h("ol", { role: "tree", "aria-label": "kernel", tabindex: 0 });
  const kernelHead = h("h2", {}, "Kernel");
  const lists = h("div", { class: "lists" }, h("h2", {}, "Steps"), steps, kernelHead, kernel);
  const results = h("div", { class: "found" }, count, up, down);
  const el = h(
    "nav",
    { class: "rail", "aria-label": "steps and phases" },
    h("div", { class: "search" }, box, results),
    h("div", { class: "walk", role: "group", "aria-label": "step through the phases" }, first, back, next, last),
    lists,
    h("label", { class: "quiet" }, quiet, quietText),
  );

  let matches: Match[] = [];
  let at = -1;
  let searched: { text: string; doc: Doc } | null = null;
  const run = () => {
    const text = ctx.view.search;
    if (searched?.text === text && searched.doc === ctx.doc) return;
    searched = { text, doc: ctx.doc };
    matches = search(ctx.doc, text);
    at = -1;
    say();
  };
  const typed = debounce(() => ctx.dispatch({ type: "search", text: box.value }), 120);
  function say(): void {
    results.hidden = !ctx.view.search.trim();
    count.textContent = matches.length ? `${at >= 0 ? `${at + 1} of ` : ""}${matches.length}${matches.length >= 500 ? "+" : ""} ${at >= 0 ? "" : matches.length === 1 ? "match" : "matches"}`.trim() : "no match";
    up.disabled = down.disabled = !matches.length;
  }
  function jump(by: number): void {
    typed.flush();
    run();
    if (!matches.length) return;
    at = at < 0 ? (by > 0 ? 0 : matches.length - 1) : (at + by + matches.length) % matches.length;
    const m = matches[at]!;
    say();
    ctx.dispatch({ type: "compareOff" });
    if (m.stop) {
      ctx.dispatch({ type: "go", key: m.stop.key }, "search");
      if (m.where !== "derivation") ctx.dispatch({ type: "tab", slot: "program", tab: "loops" });
    } else ctx.dispatch({ type: "tab", slot: "code", tab: "definition" });
    if (m.node && !(ctx.view.selection.length === 1 && ctx.view.selection[0] === m.node)) ctx.dispatch({ type: "select", ids: [m.node] }, "search");
    ctx.announce(`match ${at + 1} of ${matches.length}: ${m.text.trim()}`);
  }
  function keys(e: KeyboardEvent): void {
    if (e.key === "Enter") jump(e.shiftKey ? -1 : 1);
    else if (e.key === "Escape") {
      box.value = "";
      ctx.dispatch({ type: "search", text: "" });
      steps.focus();
    } else return;
    e.preventDefault();
    e.stopPropagation();
  }

  const items = new Map<string, HTMLElement>();
  let drawn = "";
  let drawnDoc: Doc | null = null;
  function item(stop: Stop, level: number, label: Node[], sign: Node | null): HTMLElement {
    const li = h(
      "li",
      { role: "treeitem", "aria-level": level, "aria-selected": "false", id: `${ctx.uid}-r-${stop.key.replace(/[^\w.-]/g, "_")}`, class: level > 1 ? "ph" : "", title: stop.note, onclick: () => ctx.dispatch({ type: "go", key: stop.key }, "step") },
      ...label,
      sign,
    );
    items.set(stop.key, li);
    return li;
  }
  const signEl = (css: string, sign: string, word: string) => h("span", { class: `s ${css}`, title: word }, sign, h("span", { class: "word" }, ` ${word}`));
  const signOf = (s: Stop): Node | null => {
    if (s.error) return signEl("bad", "✗", "refused");
    if (s.wrong && !s.phase.endsWith("repair")) return signEl("bad", "!", "wrong");
    if (s.derivation?.accepted) return signEl("ok", "✓", "proven");
    if (s.derivation) return h("span", { class: "s bad", title: "not proved" }, "✗"); // its title says the words
    if (s.phase === "repaired") return h("span", { class: "s ok", title: "repaired" }, "✓");
    return null;
  };

  function draw(): void {
    items.clear();
    const shown = new Set(shownStops(ctx.view, ctx.doc));
    const out: HTMLElement[] = [];
    for (const entry of ctx.doc.steps) {
      const here = entry.stops.filter((s) => shown.has(s));
      if (!here.length) continue;
      const label = entry.remark ? h("span", { class: "remark" }, entry.call) : entry.index === 0 ? h("span", {}, entry.call) : h("code", {}, entry.call);
      // The step that stands in a refused one's place has its number.
      const number = h("i", {}, entry.error ? "" : String(entry.index));
      if (entry.stops.length === 1) out.push(item(here[0]!, 1, [number, label], signOf(here[0]!)));
      else {
        out.push(h("li", { role: "treeitem", "aria-level": 1, "aria-selected": "false", "aria-expanded": "true", class: "group", title: entry.call, onclick: () => ctx.dispatch({ type: "go", key: entry.stops[entry.stops.length - 1]!.key }, "step") }, number, label, entry.error ? h("span", { class: "s bad" }, "✗") : null));
        for (const s of here) out.push(item(s, 2, [h("i", {}, s.letter), h("span", { class: "tt" }, s.title)], signOf(s)));
      }
    }
    steps.replaceChildren(...out);
    const rest: HTMLElement[] = [];
    for (const s of ctx.doc.stops) {
      if (s.kind === "loops" || !shown.has(s)) continue;
      if (s.kind === "htile") rest.push(item(s, 1, [h("i", {}), h("span", {}, s.key === "htile.0" ? "HTile IR" : h("span", { class: "pass" }, s.title))], null));
      else rest.push(item(s, 1, [h("i", {}, ""), h("span", {}, s.call)], h("span", { class: "s dim" }, s.title)));
    }
    kernel.replaceChildren(...rest);
    kernel.hidden = kernelHead.hidden = !rest.length;
    const count = ctx.doc.stops.filter((s) => s.quiet).length;
    quiet.parentElement!.hidden = !count;
    quietText.textContent = `hide ${count} without change`;
  }

  for (const tree of [steps, kernel])
    tree.addEventListener("keydown", (e) => {
      const by = ({ ArrowDown: "next", ArrowUp: "back" } as const)[e.key as "ArrowDown" | "ArrowUp"];
      if (!by || e.ctrlKey || e.metaKey || e.altKey) return;
      ctx.dispatch({ type: "move", by }, "step");
      const now = ctx.stop.kind === "loops" ? steps : kernel;
      if (now !== tree) now.focus();
      e.preventDefault();
      e.stopPropagation();
    });

  return {
    el,
    focusSearch: () => (box.focus(), box.select()),
    destroy: () => typed.cancel(),
    update() {
      const { view, doc, stop } = ctx;
      const shown = shownStops(view, doc);
      const key = `${view.panes.quiet}|${view.panes.quiet === "hide" && stop.quiet ? stop.key : ""}`;
      if (key !== drawn || doc !== drawnDoc) {
        draw();
        drawn = key;
        drawnDoc = doc;
      }
      for (const [k, li] of items) {
        const on = k === stop.key;
        if (on !== (li.getAttribute("aria-selected") === "true")) {
          li.setAttribute("aria-selected", String(on));
          li.classList.toggle("on", on);
        }
        if (on) {
          (stop.kind === "loops" ? steps : kernel).setAttribute("aria-activedescendant", li.id);
          (stop.kind === "loops" ? kernel : steps).removeAttribute("aria-activedescendant");
          reveal(lists, li, 40);
        }
      }
      const n = shown.indexOf(stopOf(view, doc));
      first.disabled = back.disabled = n <= 0;
      next.disabled = last.disabled = n >= shown.length - 1;
      quiet.checked = view.panes.quiet === "hide";
      if (box.value !== view.search && (box.getRootNode() as Document | ShadowRoot).activeElement !== box) box.value = view.search;
      run();
      results.hidden = !view.search.trim();
    },
  };
}

const move = (by: "first" | "back" | "next" | "last") => (ctx: Context) => ctx.dispatch({ type: "move", by }, "step");

export const pane = definePane({
  id: "rail",
  title: "Steps",
  help: "The steps of the schedule with their phases, then the HTile passes, then Triton; remarks in italics; ! marks programs that are wrong on purpose.",
  place: { column: "rail", stays: true },
  order: 10,
  make: railPane,
  behind: true,
  keys: [
    { keys: ["←", "→"], text: "phase", explained: "previous phase, next phase", order: 10, press: { ArrowLeft: move("back"), ArrowRight: move("next") } },
    { keys: ["/"], text: "search", explained: "search in every stage", order: 30, press: { "/": (_, rail) => rail.focusSearch() } },
    { keys: ["Home", "End"], text: "first and last phase", order: 10, more: true, press: { Home: move("first"), End: move("last") } },
  ],
});
