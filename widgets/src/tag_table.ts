// One tag table, drawn: elements down, iterations across, heads that stay in view, the rows of no interest folded.

import type { Context } from "./context";
import { h, reveal, svg } from "./dom";
import type { Cell, Row, Table } from "./record";
import { drawArrows } from "./tag_arrows";
import { SPOKEN, cellId, firstWrong, inBrief, stateOf, tint } from "./tag_cells";
import { type Focus, shortLabel } from "./tag_focus";

export interface TagTable {
  el: HTMLElement;
  /** Marks a column as the current one and brings it into view. */
  current(column: number): void;
  /** Marks the rows of these blocks, and the cells that are selected. */
  light(isLit: (block: string) => boolean, chosen: ReadonlySet<string>): void;
  /** Scrolls to a cell. */
  bring(id: string): void;
}

const named = (row: Row): string => (row.kind === "repair" ? "repair of " : "");

/** The reads that cells show: only the early and the repaired ones, if there are any; a repair's are not said again of the
value that it repairs. */
function toldBy(table: Table): (cell: Cell) => Cell["reads"] {
  const signed = (read: Cell["reads"][number]) => stateOf(read.state).sign !== "";
  const some = table.rows.some((r) => r.cells.some((c) => c?.reads.some(signed)));
  const said = new Set<Cell>();
  for (const repair of table.rows.filter((r) => r.kind === "repair"))
    for (const row of table.rows)
      if (row.kind === "value" && row.label === repair.label)
        row.cells.forEach((cell, n) => { if (cell && JSON.stringify(cell.reads) === JSON.stringify(repair.cells[n]?.reads)) said.add(cell); });
  return (cell) => (said.has(cell) ? [] : some ? cell.reads.filter(signed) : cell.reads);
}

function legendOf(table: Table): [string, string, string][] {
  const signs = new Set(table.rows.flatMap((r) => r.cells.flatMap((c) => (c ? [...c.sign, ...(c.right ? ["✓"] : []), ...(c.right === false ? ["≠"] : [])] : []))));
  const all: [string, string, string][] = [
    ["✗", "wrong", "not the correct value at this iteration"],
    ["!", "early", "read too early"],
    ["↻", "fixed", "repaired"],
    ["✓", "right", "as in the definition"],
    ["≠", "early", signs.has("✗") ? "the correct value" : "the value in the definition"],
  ];
  return all.filter(([sign]) => signs.has(sign));
}

/** Draws a table whose last rows may be folded; `position` is the first index that tells its rows apart. */
export function tagTable(ctx: Context, { table, foldable }: Focus, position: number): TagTable {
  const told = toldBy(table);
  const unfolded = ctx.view.panes.tagrows === "all";
  const shown = table.rows.slice(0, unfolded ? table.rows.length : table.rows.length - foldable);

  function cellEl(cell: Cell | null, row: Row, column: number): HTMLElement {
    if (!cell) return h("td", { class: "none" }, h("span", { class: "vh" }, "nothing"));
    const id = cellId(row, column);
    const signs = `${cell.sign}${cell.right && !cell.sign.includes("✓") ? " ✓" : ""}`.trim();
    const spoken = [...signs].map((s) => SPOKEN[s]).filter(Boolean).join(", ");
    const reads = cell.reads.map((r) => `reads ${r.text}, ${stateOf(r.state).word}`).join("; ");
    const value = row.kind === "repair" && /^[\d.]/.test(cell.value) ? `× ${cell.value}` : cell.value;
    const button = h(
      "button",
      {
        type: "button",
        tabindex: -1,
        "aria-label": `${named(row)}${row.label}, ${table.columns[column]}: ${cell.value}${spoken ? `, ${spoken}` : ""}${cell.right === false ? `, should be ${cell.should_be}` : ""}${reads ? `; ${reads}` : ""}`,
        onfocus: () => tabStop(button),
        onclick: () => {
          ctx.dispatch({ type: "iteration", to: column });
          ctx.dispatch({ type: "select", ids: [id, `graph:${row.block}`] }, "tags");
        },
      },
      h("b", {}, value),
      h("em", {}, signs),
    );
    return h(
      "td",
      { class: tint(cell, row), title: [cell.tag, spoken, reads].filter(Boolean).join("\n") },
      button,
      ...told(cell).map((r) => h("small", { class: stateOf(r.state).css }, `← ${r.text}${stateOf(r.state).sign ? ` ${stateOf(r.state).sign}` : ""}`)),
      cell.right === false && cell.should_be !== null ? h("small", { class: "should" }, `≠ ${cell.should_be}`) : null,
    );
  }

  const heads = table.columns.map((c, n) => h("th", { scope: "col" }, h("button", { type: "button", tabindex: -1, onclick: () => ctx.dispatch({ type: "iteration", to: n }) }, c)));
  const labels = shown.map((row) => h("th", { scope: "row", class: row.kind, title: `${named(row)}${row.label}` }, `${named(row)}${shortLabel(row, position)}`));
  const tds = shown.map((row) => row.cells.map((cell, n) => cellEl(cell, row, n)));
  const rows = shown.map((row, n) => h("tr", { class: row.kind }, labels[n]!, ...tds[n]!));
  const buffers = [...new Set(table.rows.slice(table.rows.length - foldable).map((r) => r.buffer))];
  const fold = h(
    "button",
    { type: "button", class: "link", "aria-expanded": String(unfolded), onclick: () => ctx.dispatch({ type: "tab", slot: "tagrows", tab: unfolded ? "" : "all" }) },
    unfolded ? `▾ fold ${foldable} rows that did not change` : `▸ ${foldable} more rows, unchanged: ${buffers.join(", ")}`,
  );
  const foldRow = foldable ? [h("tr", { class: "fold" }, h("th", { scope: "row", colspan: table.columns.length + 1 }, fold))] : [];
  // The fold stands between what it folds and the rest.
  rows.splice(table.rows.length - foldable, 0, ...foldRow);
  const grid = h("table", { class: "tagtable", "aria-label": table.title }, h("thead", {}, h("tr", {}, h("td", {}), ...heads)), h("tbody", {}, ...rows));

  /** The one cell that Tab reaches; arrows go on from there. */
  function tabStop(to: HTMLButtonElement | null): void {
    for (const b of grid.querySelectorAll<HTMLButtonElement>('td button[tabindex="0"]')) b.tabIndex = -1;
    if (to) to.tabIndex = 0;
  }
  const buttonAt = (r: number, c: number) => tds[r]?.[c]?.querySelector("button") ?? null;
  let now = -1;
  grid.addEventListener("keydown", (e) => {
    const move = { ArrowUp: -1, ArrowDown: 1 }[e.key];
    if (!move) return;
    const from = tds.findIndex((r) => r.some((td) => td.contains(e.target as Node)));
    const column = from < 0 ? Math.max(0, now) : tds[from]!.findIndex((td) => td.contains(e.target as Node));
    let to = from + move;
    while (to >= 0 && to < tds.length && !buttonAt(to, column)) to += move;
    buttonAt(to, column)?.focus();
    e.preventDefault();
    e.stopPropagation();
  });

  const wrong = firstWrong(table);
  const jump = wrong && h("button", { type: "button", class: "link", onclick: () => ctx.dispatch({ type: "iteration", to: wrong.column }) }, `${wrong.sign} first wrong at ${table.columns[wrong.column]}`);
  const overlay = svg("svg", { class: "arrows", "aria-hidden": "true" });
  const arrows = table.columns.map(() => svg("g"));
  overlay.append(...arrows);
  const wide = h("div", { class: "wide" }, h("div", { class: "tagbox" }, grid, overlay)); // scrolls both ways; notes and legend stay
  const el = h(
    "div",
    { class: "tabled" },
    table.note ? h("p", { class: "tagnote", title: table.note }, inBrief(table.note)) : null,
    wide,
    h("p", { class: "key" }, jump, ...legendOf(table).map(([s, css, text]) => h("span", {}, h("b", { class: css }, s), ` ${text}`))),
  );
  requestAnimationFrame(() => drawArrows(overlay, arrows, { table, tds: tds.map((r, n) => r.map((td, c) => (shown[n]!.cells[c] ? td : null))), told }));

  return {
    el,
    current(column) {
      for (const n of [now, column]) {
        if (n < 0) continue;
        heads[n]?.classList.toggle("cur", n === column);
        arrows[n]?.classList.toggle("on", n === column);
        for (const row of tds) row[n]?.classList.toggle("cur", n === column);
      }
      now = column;
      tabStop(shown.map((_, r) => buttonAt(r, column)).find((b) => b) ?? null);
      // The column in view, past the names, which stay where they are.
      const head = heads[column];
      if (!head || wide.scrollWidth <= wide.clientWidth) return;
      const box = wide.getBoundingClientRect();
      const { left, right } = head.getBoundingClientRect();
      const names = box.left + (labels[0]?.offsetWidth ?? 0);
      if (left < names) wide.scrollLeft -= names - left + 8;
      else if (right > box.right - 12) wide.scrollLeft += right - box.right + 12;
    },
    bring(id) {
      shown.forEach((row, r) => row.cells.forEach((_, c) => { if (cellId(row, c) === id) reveal(wide, tds[r]![c]!); }));
    },
    light(isLit, chosen) {
      shown.forEach((row, r) => {
        labels[r]!.classList.toggle("lit", isLit(row.block));
        row.cells.forEach((_, c) => tds[r]![c]!.classList.toggle("own", chosen.has(cellId(row, c))));
      });
    },
  };
}
