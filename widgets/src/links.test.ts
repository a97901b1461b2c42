import { describe, expect, it } from "vitest";
import { fixture, rawTrace } from "./fixture";
import { indexLinks, relate } from "./links";
import { type Trace, readTrace, stopName } from "./record";

const doc = fixture();
const index = indexLinks(doc);
const from = (ids: string[], key: string) => {
  const r = relate(doc, index, ids, doc.byKey.get(key)!);
  return Object.fromEntries((["definition", "loops", "htile", "triton", "blocks"] as const).map((k) => [k, [...r[k]].sort()]));
};

describe("what belongs together", () => {
  it("a loop line: up to the definition, down to HTile, Triton and the graph", () =>
    expect(from(["store:s_sum"], "1.repaired")).toEqual({
      definition: ["def:s_sum"], loops: ["name:s_sum", "store:s_sum"], htile: ["tile:s_sum"], triton: ["triton:3"], blocks: ["s_sum"],
    }));
  it("a line of Triton: all the way up, and nothing sideways", () =>
    expect(from(["triton:2"], "1.repaired")).toEqual({
      definition: ["def:s_max"], loops: ["name:s_max", "store:s_max"], htile: ["tile:s_max"], triton: ["triton:2"], blocks: ["s_max"],
    }));
  it("a line of HTile", () => {
    const r = from(["tile:s_sum"], "1.naive");
    expect([r.triton, r.definition, r.blocks]).toEqual([["triton:3"], ["def:s_sum"], ["s_sum"]]);
    expect(r.loops).toContain("store:s_sum");
  });
  it("a line of the definition: everything that came of it", () => {
    const r = from(["def:s_sum"], "1.repaired");
    expect([r.htile, r.triton, r.blocks]).toEqual([["tile:s_sum"], ["triton:3"], ["s_sum"]]);
  });
  it("a node of the graph", () => expect(from(["graph:s_max"], "0.definition").triton).toEqual(["triton:2"]));
  it("an input, which has no line: the lines that name it", () => {
    const r = from(["graph:x"], "0.definition");
    expect(r.loops).toEqual(["store:s_exp", "store:s_max", "store:s_sum"]);
    expect(r.triton).toEqual(["triton:2"]);
    expect(r.blocks).toContain("x");
  });
  it("a line that the last program no longer has: through its stage of the definition", () => {
    const r = from(["store:s_exp"], "0.definition");
    expect([r.definition, r.triton]).toEqual([["def:s_sum"], ["triton:3"]]);
  });
  it("nothing for nothing, and for ids from elsewhere", () => {
    expect(relate(doc, index, [], doc.stops[0]!).empty).toBe(true);
    expect(relate(doc, index, ["store:nowhere", "triton:99", "cell:value:a@0"], doc.stops[0]!).empty).toBe(true);
  });
});

describe("the record", () => {
  it("puts pooled lines back and knows what changes nothing", () => {
    expect(doc.byKey.get("1.repaired")!.lines.map((l) => l.text)).toContain("    s = exp(m0 - m) * s + exp(x[j] - m)");
    expect(doc.stops.filter((s) => s.quiet).map((s) => s.key)).toEqual(["2.set_scope"]);
    expect(doc.steps[1]!.call).toBe("rolling_update(s_sum, s_max.j)");
  });
  it("refuses another schema, and a line that is not there", () => {
    expect(() => readTrace({ ...rawTrace, schema: 1 } as unknown as Trace)).toThrow(/schema 1/);
    expect(() => readTrace({ ...rawTrace, lines: [] })).toThrow(/line 0/);
  });
  it("keeps a refused step, with the program as it was", () => {
    const refused = { index: 3, primitive: "fuse", arguments: { block: "q" }, summary: "", phases: [], error: "there is no block 'q'", template: "" };
    const d = readTrace({ ...rawTrace, steps: [...rawTrace.steps, refused] });
    const stop = d.byKey.get("3.refused")!;
    expect(stop.error).toBe("there is no block 'q'");
    expect(stop.lines).toBe(d.byKey.get("2.set_scope")!.lines);
    expect(d.program).toBe(stop.lines);
  });
  it("tells a refused step from the one in its place, which has its number", () => {
    const fused = { ...rawTrace.steps[1]!, error: "cannot be repaired" };
    const d = readTrace({ ...rawTrace, steps: [rawTrace.steps[0]!, fused, ...rawTrace.steps.slice(1)] });
    const names = d.stops.map(stopName);
    expect(new Set(names).size).toBe(names.length);
    expect(new Set(d.stops.map((s) => s.key)).size).toBe(d.stops.length);
    expect(names).toContain("1 a · naive");
    expect(names).toContain("refused a · naive");
    expect(d.byKey.get("1.naive")!.refused).toBe(false);
  });
});
