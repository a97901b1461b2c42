import { describe, expect, it } from "vitest";
import { UNCUT } from "./coloured";
import { changedSpans, diffLines, lcs, unaligned } from "./diff";
import { fixture } from "./fixture";
import { boxOf, compute, fittingFont, layered } from "./layout";
import { ranges } from "./ranges";
import { nearestDerivation } from "./panes/derivation";
import { marked, sideBySide } from "./panes/program";
import type { Graph, Line, Row, Table } from "./record";
import { readValue, showValue } from "./schedule_values";
import { search } from "./search";
import { needsDot } from "./mathml";
import { firstWrong, sourceOf, tint } from "./tag_cells";
import { readNumber, shortest } from "./tag_inputs";
import { repairSpan, tokenise } from "./tokens";

const line = (text: string, node = ""): Line => ({ node, text, origin: "", kind: "store", refs: [] });
const doc = fixture();

describe("differences", () => {
  it("finds the longest common subsequence", () => {
    expect(lcs([..."abcbdab"], [..."bdcaba"])).toHaveLength(4);
    expect(lcs([], ["a"])).toEqual([]);
    expect(lcs(["a", "b"], ["a", "b"])).toEqual([[0, 0], [1, 1]]);
  });
  it("tells added, removed and rewritten lines", () => {
    const rows = diffLines([line("a"), line("x = 1 + y", "n"), line("gone")], [line("a"), line("new line here"), line("x = 2 * z", "n")]);
    expect(rows.map((r) => r.op)).toEqual(["same", "add", "change", "del"]);
  });
  it("takes another alignment of columns for no difference, another depth for one", () => {
    const before = [line("  chip    qk      float32[1]"), line("    a = b  # c")];
    const after = [line("  chip    qk                float32[1]"), line("  chip    s_max_1_finite    float32[1]"), line("    a = b      # c")];
    expect(diffLines(before, after).map((r) => r.op)).toEqual(["same", "add", "same"]);
    expect(diffLines([line("  a = b")], [line("    a = b")])[0]!.op).toBe("change");
    expect(unaligned("   x   y ")).toBe("   x y");
  });
  it("loses no line of either side", () => {
    const rows = diffLines(["a", "b", "c", "d"].map((t) => line(t)), ["c", "x", "a", "d"].map((t) => line(t)));
    expect(rows.flatMap((r) => (r.left === null ? [] : [r.left]))).toEqual([0, 1, 2, 3]);
    expect(rows.flatMap((r) => (r.right === null ? [] : [r.right]))).toEqual([0, 1, 2, 3]);
  });
  it("marks the words that changed", () => expect(changedSpans("s = a + b", "s = exp(q) * a + b").map(([a, b]) => "s = exp(q) * a + b".slice(a, b))).toEqual(["exp(q) *"]));
  it("marks a phase against the one before, with the repair term", () => {
    const shown = marked(doc.byKey.get("1.repaired")!, doc.byKey.get("1.repair")!, false);
    expect(shown.map((l) => l.op)).toEqual(["same", "same", "same", "change"]);
    expect(shown[3]!.text.slice(...shown[3]!.repair!)).toBe("exp(m0 - m)");
    expect(marked(doc.byKey.get("1.repaired")!, doc.byKey.get("1.repair")!, true).map((l) => l.op)).toContain("del");
  });
  it("puts two stops side by side, a row a row", () => {
    const both = sideBySide(doc.byKey.get("0.definition")!, doc.byKey.get("triton")!);
    expect(both.left.length).toBe(both.right.length);
  });
});

describe("colours", () => {
  it("keeps every character", () => {
    for (const text of ['    x = tl.load(p + i[:, None] * 64)  # "why"', 's⟨j0-1⟩ = "a\\"b" + 1e-5', ""]) expect(tokenise(text).map((t) => t.text).join("")).toBe(text);
  });
  it("tells kinds", () => expect(tokenise("for i in 3:  # c").filter((t) => t.kind).map((t) => t.kind)).toEqual(["k", "k", "n", "c"]));
  it("takes -inf for one constant, in which no line is cut", () => {
    expect(tokenise("max(x, -inf) - inf").filter((t) => t.kind === "n").map((t) => t.text)).toEqual(["-inf"]);
    expect(tokenise('where(m[i] -inf, m == float("-inf"), -inf)').map((t) => t.text).filter((t) => UNCUT.test(t))).toEqual(['"-inf"', "-inf"]);
  });
  it("finds the repair term, brackets and all", () => {
    expect(repairSpan("exp(a[i, (j)] - b) * s[i]", "s")).toEqual([0, 18]);
    expect(repairSpan("q + repair * s[i]", "s")).toEqual([4, 10]);
    expect(repairSpan("exp(a) * sum[i]", "s")).toBeNull();
    expect(repairSpan("s[i] = (\n  exp(a)\n  * s[i]", "s")).toEqual([11, 17]);
  });
});

describe("search", () => {
  it("finds each place once, in every stage", () => {
    const found = search(doc, "exp(m0");
    expect(found.map((m) => m.stop?.key)).toEqual(["1.repaired"]);
    expect(new Set(search(doc, "max").map((m) => m.where))).toEqual(new Set(["definition", "loops", "htile", "triton"]));
    expect(search(doc, "a + b").map((m) => m.where)).toEqual(["derivation"]);
    expect(search(doc, "  ")).toEqual([]);
  });
});

describe("derivations", () => {
  it("stand at their phase, serve the rest of the step, and are pointed to from elsewhere", () => {
    const get = (k: string) => nearestDerivation(doc.stops, doc.byKey.get(k)!);
    expect(get("1.repair").shown?.key).toBe("1.repair");
    expect(get("1.repaired").shown?.key).toBe("1.repair");
    expect(get("2.set_scope")).toMatchObject({ shown: null, nearest: { key: "1.repair" } });
  });
});

describe("tag tables", () => {
  const cell = { value: "1", tag: "", sign: "", reads: [], should_be: null, right: null };
  const row = (label: string, buffer: string, kind: "value" | "repair" = "value"): Row => ({ label, kind, buffer, block: buffer, cells: [cell, cell] });
  const table: Table = { title: "", rolling: "j", columns: ["j = 0", "j = 1"], rows: [row("m[0]", "m"), row("m[1]", "m"), row("s[1]", "s")], note: "" };
  it("finds the cell that a read names, of the same element", () => {
    expect(sourceOf(table, table.rows[2]!, "m⟨1⟩")).toEqual([1, 1]);
    expect(sourceOf(table, table.rows[2]!, "m⟨7⟩")).toBeNull();
    expect(sourceOf(table, table.rows[2]!, "m⟨start⟩")).toBeNull();
    expect(sourceOf(table, table.rows[2]!, "q⟨0⟩")).toBeNull();
  });
  it("marks where a repair that is not proved goes wrong first", () => {
    const wrong = { ...cell, sign: "✗", should_be: "2", right: false };
    const bad: Table = { ...table, rows: [...table.rows, { ...row("q[0]", "q"), cells: [cell, wrong] }] };
    const early: Table = { ...table, rows: [...table.rows, { ...row("q[0]", "q"), cells: [{ ...wrong, sign: "!" }, cell] }] };
    expect([firstWrong(table), firstWrong(bad), firstWrong(early)]).toEqual([null, { column: 1, sign: "✗" }, { column: 0, sign: "!" }]);
    expect([tint(wrong, bad.rows[3]!), tint({ ...cell, sign: "!" }, bad.rows[3]!)]).toEqual(["wrong", "early"]);
  });
  it("shows as few digits as the dtype tells apart", () => {
    const shown = [[0.1300048828125, "float16"], [Math.fround(1 / 3), "float32"], [0.1300048828125, "float64"], [-2.5, "bfloat16"], [0, "float16"], [7, "int32"]] as const;
    expect(shown.map(([x, dtype]) => shortest(x, dtype))).toEqual(["0.13", "0.33333334", "0.1300048828125", "-2.5", "0", "7"]);
  });
  it("reads numbers as typed", () => expect(["1.5", " -2 ", "", "x", "1e3", "−4", "-inf", "Infinity", "NaN", "1e999", "info"].map(readNumber)).toEqual([1.5, -2, null, null, 1000, -4, "-inf", "inf", "nan", null, null]));
});

describe("arguments", () => {
  it("go to text and back", () => {
    for (const [kind, value] of [["int", 4], ["factors", [null, 64]], ["tiles", { i: 64, j: 32 }], ["text", "local"]] as [string, unknown][])
      expect(readValue(kind === "tiles" ? "factors" : kind, showValue(value))).toEqual(value);
    expect(readValue("text", "")).toBeUndefined();
    expect(readValue("sentence", "[sic] as it was written ")).toBe("[sic] as it was written ");
  });
  it("names ranges of lines", () => expect(ranges([1, 2, 3, 7, 9, 10])).toBe("1–3, 7, 9–10"));
});

describe("the layout made here", () => {
  const graph = (n: number): Graph => ({
    nodes: Array.from({ length: n }, (_, i) => ({ id: `n${i}`, label: `n${i}`, kind: "map", detail: "", role: "", x: null, y: null, width: null, height: null })),
    edges: Array.from({ length: n - 1 }, (_, i) => ({ source: `n${Math.floor(i / 2)}`, target: `n${i + 1}`, tensor: "", kind: "plain", points: [] })),
    width: null,
    height: null,
  });
  it("puts no two nodes on one another, and readers to the right", () => {
    const g = graph(60);
    const { boxes } = layered([g]);
    const all = [...boxes.values()];
    for (const a of all) for (const b of all) if (a !== b) expect(Math.abs(a.x - b.x) > 1 || Math.abs(a.y - b.y) >= a.height - 1).toBe(true);
    for (const e of g.edges) expect(boxes.get(e.source)!.x).toBeLessThan(boxes.get(e.target)!.x);
  });
  it("takes cycles, and 500 nodes, in a moment", () => {
    const g = graph(500);
    g.edges.push({ source: "n499", target: "n0", tensor: "", kind: "plain", points: [] });
    const start = performance.now();
    expect(layered([g]).boxes.size).toBe(500);
    expect(performance.now() - start).toBeLessThan(500);
  });
  it("gives a node one place in all phases", () => expect(layered([graph(3), graph(9)]).boxes.size).toBe(9));
});

describe("products in formulas", () => {
  it("get a dot beside names of several letters only", () => {
    expect(needsDot("t", "tot")).toBe(true);
    expect(needsDot("tot", "e")).toBe(true);
    expect(needsDot("t", "e")).toBe(false);
    expect(needsDot("2", "x")).toBe(false);
  });
});

describe("the graph's layout", () => {
  const node = (id: string, x: number | null, y: number | null) => ({ id, label: id, kind: "map" as const, detail: "", role: "", x, y, width: 80, height: 42 });
  const graph = (nodes: Graph["nodes"]): Graph => ({ nodes, edges: [], width: 400, height: 100 });
  it("keeps nodes where they are in a graph that has no positions, and puts new ones below", () => {
    const before = graph([node("a", 50, 40), node("b", 200, 60)]);
    const refused = graph([node("a", null, null), node("b", null, null), node("new", null, null)]);
    const layout = compute([before, refused]);
    expect(refused.nodes.slice(0, 2).map((n) => boxOf(layout, n))).toEqual(before.nodes.map((n) => boxOf(layout, n)));
    const fresh = boxOf(layout, refused.nodes[2]!);
    expect(fresh.y - fresh.height / 2).toBeGreaterThanOrEqual(100);
    expect(layout.height).toBeGreaterThanOrEqual(fresh.y + fresh.height / 2);
    expect(compute([before])).toMatchObject({ width: 400, height: 100 });
  });
  it("makes names as large as their boxes allow when it is zoomed out", () => {
    const box = { x: 0, y: 0, width: 100, height: 42 };
    expect(fittingFont("qk", box, 0.5)).toBe(20);
    expect(fittingFont("s_exp_rolled", box, 0.3) * 0.6 * 12).toBeLessThanOrEqual(100);
  });
});
