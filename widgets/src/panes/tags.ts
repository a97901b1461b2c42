// The tag table: elements down, iterations across; what each value read, as words and as arrows; a scrubber; the inputs.

import type { Context, Pane } from "../context";
import { debounce, h } from "../dom";
import { definePane } from "../pane";
import type { Stop, Table } from "../record";
import { stopName } from "../record";
import { stateOf } from "../tag_cells";
import { changedBlocks, elements, focus, hiddenBy, only, tellingElement, varying } from "../tag_focus";
import { inputEl } from "../tag_inputs";
import { type TagTable, tagTable } from "../tag_table";
import { tabs } from "../tabs";

interface TagsPane extends Pane {
  /** The number of the last column. */
  last(): number;
}

function tagsPane(ctx: Context): TagsPane {
  const bar = tabs(ctx, "tags", "Tags", [
    { id: "tags", label: "Tags" },
    { id: "reads", label: "Reads" },
    { id: "inputs", label: "Inputs" },
  ]);
  const roll = h("select", { "aria-label": "loop whose iterations are the columns", onchange: () => ctx.dispatch({ type: "tab", slot: "rolling", tab: roll.value }) });
  const which = h("select", { "aria-label": "row of the tensors", onchange: () => ctx.dispatch({ type: "tab", slot: "element", tab: which.value }) });
  const about = h("span", { class: "dim" });
  bar.extra.append(about, which, roll);
  const body = h("div", { class: "body scroll", role: "tabpanel", tabindex: 0, "aria-label": "tag table" });
  const range = h("input", { type: "range", min: 0, step: 1, "aria-label": "iteration", oninput: () => ctx.dispatch({ type: "iteration", to: Number(range.value) }) });
  const play = h("button", { type: "button", class: "play", "aria-label": "play the iterations", onclick: () => toggle() }, "▶");
  const where = h("output", { class: "at" });
  const scrub = h("div", { class: "scrub" }, play, range, where);
  const el = h("section", { class: "pane", "aria-label": "tags" }, bar.el, body, scrub);

  let table: Table | null = null;
  let drawn: unknown = null;
  let made: TagTable | null = null;
  let at = -1;
  let timer: ReturnType<typeof setInterval> | undefined;
  let lit: unknown = null;

  function toggle(): void {
    if (timer) return stopPlay();
    if (!table) return;
    if (ctx.view.iteration >= table.columns.length - 1) ctx.dispatch({ type: "iteration", to: 0 });
    timer = setInterval(() => {
      if (!table || ctx.view.iteration >= table.columns.length - 1) return stopPlay();
      ctx.dispatch({ type: "iteration", to: ctx.view.iteration + 1 });
    }, 900);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "pause");
  }
  function stopPlay(): void {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "▶";
    play.setAttribute("aria-label", "play the iterations");
  }

  /** The selection whose cell is in the table; a saved view has its own choice of rows. */
  let revealed = ctx.view.panes.element ? ctx.view.selection.join() : "";
  /** Shows the row of a cell that was selected elsewhere, if the choice of rows or the fold hides it. */
  function bringIn(whole: Table, element: string, stop: Stop): void {
    const now = ctx.view.selection.join();
    if (now === revealed) return;
    revealed = now;
    const cell = ctx.view.selection.find((id) => id.startsWith("cell:"));
    const hidden = cell && ctx.source !== "tags" ? hiddenBy(whole, cell, element, changedBlocks(ctx.doc, stop)) : null;
    if (!hidden) return;
    if (hidden.element !== element) ctx.dispatch({ type: "tab", slot: "element", tab: hidden.element }, ctx.source);
    if (hidden.folded) ctx.dispatch({ type: "tab", slot: "tagrows", tab: "all" }, ctx.source);
  }

  const views = new WeakMap<Table, Map<string, Table>>();
  /** The same object for the same question, so that nothing is drawn twice. */
  function filtered(whole: Table, element: string): Table {
    const known = views.get(whole) ?? new Map<string, Table>();
    views.set(whole, known);
    const found = known.get(element) ?? only(whole, element);
    known.set(element, found);
    return found;
  }

  function drawTable(whole: Table, t: Table, stop: Stop): void {
    const onFold = activeIn(body)?.closest(".fold");
    made = tagTable(ctx, focus(t, changedBlocks(ctx.doc, stop)), varying(whole));
    body.replaceChildren(made.el);
    if (onFold) body.querySelector<HTMLElement>(".fold button")?.focus();
  }

  function drawReads(t: Table): void {
    const column = Math.min(ctx.view.iteration, t.columns.length - 1);
    const rows = t.rows.filter((r) => r.cells[column]?.reads.length);
    body.replaceChildren(
      rows.length
        ? h(
            "table",
            { class: "reads" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t.columns[column]!), h("th", { scope: "col" }, "reads"), h("th", { scope: "col" }, "which is"))),
            h(
              "tbody",
              {},
              ...rows.flatMap((r) =>
                r.cells[column]!.reads.map((read, n) =>
                  h("tr", {}, h("th", { scope: "row" }, n ? "" : `${r.kind === "repair" ? "repair of " : ""}${r.label}`), h("td", {}, read.text), h("td", { class: stateOf(read.state).css }, `${stateOf(read.state).word} ${stateOf(read.state).sign}`.trim())),
                ),
              ),
            ),
          )
        : h("p", { class: "note" }, "Nothing is read from another stage in this iteration."),
    );
  }

  const changed = debounce(() => ctx.refresh(), 250);

  function drawInputs(): void {
    const edit = ctx.live;
    const grids = ctx.tags.shownInputs().map((input) => inputEl(input, edit ? (index, x) => (ctx.tags.edit(input.name, index, x), changed()) : null));
    const restore = h("button", { type: "button", class: "small", onclick: () => (ctx.tags.restore(), (drawn = null), ctx.refresh()) }, "As they were");
    body.replaceChildren(
      h("p", { class: "note" }, edit ? "Edit a value to update every table." : "The inputs of these tables; editing them needs a running Python kernel.", " ", ctx.tags.inputs ? restore : null),
      ...grids,
    );
  }

  function note(text: string): void {
    body.replaceChildren(h("p", { class: "note" }, text));
  }

  return {
    el,
    last: () => Number(range.max || 0),
    destroy: () => (stopPlay(), changed.cancel()),
    update() {
      const { view, payload, doc } = ctx;
      // A kernel stop has no table of its own: that of the last loop program stays.
      const loops = doc.stops.filter((s) => s.kind === "loops");
      const stop = ctx.stop.kind === "loops" ? ctx.stop : loops[loops.length - 1]!;
      const tab = payload.tags && ["reads", "inputs"].includes(view.panes.tags ?? "") ? view.panes.tags! : "tags";
      bar.update(tab);
      bar.show("reads", payload.tags !== null);
      bar.show("inputs", payload.tags !== null);
      bar.el.querySelector(".strip")!.toggleAttribute("data-one", payload.tags === null);
      const rolling = payload.tags?.rolling ?? [];
      roll.hidden = rolling.length < 2 || !ctx.live;
      if (roll.dataset.list !== rolling.join()) {
        roll.dataset.list = rolling.join();
        roll.replaceChildren(...rolling.map((r) => h("option", { value: r }, `over ${r}`)));
      }
      const whole = payload.tags ? ctx.tags.get(stop) : null;
      const list = whole ? elements(whole) : [];
      // Many rows: one element is easier to read than all of them.
      const element = list.length < 2 || view.panes.element === "all" ? "" : list.includes(view.panes.element ?? "") ? view.panes.element! : whole!.rows.length > 10 ? tellingElement(whole!) : "";
      if (whole && (which.dataset.list !== list.join() || which.hidden)) {
        which.dataset.list = list.join();
        which.replaceChildren(h("option", { value: "all" }, "all rows"), ...list.map((x) => h("option", { value: x }, `row ${x}`)));
      }
      which.hidden = !whole || list.length < 2 || tab === "inputs";
      which.value = element || "all";
      if (whole && tab === "tags") bringIn(whole, element, stop);
      const next = whole && filtered(whole, element);
      if (payload.tags && !next && ctx.live && tab !== "inputs") ctx.tags.ask(stop);
      if (next) roll.value = next.rolling;
      const busy = payload.tags !== null && !next && ctx.tags.busy();
      el.classList.toggle("busy", busy);
      about.textContent = next ? `values per iteration of ${next.rolling}` : "";
      const key = tab === "inputs" ? `inputs|${ctx.tags.inputs === null}` : tab === "reads" ? `${view.iteration}` : `${stop.key}|${view.panes.tagrows}`;
      const want = tab === "inputs" ? key : next ?? `${stop.key}|${ctx.tags.failure(stop)}|${busy}`;
      // While a newer table is on its way, the old one stays.
      const keep = busy && drawn !== null && tab === "tags" && table !== null;
      table = next ?? (keep ? table : null);
      const same = drawn === want && el.dataset.key === key && el.dataset.tab === tab;
      if (!same && !keep && !(tab === "inputs" && body.contains(activeIn(body)) && el.dataset.tab === tab)) {
        el.dataset.tab = tab;
        el.dataset.key = key;
        drawn = want;
        at = -1;
        lit = null;
        made = null;
        if (tab === "inputs") drawInputs();
        else if (!payload.tags) note(payload.tags_note || "There is no tag table for this program.");
        else if (next) tab === "tags" ? drawTable(whole!, next, stop) : drawReads(next);
        else if (busy) note("Running this phase …");
        else {
          const failed = ctx.tags.failure(stop);
          const near = loops.find((s) => payload.tags!.tables[s.key]);
          note(failed ? `✗ ${failed}` : "No table was computed for this phase.");
          if (!failed && near) body.append(h("p", { class: "note" }, h("button", { type: "button", class: "link", onclick: () => ctx.dispatch({ type: "go", key: near.key }) }, `see ${stopName(near)}`)));
        }
      }
      scrub.hidden = !table || tab === "inputs" || !payload.tags;
      if (table) {
        const last = table.columns.length - 1;
        const now = Math.min(view.iteration, last);
        range.max = String(last);
        range.value = String(now);
        range.setAttribute("aria-valuetext", table.columns[now] ?? "");
        where.textContent = `${table.columns[now] ?? ""} · ${now + 1} of ${last + 1}`;
        if (made && now !== at) {
          made.current(now);
          at = now;
        }
      }
      if (made && lit !== ctx.related) {
        const at = ctx.source === "tags" ? undefined : view.selection.find((id) => id.startsWith("cell:"));
        made.light((block) => ctx.related.blocks.has(block) || ctx.related.loops.has(`store:${block}`), new Set(view.selection));
        if (at) made.bring(at);
        lit = ctx.related;
      }
    },
  };
}

const activeIn = (el: HTMLElement): Element | null => (el.getRootNode() as Document | ShadowRoot).activeElement;

export const pane = definePane({
  id: "tags",
  title: "Tags",
  help: "The tag table: every value at every iteration of a loop, which value it read, and the correct value; the inputs can be edited.",
  place: { column: "left", weight: 1 },
  order: 20,
  make: tagsPane,
  empty: (ctx) => ctx.payload.tags === null,
  keys: [
    {
      keys: ["J", "K"],
      text: "iteration",
      explained: "iteration of the tag table: one step back, one step forward",
      order: 20,
      press: {
        j: (ctx) => ctx.dispatch({ type: "iteration", to: ctx.view.iteration - 1 }),
        k: (ctx, tags) => ctx.dispatch({ type: "iteration", to: Math.min(ctx.view.iteration + 1, tags.last()) }),
      },
    },
  ],
});
