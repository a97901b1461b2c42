// One tensor as a heat map: a table whose cells are tinted by magnitude, so that it can be read as a table, too.

import { h } from "./dom";
import { type Film, type Grid, type Held, type Tensor, brief, digitsApart, heldAt, indexOf, isWrong, scaleOf, whole } from "./film";

export interface HeatMap {
  el: HTMLElement;
  draw(frame: number): void;
}

/** What is told of an element, to the eye below the maps and to a screen reader at its cell. */
export interface Told {
  text: string;
  held: Held | null;
}

/** Cells that are drawn at most: more would be too small to see. */
const MOST = { rows: 32, columns: 64 };
/** Columns up to which cells have their value in them. */
const READABLE = 10;

const SIGNS: Record<string, string> = { "!": "read too early", "↻": "repaired", "✗": "wrong, by a repair that is not proved", "✓": "" };

/** `acc[1, 0] = 0.25 after j0 = 1, should be 0.5, read too early`. */
function tell(tensor: Tensor, position: number, held: Held | null, name: (at: number) => string): string {
  const element = `${tensor.name}[${indexOf(tensor.shape, position).join(", ")}]`;
  if (!held) return `${element} is not written yet`;
  const { write, at } = held;
  const [, value, , , sign, right, should] = write;
  const words = [tensor.kind === "input" ? `read at ${name(at)}` : `written at ${name(at)}`];
  if (right === false) words.push(`the definition has ${whole(should ?? "")}`);
  else if (right) words.push("as in the definition");
  if (sign && SIGNS[sign]) words.push(SIGNS[sign]!);
  return `${element} = ${whole(value)}: ${words.join(", ")}`;
}

/** Draws a tensor; `point` hears of the element under the pointer or the focus, `choose` of one that is pressed. */
export function heatMap(
  film: Film,
  tensor: Tensor,
  grid: Grid,
  nameOf: (frame: number) => string,
  point: (told: Told | null) => void,
  choose: (held: Held) => void,
): HeatMap {
  // Rows and columns that are never written are left out: one program instance has a part of each tensor.
  const used = new Set(tensor.frames.flatMap((f) => f.map(([position]) => position)));
  const some = (count: number, of: (position: number) => number) => {
    const found = new Set([...used].map(of));
    return Array.from({ length: count }, (_, n) => n).filter((n) => found.has(n) || !found.size);
  };
  const allRows = some(grid.rows, (p) => Math.floor(p / grid.columns));
  const allColumns = some(grid.columns, (p) => p % grid.columns);
  const shownRows = allRows.slice(0, MOST.rows);
  const shownColumns = allColumns.slice(0, MOST.columns);
  const columns = shownColumns.length;
  const scale = scaleOf(film, tensor.name);
  const readable = columns <= READABLE;
  // Room for the sign of a wrong value, so that nothing moves while it plays.
  const wrongs = film.sides.flatMap((s) => s.tensors.filter((x) => x.name === tensor.name).flatMap((x) => x.frames.flatMap((f) => f.filter(isWrong))));
  const marks = wrongs.length > 0;
  const digits = digitsApart(wrongs);
  const last: (Held | null | undefined)[] = [];
  const fresh: boolean[] = [];
  let told: Told[] = [];
  const places = shownRows.map((r) => shownColumns.map((c) => r * grid.columns + c));
  const tds = places.map((row) => row.map(cell));
  const cut = shownRows.length < allRows.length || columns < allColumns.length ? h("small", { class: "dim" }, `the first ${shownRows.length} × ${columns} of ${allRows.length} × ${allColumns.length}`) : null;
  const table = h("table", { class: `heat ${readable ? "" : "small"} ${marks ? "marks" : ""}`, role: "grid", "aria-label": tensor.name }, h("tbody", {}, ...tds.map((row) => h("tr", {}, ...row))));
  const el = h("figure", { class: `map of-${tensor.kind}` }, h("figcaption", {}, tensor.name), table, cut);

  function cell(position: number): HTMLTableCellElement {
    const tip = () => point(told[position] ?? null);
    return h("td", {
      ...(readable && digits ? { style: `min-width: ${digits + 4}ch` } : {}),
      role: "gridcell",
      tabindex: -1,
      onmouseenter: tip,
      onfocus: (e: Event) => (roving(e.target as HTMLElement), tip()),
      onmouseleave: () => point(null),
      onblur: () => point(null),
      onclick: () => last[position] && choose(last[position]!),
    });
  }
  let stop = tds[0]![0]!;
  function roving(td: HTMLElement): void {
    stop.tabIndex = -1;
    stop = td as HTMLTableCellElement;
    stop.tabIndex = 0;
  }
  roving(stop);
  table.addEventListener("keydown", (e) => {
    const r = tds.findIndex((row) => row.includes(stop));
    const c = tds[r]!.indexOf(stop);
    const to = { ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1] }[e.key];
    if (e.key === "Enter") stop.click();
    else if (to) tds[to[0]!]?.[to[1]!]?.focus();
    else return;
    e.preventDefault();
    e.stopPropagation();
  });

  return {
    el,
    draw(frame) {
      const held = heldAt(tensor, frame);
      told = [];
      tds.forEach((row, r) =>
        row.forEach((td, c) => {
          const position = places[r]![c]!;
          const now = held.get(position) ?? null;
          const isFresh = now?.at === frame;
          told[position] = { text: tell(tensor, position, now, nameOf), held: now };
          if (last[position] === undefined || last[position]?.write !== now?.write || fresh[position] !== isFresh) paint(td, now, isFresh, told[position]!.text);
          last[position] = now;
          fresh[position] = isFresh;
        }),
      );
    },
  };

  function paint(td: HTMLTableCellElement, held: Held | null, isFresh: boolean, text: string): void {
    const value = held?.write[1];
    const wrong = held !== null && isWrong(held.write);
    const number = typeof value === "number";
    td.className = [held ? "" : "none", isFresh ? "fresh" : "", wrong ? "wrong" : "", held && !number ? "odd" : "", number && value < 0 ? "minus" : ""].filter(Boolean).join(" ");
    td.setAttribute("aria-label", text);
    const part = number && scale.high > scale.low ? (Math.abs(value) - scale.low) / (scale.high - scale.low) : number && scale.high ? 1 : 0;
    td.style.setProperty("--heat", `${held ? Math.round(6 + 44 * part) : 0}%`);
    td.replaceChildren(...(held && readable ? [...(wrong ? [h("i", {}, "≠")] : []), brief(value!, digits)] : wrong ? [h("i", {}, "≠")] : []));
  }
}
