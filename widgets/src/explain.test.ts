import { TERMS } from "glossary:terms";
import { describe, expect, it } from "vitest";
import { explain } from "./explain";
import glossary from "../../docs/glossary.md?raw";
import words from "./explain_words.ts?raw";
import { ofBlock, ofCalls, ofLoop, ofTile, ofWords, temporaryOf } from "./explain_words";
import { fixture, rawTrace } from "./fixture";
import { historyOf } from "./history";
import { indexLinks } from "./links";
import { type Graph, readTrace } from "./record";

const doc = fixture();
const index = indexLinks(doc);
const at = (key: string) => doc.byKey.get(key)!;
const of = (id: string, key: string, text = "") => explain(doc, index, id, at(key), text);

describe("which step made a line", () => {
  const keys = (id: string, kind: "loops" | "htile", last?: string) => historyOf(doc, id, kind, last ? at(last) : null).map((c) => `${c.how} ${c.stop.key}`);
  it("names what made and what changed it", () => expect(keys("store:s_sum", "loops")).toEqual(["made 0.definition", "changed 1.repaired"]));
  it("says nothing of later steps", () => expect(keys("store:s_sum", "loops", "1.naive")).toEqual(["made 0.definition"]));
  it("of a line that a pass made", () => expect(keys("tile:s_sum", "htile")).toEqual(["made htile.1"]));
  it("a line that is nested deeper was moved", () => {
    const lines = rawTrace.lines.map((l) => [...l]) as typeof rawTrace.lines;
    lines.push(["store:s_max", "        m = max(m, x[j])", "s_max", "store", ["def:s_max"]]);
    const steps = structuredClone(rawTrace.steps);
    steps[1]!.phases[0]!.program = [6, lines.length - 1, 7, 5];
    expect(historyOf(readTrace({ ...rawTrace, lines, steps }), "store:s_max", "loops").map((c) => c.how)).toEqual(["made", "moved", "moved"]);
  });
});

describe("a line explained", () => {
  it("a repaired reduction: the repair, its derivation and rule", () => {
    const e = of("store:s_sum", "1.repaired", "    s = exp(m0 - m) * s + exp(x[j] - m)");
    expect(e.sentences.join(" ")).toContain("corrects what was folded with an old value of s_max");
    expect(e.definition).toEqual(["s = sum(exp(x[j] - m) for j in range(4))"]);
    expect(e.repair?.stop.key).toBe("1.repair");
    expect(e.repair?.summary).toBe("h = t*exp(m - m')");
    expect(e.history.map((c) => c.stop.key)).toEqual(["0.definition", "1.repaired"]);
    expect(e.places.map((p) => [p.stage, p.numbers])).toEqual([["Definition", [2]], ["Loops", [3, 4]], ["HTile", [3]], ["Kernel code", [3]]]);
    expect(e.terms).toContain("repair term");
  });
  it("the naive phase is wrong, and has no repair yet", () => {
    const e = of("store:s_sum", "1.naive");
    expect(e.sentences.join(" ")).toContain("It reads s_max before that is complete");
    expect(e.repair).toBeNull();
  });
  it("a line of the source, through its statement", () => {
    const e = of("triton:3", "triton");
    expect(e.repair?.stop.key).toBe("1.repair");
    expect(e.history.map((c) => c.stop.key)).toEqual(["0.definition", "1.repaired", "htile.1"]);
  });
  it("a line that belongs to nothing says so", () => {
    const e = of("triton:1", "triton");
    expect([e.sentences.length, e.definition, e.places, e.history, e.repair]).toEqual([1, [], [], [], null]);
    expect(of("machine:7", "triton").sentences).toEqual([]);
  });
  it("the rolling loop, by the step's argument", () => expect(of("loop:j", "1.repaired").sentences).toContain("This is the rolling loop of s_sum: each iteration updates what the iterations before it have folded."));
});

describe("what a statement does", () => {
  const graph = (role: string, kind: "map" | "reduce" = "map"): Graph => ({
    nodes: [
      { id: "a", label: "a", kind: "map", detail: "map", role: role === "global" ? "local" : "", x: null, y: null, width: null, height: null },
      { id: "b", label: "b", kind, detail: kind === "map" ? "map" : "sum over k", role, x: null, y: null, width: null, height: null },
    ],
    edges: [{ source: "a", target: "b", tensor: "a", kind: "fused", points: [] }],
    width: null,
    height: null,
  });
  const first = (role: string, kind?: "map" | "reduce") => ofBlock(graph(role, kind), "b", (x) => x)[0]!.text;
  it("by its role", () => {
    expect(first("", "reduce")).toBe("A reduction (sum over k) of values computed from a.");
    expect(first("scan")).toContain("scan buffer");
    expect(first("tile", "reduce")).toContain("one tile (sum over k)");
    expect(first("global", "reduce")).toContain("all parts");
    expect(first("initial")).toContain("identity");
    expect(first("")).toBe("Computes b element by element from a.");
    expect(ofBlock(graph(""), "nothing", (x) => x)).toEqual([]);
  });
  it("by the kind of the node", () => {
    const text = (...args: Parameters<typeof ofTile>) => ofTile(...args).map((w) => w.text).join(" ");
    expect(text("tile:acc/interior", "tile", ["dot", "accumulates", "loads"])).toMatch(/adds the product to the accumulator.*loaded.*interior tiles/);
    expect(text("tile:s/repair/right", "tile", [])).toMatch(/^Computes the repair term.*edge tiles/);
    expect(text("tile:m", "tile", ["max", "mask"])).toMatch(/\(max\)\. A mask/);
    expect(text("for:j0@qk/interior", "for", ["interior"])).toContain("need no mask");
    expect(text("kernel:f", "kernel", [])).toContain("launched once");
    expect([temporaryOf("tile:s/repair/interior"), temporaryOf("tile:s/interior"), temporaryOf("tile:s#2"), temporaryOf("tile:s/finite#2")]).toEqual(["repair", "", "", "finite"]);
  });
  it("by its calls", () => {
    expect(ofCalls("k = tl.load(p + tl.arange(0, 64))").prepares.map((w) => w.text)).toHaveLength(2);
    expect(ofCalls("tl.store(p + tl.arange(0, 4), x)").prepares).toEqual([]);
    expect(ofCalls("x = y  # tl.dot(").computes).toEqual([]);
  });
  it("of a loop: its iterations, its axis of the grid, what it reduces", () => {
    const words = ofLoop("    for i, k in grid(4, 8):  # blockIdx.x", new Map(), ["b"], graph("", "reduce"));
    expect(words.map((w) => w.text)).toEqual(["Loops over i (4) and k (8).", "Its iterations are program instances of the grid: they run in parallel.", "The loops of b, which is reduced over k."]);
  });
});

describe("terms", () => {
  it("are those of docs/glossary.md, whole", () => {
    const heads = [...glossary.matchAll(/^## (.+)$/gm)].map((m) => m[1]!);
    expect(Object.keys(TERMS)).toEqual(heads);
    for (const [name, text] of Object.entries(TERMS)) expect(text, name).toMatch(/\S/);
  });
  it("every term that an explanation names has an entry", () => {
    const calls = words.replaceAll(/has\("\w+"\)/g, "").matchAll(/say\((?:"[^"]*"|`(?:[^`])*`)((?:, (?:\.\.\.\(.*?\)|"[^"]*"))+)\)/g);
    const named = [...calls].flatMap((m) => [...m[1]!.matchAll(/"([^"]*)"/g)].map((x) => x[1]!));
    expect(named.length).toBeGreaterThan(40);
    expect(named.filter((name) => !(name in TERMS))).toEqual([]);
    expect(ofWords(["mask", "guard"]).flatMap((w) => w.terms)).toEqual(["mask", "guard"]);
  });
});
