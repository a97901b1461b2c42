// Arrows of a tag table, from the value read to its reader, a group per column.

import { svg } from "./dom";
import type { Cell, Table } from "./record";
import { sourceOf, stateOf } from "./tag_cells";

/** What the arrows need of a drawn table: its cells by row and column, and the reads that each cell shows. */
export interface Drawn {
  table: Table;
  tds: (HTMLElement | null)[][];
  told(cell: Cell): Cell["reads"];
}

/** Draws all arrows into `groups`; which of them are seen is a matter of their class. */
export function drawArrows(overlay: SVGSVGElement, groups: SVGGElement[], { table, tds, told }: Drawn): void {
  const box = overlay.parentElement;
  if (!box || !box.isConnected || !box.offsetWidth) return;
  overlay.setAttribute("width", String(box.scrollWidth));
  overlay.setAttribute("height", String(box.scrollHeight));
  const origin = box.getBoundingClientRect();
  const rect = (r: number, c: number) => {
    const b = tds[r]![c]!.getBoundingClientRect();
    return { left: b.left - origin.left, right: b.right - origin.left, top: b.top - origin.top, bottom: b.bottom - origin.top };
  };
  tds.forEach((row, r) =>
    row.forEach((td, c) => {
      const cell = table.rows[r]!.cells[c];
      if (!td || !cell) return;
      told(cell).forEach((read, n) => {
        const source = sourceOf(table, table.rows[r]!, read.text);
        if (!source || source[0] >= tds.length || (source[0] === r && source[1] === c)) return;
        const from = rect(...source);
        const to = rect(r, c);
        // Down the gutter on the reader's left: values of this column in one lane, those of earlier ones in another.
        const straight = source[1] === c;
        const small = td.querySelectorAll("small")[n]?.getBoundingClientRect();
        const x2 = to.left + 13;
        const y2 = small ? (small.top + small.bottom) / 2 - origin.top : to.top + 14;
        const x1 = straight ? from.left + 13 : from.right - 3;
        // From a neighbour out of the value itself, from farther off along the line under its row, which crosses no value.
        const y1 = straight || source[1] === c - 1 ? from.top + 14 : from.bottom - 1;
        const lane = to.left + (straight ? 8 : 4);
        const down = y2 > y1 ? 1 : -1;
        const into = straight || source[1] > c ? -1 : 1;
        const bend = `L${lane - 4 * into},${y1} Q${lane},${y1} ${lane},${y1 + 4 * down} L${lane},${y2 - 4 * down} Q${lane},${y2} ${lane + 4},${y2} L${x2},${y2}`;
        const head = `M${x2 - 4},${y2 - 3} L${x2},${y2} L${x2 - 4},${y2 + 3}`;
        const { css } = stateOf(read.state);
        groups[c]!.append(svg("path", { class: css, d: `M${x1},${y1} ${bend}` }), svg("path", { class: `${css} tip`, d: head }));
      });
    }),
  );
}
