// Steps and their phases, HTile's passes and Triton; the buttons that walk through them, and the search.

import type { Context, Pane } from "../context";
import { debounce, h, reveal } from "../dom";
import { definePane } from "../pane";
import { type Entry, type Group, foldedAround, groupsAround, groupsOf } from "../groups";
import type { Doc, StepEntry, Stop } from "../record";
import { type Match, search } from "../search";
import { shownStops, stopOf } from "../state";

interface Rail extends Pane {
  focusSearch(): void;
}

function railPane(ctx: Context): Rail {
  const step = (by: "first" | "back" | "next" | "last", label: string, text: string) =>
    h("button", { type: "button", class: "small", "aria-label": `${label} phase`, title: `${label} phase`, onclick: () => ctx.dispatch({ type: "move", by }, "step") }, text);
  const [first, back, next, last] = [step("first", "first", "⇤"), step("back", "previous", "←"), step("next", "next", "→"), step("last", "last", "⇥")];
  const undo = h("button", { type: "button", class: "small", "aria-label": "back to what was shown before", title: "back to what was shown before (Z)", onclick: () => ctx.past.undo() }, "↶");
  const redo = h("button", { type: "button", class: "small", "aria-label": "forward to what was shown after", title: "forward again (Y)", onclick: () => ctx.past.redo() }, "↷");
  const box = h("input", { type: "search", placeholder: "Search all stages", "aria-label": "search all stages", oninput: () => typed(), onblur: () => typed.flush(), onkeydown: (e) => keys(e as KeyboardEvent) });
  const count = h("span", { class: "count", role: "status" });
  const up = h("button", { type: "button", class: "mini", "aria-label": "previous match", title: "previous match", onclick: () => jump(-1) }, "↑");
  const down = h("button", { type: "button", class: "mini", "aria-label": "next match", title: "next match", onclick: () => jump(1) }, "↓");
  const quiet = h("input", { type: "checkbox", onchange: () => ctx.dispatch({ type: "tab", slot: "quiet", tab: quiet.checked ? "hide" : "show" }) });
  const quietText = h("span", {}, "hide phases that change nothing");
  const steps = h("ol", { role: "tree", "aria-label": "steps", tabindex: 0 });
  const kernel = h("ol", { role: "tree", "aria-label": "kernel", tabindex: 0 });
  const kernelHead = h("h2", {}, "Kernel");
  const lists = h("div", { class: "lists" }, h("h2", {}, "Steps"), steps, kernelHead, kernel);
  const results = h("div", { class: "found" }, count, up, down);
  const el = h(
    "nav",
    { class: "rail", "aria-label": "steps and phases" },
    h("div", { class: "search" }, box, results),
    h("div", { class: "walk", role: "group", "aria-label": "step through the phases" }, first, back, next, last, undo, redo),
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
  /** The line of the folded group that holds a stop. */
  const heads = new Map<string, HTMLElement>();
  function fold(group: Group, on: boolean): void {
    ctx.dispatch({ type: "fold", ids: [group.id], on }, "rail");
    ctx.announce(`${group.title} ${on ? "folded" : "unfolded"}`);
  }
  /** The group of the current stop: a folded one unfolds, else the innermost folds. */
  function foldHere(): void {
    const shut = foldedAround(ctx.doc, ctx.view.folded, ctx.stop);
    const group = shut ?? groupsAround(ctx.doc, ctx.stop)[0];
    if (group) fold(group, !shut);
    else ctx.announce("this step is in no group");
  }
  let drawn = "";
  let drawnDoc: Doc | null = null;
  function item(stop: Stop, level: number, label: Node[], sign: Node | null): HTMLElement {
    const li = h(
      "li",
      { role: "treeitem", "aria-level": level, "aria-selected": "false", id: `${ctx.uid}-r-${stop.key.replace(/[^\w.-]/g, "_")}`, title: stop.note, onclick: () => ctx.dispatch({ type: "go", key: stop.key }, "step") },
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

  /** A call, which a narrow list breaks after the parenthesis or between arguments, not within a name. */
  const callEl = (text: string): HTMLElement => {
    const open = text.indexOf("(") + 1;
    return open ? h("code", {}, text.slice(0, open), h("wbr"), text.slice(open)) : h("code", {}, text);
  };

  function draw(): void {
    items.clear();
    heads.clear();
    const all = ctx.view.panes.quiet !== "hide";
    const shows = (s: Stop) => all || !s.quiet || s === ctx.stop;
    const out: HTMLElement[] = [];
    const number = (entry: StepEntry) => h("i", {}, entry.error ? "" : String(entry.index)); // the step in a refused one's place has its number
    const visit = (entry: Entry, level: number, inside: string) => {
      if (!entry.stops.some(shows)) return;
      if (entry.kind === "stop") {
        const [stop] = entry.stops as [Stop];
        const of = entry.entry;
        const label = of.remark ? h("span", { class: "remark" }, of.call) : of.index === 0 ? h("span", {}, of.call) : callEl(of.call);
        const li = item(stop, level, [number(of), label], signOf(stop));
        li.classList.add(...inside.split(" ").filter(Boolean));
        out.push(li);
        return;
      }
      const folded = ctx.view.folded.includes(entry.id);
      const end = entry.stops[entry.stops.length - 1]!;
      const own = ctx.doc.steps.find((e) => e.stops === entry.stops);
      const name = entry.kind === "run" ? `${entry.title} × ${entry.count}` : entry.title;
      const label = entry.kind === "template" ? h("span", {}, `template ${name} `, h("span", { class: "dim" }, `${entry.count} steps`)) : own?.remark ? h("span", { class: "remark" }, name) : callEl(name);
      const mark = h("span", { class: "fold", "aria-hidden": "true", title: "fold or unfold (F)" }, folded ? "▸" : "▾");
      const bad = entry.stops.some((s) => s.error);
      const li = h("li", { role: "treeitem", "aria-level": level, "aria-selected": "false", "aria-expanded": String(!folded), id: `${ctx.uid}-g-${entry.id.replace(/[^\w.-]/g, "_")}`, class: `group ${inside}`, title: own?.call ?? "" }, own ? number(own) : h("i", {}), label, bad ? h("span", { class: "s bad" }, "✗") : null, mark);
      li.addEventListener("click", (e) => {
        if ((e.target as Element).closest(".fold")) fold(entry, !folded);
        else ctx.dispatch({ type: "go", key: end.key }, "step");
      });
      out.push(li);
      if (folded) {
        for (const s of entry.stops) if (!heads.has(s.key)) heads.set(s.key, li);
        return;
      }
      const deeper = inside ? "in deep" : "in";
      for (const inner of entry.inner) visit(inner, level + 1, deeper);
      for (const s of entry.kind === "step" ? entry.stops.filter(shows) : []) {
        const phase = item(s, level + 1, [h("i", {}, s.letter), h("span", { class: "tt" }, s.title)], signOf(s));
        phase.classList.add("ph", ...inside.split(" ").filter(Boolean));
        out.push(phase);
      }
    };
    for (const entry of groupsOf(ctx.doc)) visit(entry, 1, "");
    steps.replaceChildren(...out);
    const rest: HTMLElement[] = [];
    for (const s of ctx.doc.stops) {
      if (s.kind === "loops" || !shows(s)) continue;
      if (s.kind === "htile") rest.push(item(s, 1, [h("i", {}), h("span", {}, s.key === "htile.0" ? "HTile IR" : h("span", { class: "pass" }, s.title))], null));
      else rest.push(item(s, 1, [h("i", {}, ""), h("span", {}, s.call)], h("span", { class: "s dim" }, s.title)));
    }
    kernel.replaceChildren(...rest);
    kernel.hidden = kernelHead.hidden = !rest.length;
    const count = ctx.doc.stops.filter((s) => s.quiet).length;
    quiet.parentElement!.hidden = !count;
    quietText.textContent = `hide ${count} ${count === 1 ? "phase that changes" : "phases that change"} nothing`;
  }

  for (const tree of [steps, kernel])
    tree.addEventListener("keydown", (e) => {
      const by = ({ ArrowDown: "next", ArrowUp: "back" } as const)[e.key as "ArrowDown" | "ArrowUp"];
      if (e.key.toLowerCase() === "f" && !e.ctrlKey && !e.metaKey && !e.altKey) {
        foldHere();
        e.preventDefault();
        e.stopPropagation();
        return;
      }
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
      const key = `${view.panes.quiet}|${view.panes.quiet === "hide" && stop.quiet ? stop.key : ""}|${view.folded.join()}`;
      if (key !== drawn || doc !== drawnDoc) {
        draw();
        drawn = key;
        drawnDoc = doc;
      }
      const head = heads.get(stop.key);
      for (const [k, li] of [...items, ...[...new Set(heads.values())].map((li) => ["", li] as const)]) {
        const on = k === stop.key || li === head;
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
      undo.disabled = !ctx.past.undoable();
      redo.disabled = !ctx.past.redoable();
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
