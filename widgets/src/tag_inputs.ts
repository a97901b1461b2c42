// The inputs of tag tables, to read and to edit.

import { h } from "./dom";
import type { Numeral, TagInput, Values } from "./record";

/** An input as tables of two dimensions each; `changed` hears of a number that was typed, null where none can be. */
export function inputEl(input: TagInput, changed: ((index: number[], x: Numeral) => void) | null): HTMLElement {
  const slices: { label: string; at: number[]; rows: Values[]; flat: boolean }[] = [];
  const walk = (v: Values, path: number[]) => {
    const depth = input.shape.length - path.length;
    if (depth <= 2) slices.push({ label: path.length ? `[${path.join(", ")}]` : "", at: path, rows: depth === 2 ? (v as Values[]) : depth === 1 ? [v] : [[v]], flat: depth < 2 });
    else (v as Values[]).forEach((x, n) => walk(x, [...path, n]));
  };
  walk(input.values, []);
  return h(
    "div",
    { class: "input" },
    h("h3", {}, input.name, h("span", { class: "dim" }, ` ${input.shape.join(" × ") || "scalar"} ${input.dtype}`)),
    ...slices.slice(0, 8).map((s) =>
      h(
        "table",
        { class: "matrix", "aria-label": `${input.name}${s.label}` },
        s.label ? h("caption", {}, s.label) : null,
        h(
          "tbody",
          {},
          ...s.rows.slice(0, 32).map((row, i) =>
            h(
              "tr",
              {},
              ...(row as Values[]).slice(0, 32).map((v, j) => {
                const index = [...s.at, ...(s.flat ? [] : [i]), j];
                const field: HTMLInputElement = h("input", {
                  type: "text",
                  inputmode: "decimal",
                  value: shortest(v as Numeral, input.dtype),
                  readonly: changed === null,
                  size: 6,
                  "aria-label": `${input.name}[${index.join(", ")}]`,
                  oninput: () => {
                    const x = readNumber(field.value);
                    field.setAttribute("aria-invalid", String(x === null));
                    if (x !== null) changed?.(input.shape.length ? index : [], x);
                  },
                });
                return h("td", {}, field);
              }),
            ),
          ),
        ),
      ),
    ),
    slices.length > 8 || slices.some((s) => s.rows.length > 32) ? h("p", { class: "note" }, "Only the first values are shown.") : null,
  );
}

/** Bits of the significand, with the leading one. */
const BITS: Record<string, number> = { float16: 11, bfloat16: 8, float32: 24 };

/** The fewest digits that the dtype rounds to this number: 0.13 for float16's 0.1300048828125. */
export function shortest(x: Numeral, dtype: string): string {
  const bits = BITS[dtype];
  if (bits === undefined || typeof x === "string" || !Number.isFinite(x)) return String(x);
  // Half of the distance to the next number of the dtype, at least.
  const least = Math.abs(x) * 2 ** -(bits + 1);
  for (let digits = 1; digits < 10; digits++) {
    const short = Number(x.toPrecision(digits));
    if (Math.abs(short - x) <= least / 2) return String(short);
  }
  return String(x);
}

/** A number as typed: "1.5", "-inf"; null where it is none. */
export function readNumber(text: string): Numeral | null {
  const t = text.trim().replace("−", "-");
  const [, sign, word] = /^([+-]?)(inf|infinity|∞|nan)$/i.exec(t) ?? [];
  if (word) return word.toLowerCase() === "nan" ? "nan" : `${sign === "-" ? "-" : ""}inf`;
  const x = Number(t);
  return t === "" || !Number.isFinite(x) ? null : x;
}
