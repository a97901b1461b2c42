import { describe, expect, it } from "vitest";
import { figures, launches, stageOf, stepChanges, tiles } from "./changes_data";
import { fixture, rawTrace } from "./fixture";
import { type Links, compareStops, countText, inOrderPairs, lastOf, linkedRows, linksOf, matchLines } from "./linked";
import { type Line, readTrace } from "./record";

const line = (text: string, node = "", kind = "store"): Line => ({ node, text, origin: "", kind, refs: [] });
const rowsOf = (a: Line[], b: Line[], la: Links[], lb: Links[]) => linkedRows(a, b, matchLines(a, b, la, lb)).map(({ op, left, right }) => `${op} ${left ?? "-"} ${right ?? "-"}`);
const by = (lines: Line[]): Links[] => lines.map((l) => [l.node, "", ""]);

describe("lines matched by where they come from", () => {
  it("changes the line of one node, whatever it says now, where a text diff removes and adds", () => {
    const a = [line("for i in range(64):", "loop:i"), line("s[i] += x[i]", "store:s")];
    const b = [line("for i in range(32):", "loop:i"), line("total = exp(m - n) * total + y", "store:s")];
    expect(rowsOf(a, b, by(a), by(b))).toEqual(["change 0 0", "change 1 1"]);
  });

  it("does not match lines of like text that come from elsewhere", () => {
    const a = [line("x = 1", "store:a")];
    const b = [line("x = 1", "store:b")];
    expect(rowsOf(a, b, by(a), by(b))).toEqual(["del 0 -", "add - 0"]);
  });

  it("finds a line that moved, on both sides", () => {
    const a = [line("p", "store:p"), line("q", "store:q"), line("r", "store:r")];
    const b = [line("q", "store:q"), line("r", "store:r"), line("p", "store:p")];
    expect(rowsOf(a, b, by(a), by(b))).toEqual(["move 0 -", "same 1 0", "same 2 1", "move - 2"]);
  });

  it("falls back to the definition where blocks have other names", () => {
    const a = [line("m = max(x)", "tile:s_max")];
    const b = [line("m = max(x, 1)", "tile:s_max_tile")];
    expect(rowsOf(a, b, [["tile:s_max", "store:s_max", "def:s_max"]], [["tile:s_max_tile", "store:s_max_tile", "def:s_max"]])).toEqual(["change 0 0"]);
  });

  it("among lines of one origin pairs those that do the same, and no comment with code", () => {
    const a = [line("# s_max", "", "triton"), line("m = tl.max(x, axis=1)", "", "triton")];
    const b = [line("m = tl.max(x, axis=0)", "", "triton"), line("load(y)", "", "triton")];
    const links = (n: number): Links[] => Array.from({ length: n }, () => ["tile:s", "", ""]);
    expect(rowsOf(a, b, links(2), links(2))).toEqual(["del 0 -", "change 1 0", "add - 1"]);
  });

  it("matches a line that says the same and shares some of its many origins", () => {
    const a = [line("i0 = tl.program_id(0)", "", "triton")];
    const links = (...nodes: string[]): Links[] => [[nodes.join(" "), nodes.map((n) => `store:${n}`).join(" "), ""]];
    expect(rowsOf(a, a, links("qk", "out"), links("qk", "score"))).toEqual(["same 0 0"]);
    expect(rowsOf(a, a, links("qk"), links("acc"))).toEqual(["del 0 -", "add - 0"]);
  });

  it("matches lines without links by their text alone", () => {
    const a = [line("import torch"), line("import triton"), line("x = 1", "store:x")];
    const b = [line("import triton"), line("x = 1", "store:x")];
    expect(rowsOf(a, b, by(a), by(b))).toEqual(["del 0 -", "same 1 0", "same 2 1"]);
  });

  it("keeps the longest run of pairs in order", () => {
    expect(inOrderPairs([[0, 4], [1, 0], [2, 1], [3, 3], [4, 2]])).toEqual([[1, 0], [2, 1], [4, 2]]);
    expect(inOrderPairs([])).toEqual([]);
  });
});

describe("two stops side by side", () => {
  const doc = fixture();

  it("is the same for one program", () => {
    const stop = lastOf(doc, "triton")!;
    const same = compareStops(doc, stop, doc, stop);
    expect(countText(same.counted)).toBe("the same");
    expect(same.left.every((l) => l.op === "same")).toBe(true);
  });

  it("shows what a repair changed, each line once", () => {
    const found = compareStops(doc, doc.byKey.get("1.naive")!, doc, doc.byKey.get("1.repaired")!);
    expect(countText(found.counted)).toBe("1 changed");
    expect(found.right.find((l) => l.op === "change")!.text).toContain("exp(m0 - m) * s");
  });

  it("of another record, a line on the left selects its partner on the right, and one without a partner nothing", () => {
    const other = readTrace({ ...rawTrace, kernel: { ...rawTrace.kernel!, triton: [
      { number: 1, text: "s = tl.sum(e)", nodes: ["tile:s_sum"], blocks: ["store:s_sum"], definition: ["def:s_sum"] },
      { number: 2, text: "z = tl.zeros()", nodes: ["tile:z"], blocks: ["store:z"], definition: ["def:z"] },
    ] } });
    const found = compareStops(other, lastOf(other, "triton")!, doc, lastOf(doc, "triton")!);
    expect(found.left.find((l) => l.text === "s = tl.sum(e)")!.node).toBe("triton:3");
    expect(found.left.find((l) => l.text === "z = tl.zeros()")!.node).toBe("");
    expect(countText(found.counted)).toBe("1 changed, 2 added, 1 removed");
  });

  it("knows the links of HTile as far as the definition", () => {
    const stop = lastOf(doc, "htile")!;
    const at = stop.lines.findIndex((l) => l.node === "tile:s_sum");
    expect(linksOf(doc, stop)[at]).toEqual(["tile:s_sum", "store:s_sum", "def:s_sum"]);
  });
});

describe("figures of a side", () => {
  const doc = fixture();
  const step = (primitive: string, args: Record<string, unknown>) => ({ primitive, arguments: args });

  it("names the steps that differ", () => {
    const a = [step("tile", { block: "qk", tiles: { i: 64 } }), step("bind", { loop: "qk.i0" })];
    const b = [step("tile", { block: "qk", tiles: { i: 32 } }), step("bind", { loop: "qk.i0" }), step("set_scope", { block: "s" })];
    expect(stepChanges(a, b)).toEqual([{ sign: "−", text: "tile(qk, i=64)" }, { sign: "+", text: "tile(qk, i=32)" }, { sign: "+", text: "set_scope(s)" }]);
    expect(stepChanges(a, a)).toEqual([]);
  });

  it("has tiles as far as the stop, and launches of a kernel alone", () => {
    const tiled = readTrace({ ...rawTrace, steps: rawTrace.steps.map((s) => (s.index === 2 ? { ...s, arguments: { block: "s_sum", tiles: { j: 2 } } } : s)), kernel: { ...rawTrace.kernel!, launches: [{ grid: [4, 2], num_warps: 8, num_stages: null }] } });
    expect(tiles(tiled, tiled.byKey.get("1.naive")!)).toBe("none");
    expect(tiles(tiled, lastOf(tiled, "triton")!)).toBe("s_sum j=2");
    expect(launches(tiled, lastOf(tiled, "triton")!)).toBe("4 × 2 blocks (8 warps)");
    expect(launches(tiled, tiled.byKey.get("1.naive")!)).toBe("");
  });

  it("takes a stage that both have", () => {
    const bare = readTrace({ ...rawTrace, kernel: null });
    expect(stageOf(doc, doc, "htile")).toBe("htile");
    expect(stageOf(doc, doc, "gone")).toBe("triton");
    expect(stageOf(doc, bare, "triton")).toBe("loops");
  });

  it("has none while the traffic is awaited", () => {
    expect(figures({ name: "", doc, stop: doc.stops[0]!, traffic: null, steps: null }, "h200")).toBeNull();
  });
});
