import { describe, expect, it } from "vitest";

import { fixture } from "./fixture";
import type { Cell, Row, Table } from "./record";
import { changedBlocks, elementOf, elements, focus, hiddenBy, only, shortLabel, tellingElement, varying } from "./tag_focus";

const cell = (extra: Partial<Cell> = {}): Cell => ({ value: "1", tag: "", sign: "", reads: [], should_be: null, right: null, ...extra });
const row = (label: string, cells: Cell[] = [cell({ right: true, sign: "✓" }), cell()], kind: Row["kind"] = "value"): Row => {
  const buffer = label.split("[")[0]!;
  return { label, kind, buffer, block: buffer, cells };
};
const table = (rows: Row[]): Table => ({ title: "", rolling: "j", columns: ["j = 0", "j = 1"], rows, note: "" });
const wrong = [cell({ sign: "!", right: false, should_be: "2", reads: [{ text: "m⟨0⟩", state: "early" }] }), cell()];

/** As attention's: a batch and a head of one, two rows, right scores before everything else. */
const attention = table([
  ...["0", "1"].flatMap((i) => ["j0 * 2", "j0 * 2 + 1"].map((j) => row(`qk[0, 0, ${i}, ${j}]`))),
  ...["0", "1"].flatMap((i) => ["j0 * 2", "j0 * 2 + 1"].map((j) => row(`score[0, 0, ${i}, ${j}]`))),
  row("m[0, 0, 0]"), row("m[0, 0, 1]"),
  row("e[0, 0, 0]"), row("e[0, 0, 1]", wrong),
  row("t[0, 0, 0]"), row("t[0, 0, 1]"),
  row("s[0, 0, 0]"), row("s[0, 0, 1]", [cell({ right: false, should_be: "3" }), cell()]),
  row("rest"),
]);

describe("the rows of one element", () => {
  it("are told apart by the first index that varies", () => {
    expect(varying(attention)).toBe(2);
    expect(elements(attention)).toEqual(["0", "1"]);
    expect(only(attention, "1").rows.map((r) => r.label)).toContain("s[0, 0, 1]");
    expect(only(attention, "1").rows.map((r) => r.label)).not.toContain("s[0, 0, 0]");
    expect(only(attention, "1").rows.at(-1)!.label).toBe("rest");
    expect(varying(table([row("x[0]"), row("y[0]")]))).toBe(-1);
    expect(elementOf(row("x[3]"), 0)).toBe("3");
    expect(elementOf(row("x[j]"), 0)).toBe("");
  });
  it("are those of the first wrong value, else of the first repair that changes something", () => {
    expect(tellingElement(attention)).toBe("1");
    const factor = (value: string, i: number) => row(`s[${i}]`, [cell({ value: "0" }), cell({ value })], "repair");
    expect(tellingElement(table([factor("1", 0), factor("0.5", 1)]))).toBe("1");
    expect(tellingElement(table([factor("1", 0), factor("1", 1)]))).toBe("0");
    expect(tellingElement(table([row("x")]))).toBe("");
  });
  it("have labels without what is the same in all rows", () => {
    expect(shortLabel(row("acc[0, 0, 1, d]"), 2)).toBe("acc[…, 1, d]");
    expect(shortLabel(row("x[1]"), 0)).toBe("x[1]");
    expect(shortLabel(row("x[1]"), -1)).toBe("x[1]");
    expect(shortLabel(row("x[1]"), 2)).toBe("x[1]");
  });
});

describe("the rows that are shown", () => {
  const one = only(attention, "1");
  it("begin with what is wrong, then what changed, then what was read early; the rest can be folded", () => {
    const { table: shown, foldable } = focus(one, new Set(["e", "t", "s"]));
    expect(shown.rows.map((r) => r.buffer)).toEqual(["e", "s", "t", "m", "qk", "qk", "score", "score", "rest"]);
    expect(foldable).toBe(5);
  });
  it("begin with a repair of this step", () => {
    const repaired = { ...one, rows: one.rows.flatMap((r) => (r.buffer === "s" ? [row(r.label, [cell({ sign: "↻" })], "repair"), row(r.label, [cell({ sign: "↻" })])] : r.buffer === "e" ? [row(r.label, [cell({ sign: "↻", reads: [{ text: "m⟨0⟩", state: "repaired" }] })])] : [r])) };
    expect(focus(repaired, new Set(["e", "s"])).table.rows.slice(0, 4).map((r) => `${r.kind} ${r.buffer}`)).toEqual(["repair s", "value s", "value e", "value m"]);
    // A step that changes no line shows the repairs that there are.
    expect(focus(repaired, new Set()).table.rows.slice(0, 2).map((r) => r.buffer)).toEqual(["e", "s"]);
  });
  it("are all of them where there are few, or none stands out", () => {
    const few = table(one.rows.slice(0, 8));
    expect(focus(few, new Set(["e"]))).toEqual({ table: few, foldable: 0 });
    const plain = table([...one.rows, ...one.rows].map((r) => row(r.label)));
    expect(focus(plain, new Set())).toEqual({ table: plain, foldable: 0 });
  });
  it("are those of the blocks that a stop changed", () => {
    const doc = fixture();
    expect([...changedBlocks(doc, doc.byKey.get("1.repaired")!)]).toEqual(["s_sum"]);
    expect([...changedBlocks(doc, doc.stops[0]!)]).toEqual([]);
  });
});

describe("a cell that was selected elsewhere", () => {
  const changed = new Set(["e", "t", "s"]);
  it("is in the rows of its own element", () => {
    expect(hiddenBy(attention, "cell:value:s[0, 0, 0]@1", "1", changed)).toEqual({ element: "0", folded: false });
    expect(hiddenBy(attention, "cell:value:s[0, 0, 1]@1", "1", changed)).toBeNull();
    expect(hiddenBy(attention, "cell:value:s[0, 0, 0]@1", "", changed)).toBeNull();
  });
  it("may be in a folded row", () => {
    expect(hiddenBy(attention, "cell:value:score[0, 0, 1, j0 * 2]@0", "1", changed)).toEqual({ element: "1", folded: true });
    expect(hiddenBy(attention, "cell:value:score[0, 0, 0, j0 * 2]@0", "1", changed)).toEqual({ element: "0", folded: true });
    expect(hiddenBy(attention, "cell:value:rest@0", "1", changed)).toEqual({ element: "1", folded: true });
  });
  it("may be in no row", () => {
    expect(hiddenBy(attention, "cell:value:other[0]@1", "1", changed)).toBeNull();
  });
});
