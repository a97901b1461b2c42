import { describe, expect, it } from "vitest";
import { fixture, rawTrace } from "./fixture";
import { indexLinks, relate } from "./links";
import { type Trace, readTrace } from "./record";
import { storyOf } from "./story";

const copy = (): Trace => JSON.parse(JSON.stringify(rawTrace)) as Trace;

describe("the story of a record", () => {
  it("has five stops where a fusion is repaired, each at a stop of the record", () => {
    const doc = fixture();
    const story = storyOf(doc);
    expect(story.map((s) => [s.part, s.key])).toEqual([
      ["definition", "0.definition"],
      ["wrong", "1.naive"],
      ["why", "1.repair"],
      ["right", "1.repaired"],
      ["kernel", "triton"],
    ]);
    for (const stop of story) expect(doc.byKey.has(stop.key)).toBe(true);
  });
  it("lights something in every stop, and the repaired line where it is right", () => {
    const doc = fixture();
    const index = indexLinks(doc);
    for (const stop of storyOf(doc)) expect(relate(doc, index, stop.select, doc.byKey.get(stop.key)!).empty).toBe(false);
    expect(storyOf(doc)[3]!.select).toEqual(["store:s_sum"]);
    expect(storyOf(doc)[4]).toMatchObject({ select: ["triton:3"], marks: "the lines of s_sum" });
  });
  it("names the first reductions of many, and counts the others", () => {
    const trace = copy();
    const graph = trace.steps[0]!.phases[0]!.graph!;
    const more = Array.from({ length: 20 }, (_, n) => ({ ...graph.nodes.find((x) => x.kind === "reduce")!, id: `r${n}` }));
    graph.nodes = [...more, ...graph.nodes];
    expect(storyOf(readTrace(trace))[0]!.text).toMatch(/^r0, r1, r2, r3 and \d+ more are reductions/);
  });
  it("says who reads what too early, and h", () => {
    const [definition, wrong, why] = storyOf(fixture());
    expect(definition!.text).toContain("The terms of s_sum need s_max");
    expect(wrong!.text).toContain("s_sum reads s_max as it is so far");
    expect(why!.text).toContain("h = t*exp(m - m')");
  });
  it("tells the same of a loop that has one iteration, where nothing is wrong", () => {
    const trace = copy();
    const [naive] = trace.steps[1]!.phases;
    expect(naive!.key).toBe("naive");
    for (const phase of trace.steps[1]!.phases) {
      phase.wrong = false;
      for (const edge of phase.graph?.edges ?? []) if (edge.kind === "early") edge.kind = "fused";
    }
    trace.steps[1]!.arguments = { ...trace.steps[1]!.arguments, block: "s_sum", loop: "x.j" }; // the loop may have been begun by another reduction than the one that is repaired
    const story = storyOf(readTrace(trace));
    expect(story.map((s) => s.title)).toEqual(["Definition", "Fused", "Why", "Repaired: right", "Kernel"]);
    expect(story[0]!.text).toContain("The terms of s_sum need s_max");
    expect(story[1]!.text).toContain("the loop has one iteration: s_max is complete when it is read");
  });
  it("names the loop's reduction where a vector repair shows no read of it", () => {
    const trace = copy();
    for (const phase of trace.steps[1]!.phases) {
      phase.wrong = false;
      for (const edge of phase.graph?.edges ?? []) if (edge.kind !== "plain") edge.kind = "fused";
    }
    trace.steps[1]!.arguments = { block: "s_sum", loop: "s_max.j" };
    const story = storyOf(readTrace(trace));
    expect(story[0]!.text).toContain("The terms of s_sum need s_max, ");
    expect(story[1]!.text).toContain("s_sum moves into the loop of s_max.");
  });
  it("tells why a repair is refused", () => {
    const trace = copy();
    const [step] = trace.steps.slice(1, 2);
    step!.phases[1]!.derivation = { ...step!.phases[1]!.derivation!, accepted: false, summary: "h depends on the term" };
    step!.phases.pop();
    trace.kernel = null;
    trace.steps = trace.steps.slice(0, 2);
    const story = storyOf(readTrace(trace));
    expect(story.map((s) => s.part)).toEqual(["definition", "wrong", "why"]);
    expect(story[2]!.title).toBe("Why not");
    expect(story[2]!.text).toContain("h depends on the term");
  });
  it("speaks of splits where the reduction is split", () => {
    const trace = copy();
    trace.steps[1]!.primitive = "split_k_update";
    const [, wrong, why, right] = storyOf(readTrace(trace));
    expect(wrong!.text).toContain("reads the s_max of that split alone");
    expect(why!.text).toMatch(/that the .* of all splits gives/);
    expect(right!.text).toContain("as it combines them");
  });
  it("prefers a fusion that is repaired to one that was refused before it", () => {
    const trace = copy();
    const refused = JSON.parse(JSON.stringify(trace.steps[1])) as Trace["steps"][number];
    refused.primitive = "remark";
    refused.arguments = { text: "s_sum starts a loop of its own" };
    refused.phases.pop();
    refused.phases[1]!.derivation!.accepted = false;
    trace.steps.splice(1, 0, refused);
    trace.steps.forEach((s, n) => (s.index = n));
    expect(storyOf(readTrace(trace)).map((s) => s.key)).toEqual(["0.definition", "2.naive", "2.repair", "2.repaired", "triton"]);
  });
  it("leaves out what nothing repairs", () => {
    const trace = copy();
    trace.steps[1]!.phases = trace.steps[1]!.phases.slice(2);
    expect(storyOf(readTrace(trace)).map((s) => s.part)).toEqual(["definition", "right", "kernel"]);
    trace.steps = trace.steps.slice(0, 1);
    trace.kernel = null;
    expect(storyOf(readTrace(trace))).toEqual([]);
  });
});
