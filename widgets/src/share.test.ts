import { describe, expect, it } from "vitest";
import { fixture } from "./fixture";
import { readHash, viewAt, writeHash } from "./share";
import { EMPTY } from "./state";
import { viewHistory } from "./view_history";

describe("the address of a page", () => {
  const at = { step: "1.naive", selection: ["store:s_sum", "loop:b.h@s,um", "tile:a/b&c=d"] };
  it("says where one is, and is read again", () => {
    const hash = writeHash("", 1, at);
    expect(hash).toBe("#step=1.naive&select=store:s_sum,loop:b.h@s%2Cum,tile:a/b%26c%3Dd");
    expect(readHash(hash, 1)).toEqual(at);
  });
  it("keeps what other explorers, and the page itself, have there", () => {
    const both = writeHash(writeHash("#top", 1, at), 2, { step: "triton", selection: [] });
    expect(readHash(both, 1)).toEqual(at);
    expect(readHash(both, 2)).toEqual({ step: "triton", selection: [] });
    expect(both.startsWith("#top&step=1.naive")).toBe(true);
    expect(readHash(writeHash(both, 1, { step: "0.definition", selection: [] }), 2)).toEqual({ step: "triton", selection: [] });
  });
  it("says nothing where there is nothing, and nothing harmful where it is broken", () => {
    expect(readHash("", 1)).toBeNull();
    expect(readHash("#elsewhere", 1)).toBeNull();
    expect(readHash("#step=%E0%A4%A&select=%,a", 1)).toEqual({ step: "", selection: ["a"] });
  });
  it("leads to a stop of the record; a stop that is not there leads nowhere", () => {
    const doc = fixture();
    expect(viewAt(EMPTY, at, doc)).toMatchObject({ step: 1, phase: "naive", selection: at.selection });
    expect(viewAt(EMPTY, { step: "9.none", selection: [] }, doc)).toBe(EMPTY);
    expect(viewAt(EMPTY, null, doc)).toBe(EMPTY);
  });
});

describe("what was shown before", () => {
  const step = (n: number) => ({ ...EMPTY, step: n });
  it("comes back, and forward again", () => {
    const past = viewHistory();
    past.left(step(0), step(1), 0);
    past.left(step(1), step(2), 1000);
    expect(past.undo(step(2))).toEqual(step(1));
    expect(past.undo(step(1))).toEqual(step(0));
    expect(past.undo(step(0))).toBeNull();
    expect(past.redo(step(0))).toEqual(step(1));
    past.left(step(1), step(5), 2000);
    expect(past.redoable()).toBe(false);
  });
  it("takes what happens at once as one change, and leaves sizes alone", () => {
    const past = viewHistory();
    past.left(step(0), step(1), 0);
    past.left(step(1), { ...step(1), selection: ["a"] }, 10);
    past.left(step(1), { ...step(1), sizes: { rail: 200 } }, 5000);
    expect(past.undo({ ...step(1), sizes: { rail: 200 } })).toEqual({ ...step(0), sizes: { rail: 200 } });
    expect(past.undoable()).toBe(false);
  });
});
