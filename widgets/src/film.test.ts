import { describe, expect, it } from "vitest";

import { type Film, type Side, type Tensor, type Write, brief, digitsApart, gridOf, groups, heldAt, indexOf, isWrong, playFor, scaleOf, telling, tileOf } from "./film";

const tensor = (name: string, kind: Tensor["kind"], shape: number[], frames: Write[][]): Tensor => ({ name, kind, shape, blocks: [name], frames });
const side = (phase: string, wrong: boolean, tensors: Tensor[]): Side => ({
  phase, title: phase, wrong, rolling: "j", tensors, pool: [],
  frames: [0, 1].map((n) => ({ name: `j = ${n}`, segment: 0, blocks: ["m", "s"], loop: "loop:j@m" })).concat({ name: "after j", segment: 1, blocks: ["out"], loop: "" }),
});
const x = tensor("x", "input", [2, 2], [[[0, 1], [2, 3]], [[1, 2], [3, 1]], []]);
const score = tensor("score", "tile", [2, 2], [[[0, 1, 0, 0, "✓", true], [2, 3, 0, 0, "✓", true]], [[1, 2, 0, 1, "✓", true], [3, 1, 0, 1, "✓", true]], []]);
const m = tensor("m", "running", [2], [[[0, 1, 1, 0, "✓", true]], [[0, 2, 1, 1, "✓", true]], []]);
const s = (last: Write) => tensor("s", "running", [2], [[[0, 1, 2, 0, "✓", true]], [last], []]);
const out = tensor("out", "result", [2], [[], [], [[0, 4, 3, 2, "", null]]]);
const film: Film = {
  step: 8, what: "rolling_update", block: "s",
  sides: [side("naive", true, [x, score, m, s([0, 2, 2, 1, "", false, 1.5]), out]), side("repaired", false, [x, score, m, s([0, 1.5, 2, 1, "↻", true]), out])],
};

describe("a film", () => {
  it("holds of each element what was written last", () => {
    expect([...heldAt(m, 0).values()].map((h) => [h.write[1], h.at])).toEqual([[1, 0]]);
    expect([...heldAt(m, 2).values()].map((h) => [h.write[1], h.at])).toEqual([[2, 1]]);
    expect(heldAt(score, 0).has(1)).toBe(false);
    expect(isWrong(film.sides[0]!.tensors[3]!.frames[1]![0]!)).toBe(true);
    expect(isWrong(out.frames[2]![0]!)).toBe(false);
  });
  it("plays the step of a stop, else the one before, else the first, and the last for the kernel", () => {
    const plays = [{ step: 5, what: "", block: "a" }, { step: 8, what: "", block: "b" }];
    expect([0, 5, 6, 8, 20, -1].map((step) => playFor(plays, step)!.block)).toEqual(["a", "a", "a", "b", "b", "b"]);
    expect(playFor([], 3)).toBe(null);
  });
});

describe("the tensors that are shown", () => {
  it("are the tile, what runs, and the outputs; those that are the same come first", () => {
    expect(tileOf(film.sides[0]!)!.name).toBe("score");
    expect(telling(film.sides[0]!, ["out"]).map((t) => t.name)).toEqual(["score", "m", "s", "out"]);
    expect(groups(film, ["out"], false).map((g) => [g.side?.phase ?? null, g.tensors.map((t) => t.name)])).toEqual([[null, ["score", "m", "out"]], ["naive", ["s"]], ["repaired", ["s"]]]);
    expect(groups(film, [], true)[0]!.tensors.map((t) => t.name)).toEqual(["x", "score", "m", "out"]);
  });
  it("have an input for a tile where nothing is computed before the reductions", () => {
    expect(tileOf(side("a", false, [x, m]))!.name).toBe("x");
    expect(tileOf(side("a", false, [m]))).toBe(null);
  });
  it("have the parts of a split, beside which nothing runs", () => {
    const part = tensor("m_local", "part", [2, 2], [[[0, 1]], [[1, 2]], []]);
    const late = tensor("m", "running", [2], [[], [], [[0, 2]]]);
    expect(telling(side("a", false, [score, part, late]), []).map((t) => t.name)).toEqual(["score", "m_local", "m"]);
    expect(telling(side("a", false, [score, part, m]), []).map((t) => t.name)).toEqual(["score", "m"]);
  });
  it("differ where only a mark does", () => {
    const other = { ...film, sides: [film.sides[0]!, side("repaired", false, film.sides[0]!.tensors.map((t) => (t.name === "s" ? s([0, 2, 2, 1, "↻", null]) : t)))] };
    expect(groups(other, [], false).map((g) => g.side?.phase ?? null)).toEqual([null, "naive", "repaired"]);
  });
  it("are of one group if there is one program", () => {
    expect(groups({ ...film, sides: [film.sides[1]!] }, [], false).map((g) => g.side?.phase)).toEqual(["repaired"]);
  });
});

describe("a heat map", () => {
  it("has the rows of the tile", () => {
    expect(gridOf(score, score)).toEqual({ rows: 2, columns: 2 });
    expect(gridOf(m, score)).toEqual({ rows: 2, columns: 1 });
    expect(gridOf(tensor("acc", "running", [1, 2, 3, 4], []), tensor("score", "tile", [1, 2, 3, 8], []))).toEqual({ rows: 6, columns: 4 });
    expect(gridOf(tensor("t", "running", [], []), null)).toEqual({ rows: 1, columns: 1 });
    expect(indexOf([2, 3], 5)).toEqual([1, 2]);
    expect(indexOf([], 0)).toEqual([]);
  });
  it("has one scale for all frames and sides", () => {
    expect(scaleOf(film, "s")).toEqual({ low: 1, high: 2 });
    expect(scaleOf(film, "none")).toEqual({ low: 0, high: 0 });
  });
  it("have the digits that show a wrong value as another one", () => {
    const wrong = (value: number, should: number): Write => [0, value, 0, 0, "!", false, should];
    expect(digitsApart([wrong(1, 2), wrong(0.25, 0.75)])).toBe(0);
    const digits = digitsApart([wrong(0.33341, 0.33338), wrong(-12345.6, -12345.7), wrong(1, 2)]);
    expect(digits).toBe(6);
    expect([0.33341, 0.33338, -12345.6, 2, "inf"].map((value) => brief(value, digits))).toEqual(["0.333410", "0.333380", "−12345.6", "2", "∞"]);
  });
  it("has short numbers", () => {
    expect([0, 1, -1.2345, 0.01234, -0.00001, 123456, 12.5, "-inf", "nan"].map((value) => brief(value))).toEqual(["0", "1", "−1.23", "0.012", "−1e−5", "1e5", "12.5", "−∞", "nan"]);
  });
});
