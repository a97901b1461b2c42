// The tag table: elements down, iterations across; what each value read, as words and as arrows; a scrubber; the inputs.

import type { Context, Pane } from "../context";
import { debounce, h, svg } from "../dom";
import { definePane } from "../pane";
import type { Cell, Row, Table } from "../record";
import { stopName } from "../record";
import { SPOKEN, cellId, elementOf, firstWrong, only, sourceOf, stateOf, tint } from "../tag_cells";
import { inputEl } from "../tag_inputs";
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
  const wide = h("div", { class: "wide" }); // the table scrolls sideways, and its legend with the jump button stays
  const range = h("input", { type: "range", min: 0, step: 1, "aria-label": "iteration", oninput: () => ctx.dispatch({ type: "iteration", to: Number(range.value) }) });
  const play = h("button", { type: "button", class: "play", "aria-label": "play the iterations", onclick: () => toggle() }, "▶");
  const where = h("output", { class: "at" });
  const scrub = h("div", { class: "scrub" }, play, range, where);
  const el = h("section", { class: "pane", "aria-label": "tags" }, bar.el, body, scrub);

  let table: Table | null = null;
  let drawn: unknown = null;
  let tds: (HTMLElement | null)[][] = [];
  let heads: HTMLElement[] = [];
  let arrows: SVGGElement[] = [];
  let labels: HTMLElement[] = [];
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

  function cellEl(cell: Cell | null, row: Row, column: number): HTMLElement {
    if (!cell) return h("td", { class: "none" }, h("span", { class: "vh" }, "nothing"));
    const id = cellId(row, column);
    const spoken = [...cell.sign].map((s) => SPOKEN[s]).filter(Boolean).join(", ");
    const signs = `${cell.sign}${cell.right && !cell.sign.includes("✓") ? " ✓" : ""}`.trim();
    const reads = cell.reads.map((r) => `reads ${r.text}, ${stateOf(r.state).word}`).join("; ");
    const value = row.kind === "repair" && /^[\d.]/.test(cell.value) ? `× ${cell.value}` : cell.value;
    const td = h(
      "td",
      { class: tint(cell, row), title: [cell.tag, spoken, reads].filter(Boolean).join("\n") },
      h(
        "button",
        {
          type: "button",
          tabindex: -1,
          "aria-label": `${row.kind === "repair" ? "repair of " : ""}${row.label}, ${table!.columns[column]}: ${cell.value}${spoken ? `, ${spoken}` : ""}${cell.right ? ", as in the definition" : ""}${cell.right === false ? `, should be ${cell.should_be}` : ""}${reads ? `; ${reads}` : ""}`,
          onfocus: (e: Event) => tabStop(e.currentTarget as HTMLButtonElement),
          onclick: () => {
            ctx.dispatch({ type: "iteration", to: column });
            ctx.dispatch({ type: "select", ids: [id, `graph:${row.block}`] }, "tags");
          },
        },
        h("b", {}, value),
        h("em", {}, signs),
      ),
      ...cell.reads.map((r) => h("small", { class: stateOf(r.state).css }, `← ${r.text}${stateOf(r.state).sign ? ` ${stateOf(r.state).sign}` : ""}`)),
      cell.right === false && cell.should_be !== null ? h("small", { class: "should" }, `≠ ${cell.should_be}`) : null,
    );
    return td;
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

  /** The one cell of the table that Tab reaches; arrows go on from there. */
  function tabStop(to: HTMLButtonElement | null): void {
    body.querySelectorAll<HTMLButtonElement>('.tagtable td button[tabindex="0"]').forEach((b) => (b.tabIndex = -1));
    if (to) to.tabIndex = 0;
  }

  function drawTable(t: Table): void {
    heads = t.columns.map((c, n) => h("th", { scope: "col" }, h("button", { type: "button", tabindex: -1, onclick: () => ctx.dispatch({ type: "iteration", to: n }) }, c)));
    labels = [];
    tds = t.rows.map((row) => row.cells.map((cell, n) => cellEl(cell, row, n)));
    const rows = t.rows.map((row, n) => {
      const name = h("th", { scope: "row", class: row.kind }, row.kind === "repair" ? `repair of ${row.label}` : row.label);
      labels.push(name);
      return h("tr", { class: row.kind }, name, ...tds[n]!);
    });
    const grid = h("table", { class: "tagtable", "aria-label": t.title }, h("thead", {}, h("tr", {}, h("td", {}), ...heads)), h("tbody", {}, ...rows));
    grid.addEventListener("keydown", (e) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      if (!move) return;
      const n = tds.findIndex((r) => r.some((td) => td?.contains(e.target as Node)));
      const column = n < 0 ? Math.max(0, at) : tds[n]!.findIndex((td) => td?.contains(e.target as Node));
      for (let k = n + move[0]!; k >= 0 && k < tds.length; k += move[0]!) {
        const b = tds[k]![column]?.querySelector("button");
        if (b) {
          tabStop(b);
          b.focus();
          break;
        }
      }
      e.preventDefault();
      e.stopPropagation();
    });
    const signs = new Set(t.rows.flatMap((r) => r.cells.flatMap((c) => (c ? [...c.sign, ...(c.right ? ["✓"] : []), ...(c.right === false ? ["≠"] : [])] : []))));
    const legend: [string, string, string][] = [
      ["✗", "wrong", "not the correct value at this iteration"],
      ["!", "early", "read too early"],
      ["↻", "fixed", "repaired"],
      ["✓", "right", "as in the definition"],
      ["≠", "early", signs.has("✗") ? "the correct value" : "the value in the definition"],
    ];
    const wrong = firstWrong(t);
    const jump = wrong < 0 ? null : h("button", { type: "button", class: "link", onclick: () => ctx.dispatch({ type: "iteration", to: wrong }) }, `✗ first wrong at ${t.columns[wrong]}`);
    const overlay = svg("svg", { class: "arrows", "aria-hidden": "true" });
    arrows = t.columns.map(() => svg("g"));
    overlay.append(...arrows);
    const left = wide.scrollLeft;
    wide.replaceChildren(h("div", { class: "tagbox" }, grid, overlay));
    body.replaceChildren(
      wide,
      h("p", { class: "key" }, jump, ...legend.filter(([s]) => signs.has(s)).map(([s, css, text]) => h("span", {}, h("b", { class: css }, s), ` ${text}`)), t.note ? h("span", {}, t.note) : null),
    );
    wide.scrollLeft = left;
    requestAnimationFrame(() => drawArrows(t, overlay));
  }

  /** Arrows from the value read to its reader, a group a column; made once, then only shown and hidden. */
  function drawArrows(t: Table, overlay: SVGSVGElement): void {
    const box = overlay.parentElement;
    if (!box || !box.isConnected || !box.offsetWidth) return;
    overlay.setAttribute("width", String(box.scrollWidth));
    overlay.setAttribute("height", String(box.scrollHeight));
    const origin = box.getBoundingClientRect();
    const rect = (r: number, c: number) => {
      const b = tds[r]![c]!.getBoundingClientRect();
      return { left: b.left - origin.left, right: b.right - origin.left, top: b.top - origin.top, bottom: b.bottom - origin.top };
    };
    t.rows.forEach((row, r) =>
      row.cells.forEach((cell, c) => {
        cell?.reads.forEach((read, n) => {
          const source = sourceOf(t, row, read.text);
          if (!source || (source[0] === r && source[1] === c)) return;
          const from = rect(...source);
          const to = rect(r, c);
          // Down the gutter on the reader's left: values of this column in one lane, those of earlier ones in another.
          const straight = source[1] === c;
          const small = tds[r]![c]!.querySelectorAll("small")[n]?.getBoundingClientRect();
          const x2 = to.left + 17;
          const y2 = small ? (small.top + small.bottom) / 2 - origin.top : to.top + 14;
          const x1 = straight ? from.left + 17 : from.right - 3;
          // From a neighbour out of the value itself, from farther off along the line under its row, which crosses no value.
          const y1 = straight || source[1] === c - 1 ? from.top + 14 : from.bottom - 1;
          const lane = to.left + (straight ? 10 : 5);
          const down = y2 > y1 ? 1 : -1;
          const into = straight || source[1] > c ? -1 : 1;
          const bend = `L${lane - 4 * into},${y1} Q${lane},${y1} ${lane},${y1 + 4 * down} L${lane},${y2 - 4 * down} Q${lane},${y2} ${lane + 4},${y2} L${x2},${y2}`;
          const head = `M${x2 - 4},${y2 - 3} L${x2},${y2} L${x2 - 4},${y2 + 3}`;
          arrows[c]!.append(svg("path", { class: stateOf(read.state).css, d: `M${x1},${y1} ${bend}` }), svg("path", { class: `${stateOf(read.state).css} tip`, d: head }));
        });
      }),
    );
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
      const elements = whole ? [...new Set(whole.rows.map(elementOf))].filter((x) => x !== "").sort((a, b) => Number(a) - Number(b)) : [];
      // Many rows: one element is easier to read than all of them.
      const element = elements.length < 2 || view.panes.element === "all" ? "" : elements.includes(view.panes.element ?? "") ? view.panes.element! : whole!.rows.length > 10 ? elements[0]! : "";
      if (whole && (which.dataset.list !== elements.join() || which.hidden)) {
        which.dataset.list = elements.join();
        which.replaceChildren(h("option", { value: "all" }, "all rows"), ...elements.map((x) => h("option", { value: x }, `row ${x}`)));
      }
      which.hidden = !whole || elements.length < 2 || tab === "inputs";
      which.value = element || "all";
      const next = whole && filtered(whole, element);
      if (payload.tags && !next && ctx.live && tab !== "inputs") ctx.tags.ask(stop);
      if (next) roll.value = next.rolling;
      const busy = payload.tags !== null && !next && ctx.tags.busy();
      el.classList.toggle("busy", busy);
      about.textContent = next ? next.title.replace(/^.*?: /, "") : "";
      const key = tab === "inputs" ? `inputs|${ctx.tags.inputs === null}` : tab === "reads" ? `${view.iteration}` : "";
      const want = tab === "inputs" ? key : next ?? `${stop.key}|${ctx.tags.failure(stop)}|${busy}`;
      // While a newer table is on its way, the old one stays.
      const keep = busy && drawn !== null && tab === "tags" && table !== null;
      table = next ?? (keep ? table : null);
      const same = drawn === want && (tab !== "reads" || el.dataset.key === key) && el.dataset.tab === tab;
      if (!same && !keep && !(tab === "inputs" && body.contains(activeIn(body)) && el.dataset.tab === tab)) {
        el.dataset.tab = tab;
        el.dataset.key = key;
        drawn = want;
        at = -1;
        lit = null;
        tds = [];
        if (tab === "inputs") drawInputs();
        else if (!payload.tags) note(payload.tags_note || "There is no tag table for this program.");
        else if (next) tab === "tags" ? drawTable(next) : drawReads(next);
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
        if (tab === "tags" && now !== at && tds.length) {
          for (const n of [at, now]) {
            if (n < 0) continue;
            heads[n]?.classList.toggle("cur", n === now);
            arrows[n]?.classList.toggle("on", n === now);
            for (const row of tds) row[n]?.classList.toggle("cur", n === now);
          }
          at = now;
          tabStop(tds.map((row) => row[now]?.querySelector("button")).find((b) => b) ?? null);
          // The column in view, past the names, which stay where they are.
          const head = heads[now];
          if (head && wide.scrollWidth > wide.clientWidth) {
            const box = wide.getBoundingClientRect();
            const { left, right } = head.getBoundingClientRect();
            const names = box.left + (labels[0]?.offsetWidth ?? 0);
            if (left < names) wide.scrollLeft -= names - left + 8;
            else if (right > box.right - 12) wide.scrollLeft += right - box.right + 12;
          }
        }
      }
      if (tab === "tags" && table && lit !== ctx.related && tds.length) {
        const chosen = new Set(view.selection);
        table.rows.forEach((row, r) => {
          const on = ctx.related.blocks.has(row.block) || ctx.related.loops.has(`store:${row.block}`);
          labels[r]?.classList.toggle("lit", on);
          row.cells.forEach((_, c) => tds[r]?.[c]?.classList.toggle("own", chosen.has(cellId(row, c))));
        });
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
