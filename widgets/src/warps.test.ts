// Simulated steps of warps: what is said of them, and what lights with the selection.

import { describe, expect, it } from "vitest";
import { fixture } from "./fixture";
import { type Timeline, eventAt, litEvents, sentence, timelineIn, waiting } from "./warps";

const doc = fixture();
const timeline: Timeline = {
  steps: 10, limit: 600, copy: 6, product: 6,
  groups: [
    { name: "consumer 0", warps: 4, events: [["wait", 0, 7, [2], { step: 6, group: "producer", lines: [3] }], ["compute", 7, 9, [3, 2], null], ["wait", 9, 10, [1], null]], flights: [] },
    { name: "producer", warps: 1, events: [["copy", 0, 1, [3], null]], flights: [["copy", 0, 6, [3]]] },
  ],
};

describe("an event", () => {
  it("is told with its steps, its line, and for whom it waits", () => {
    expect(sentence(timeline, 0, 0, doc)).toBe("consumer 0 · steps 0 to 6: waits for producer's step, until 6 (line 3) · line 2: m = tl.max(x)");
    expect(sentence(timeline, 0, 1, doc)).toBe("consumer 0 · steps 7 to 8: computes · line 3: s = repair * s + tl.sum(e)");
    expect(sentence(timeline, 0, 2, doc)).toBe("consumer 0 · step 9: need not wait · line 1: import triton");
    expect(sentence(timeline, 1, 0, doc)).toContain("producer · step 0: starts a copy");
  });
  it("lights with any line that it comes from", () => {
    expect([...litEvents(timeline.groups[0]!, new Set(["triton:2"]))]).toEqual([0, 1]);
    expect([...litEvents(timeline.groups[0]!, new Set())]).toEqual([]);
  });
  it("is found by a step, or is the last", () => {
    expect([0, 6, 7, 8, 9, 50].map((step) => eventAt(timeline.groups[0]!, step))).toEqual([0, 0, 1, 1, 2, 2]);
  });
});

describe("a group", () => {
  it("waits only while it stands still", () => {
    expect(timeline.groups.map(waiting)).toEqual([60, 0]);
    expect(waiting({ name: "x", warps: 1, events: [], flights: [] })).toBe(0);
  });
});

describe("a timeline", () => {
  it("is taken only from what has groups", () => {
    expect([timelineIn(timeline), timelineIn(null), timelineIn({ error: "no" })]).toEqual([timeline, null, null]);
  });
});
