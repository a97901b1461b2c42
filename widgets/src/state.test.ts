import { describe, expect, it } from "vitest";
import { answered, asked, change, started } from "./edits";
import { fixture } from "./fixture";
import { EMPTY, compared, readView, reduce, shownStops, stopOf } from "./state";

const doc = fixture();
const LARGE = ["program", "tags", "graph", "derivation", "code"];
const at = (key: string) => reduce(EMPTY, { type: "go", key }, doc);

describe("walking through the phases", () => {
  it("goes from the first to the last stop, through HTile and Triton, and no further", () => {
    let view = reduce(EMPTY, { type: "move", by: "first" }, doc);
    const seen = [stopOf(view, doc).key];
    for (let n = 0; n < 20; n++) {
      view = reduce(view, { type: "move", by: "next" }, doc);
      if (stopOf(view, doc).key !== seen[seen.length - 1]) seen.push(stopOf(view, doc).key);
    }
    expect(seen).toEqual(["0.definition", "1.naive", "1.repair", "1.repaired", "2.set_scope", "htile.0", "htile.1", "triton"]);
    expect(reduce(view, { type: "move", by: "next" }, doc)).toBe(view);
    expect(stopOf(reduce(view, { type: "move", by: "back" }, doc), doc).key).toBe("htile.1");
  });
  it("hands the proof of a pass to its stop", () => {
    expect(doc.byKey.get("htile.0")!.proof).toEqual([]);
    expect(doc.byKey.get("htile.1")!.proof).toEqual(["the loop over j0 in 0 .. 4 becomes interior 0 .. i0", "  s_sum = s_sum"]);
  });
  it("leaves out what changes nothing, but never what is looked at", () => {
    const hide = reduce(at("1.repaired"), { type: "tab", slot: "quiet", tab: "hide" }, doc);
    expect(stopOf(reduce(hide, { type: "move", by: "next" }, doc), doc).key).toBe("htile.0");
    const quiet = reduce(hide, { type: "go", key: "2.set_scope" }, doc);
    expect(shownStops(quiet, doc).map((s) => s.key)).toContain("2.set_scope");
  });
  it("ignores a stop that is not there", () => expect(reduce(EMPTY, { type: "go", key: "9.nothing" }, doc)).toBe(EMPTY));
});

describe("selection", () => {
  it("toggles, adds and clears", () => {
    let view = reduce(EMPTY, { type: "select", ids: ["a"] }, doc);
    view = reduce(view, { type: "select", ids: ["b"], add: true }, doc);
    expect(view.selection).toEqual(["a", "b"]);
    view = reduce(view, { type: "select", ids: ["a"], add: true }, doc);
    expect(view.selection).toEqual(["b"]);
    expect(reduce(view, { type: "select", ids: ["b"] }, doc).selection).toEqual([]);
    expect(reduce(view, { type: "clear" }, doc).selection).toEqual([]);
  });
});

describe("comparing", () => {
  it("compares with the stop before unless told", () => {
    const view = reduce(at("1.repaired"), { type: "compare" }, doc);
    const pair = compared(view, doc)!;
    expect([pair.left.key, pair.right.key]).toEqual(["1.repair", "1.repaired"]);
    const chosen = compared(reduce(view, { type: "compare", left: "0.definition" }, doc), doc)!;
    expect([chosen.left.key, chosen.right.key]).toEqual(["0.definition", "1.repaired"]);
    expect(compared(reduce(view, { type: "compareOff" }, doc), doc)).toBeNull();
  });
});

describe("panes", () => {
  it("hides and shows, and never hides everything", () => {
    let view = EMPTY;
    for (const slot of ["program", "tags", "graph", "derivation"]) view = reduce(view, { type: "hide", slot, large: LARGE }, doc);
    expect(view.hidden).toHaveLength(4);
    expect(reduce(view, { type: "hide", slot: "code", large: LARGE }, doc)).toBe(view);
    expect(reduce(view, { type: "hide", slot: "rail", large: LARGE }, doc).hidden).toHaveLength(5);
    expect(reduce(view, { type: "show", slot: "tags" }, doc).hidden).toEqual(["program", "graph", "derivation"]);
    expect(reduce(view, { type: "show", slot: "code" }, doc)).toBe(view);
  });
});

describe("a view from a file", () => {
  it("comes back as it was saved", () => {
    const view = { ...at("1.naive"), selection: ["store:s"], sizes: { rail: 200 }, compare: { left: "", right: "" }, hidden: ["tags"] };
    expect(readView(JSON.parse(JSON.stringify(view)), EMPTY, LARGE)).toEqual(view);
  });
  it("takes nothing of the wrong type", () => {
    const bad = { step: "1", phase: 4, panes: { a: 1, b: "x" }, selection: [1], compare: 3, search: {}, iteration: -1, hidden: ["tags", "nonsense"], sizes: { a: "9", b: -1, c: 5 }, __proto__: { x: 1 } };
    expect(readView(bad, EMPTY, LARGE)).toEqual({ ...EMPTY, panes: { b: "x" }, hidden: ["tags"], sizes: { c: 5 } });
    for (const data of [null, 4, "x", [], undefined]) expect(readView(data, EMPTY, LARGE)).toBe(EMPTY);
  });
});

describe("edits", () => {
  const steps = [{ primitive: "a", arguments: { x: 1 } }, { primitive: "b", arguments: {} }, { primitive: "c", arguments: {} }];
  const names = (s: { primitive: string }[]) => s.map((x) => x.primitive).join("");
  it("inserts, removes, moves and sets", () => {
    expect(names(change(steps, { type: "insert", index: 1, step: { primitive: "n", arguments: {} } }))).toBe("anbc");
    expect(names(change(steps, { type: "remove", index: 1 }))).toBe("ac");
    expect(names(change(steps, { type: "move", from: 0, to: 2 }))).toBe("bca");
    expect(change(steps, { type: "move", from: 0, to: 3 })).toBe(steps);
    expect(change(steps, { type: "set", index: 0, name: "x", value: 2 })[0]!.arguments).toEqual({ x: 2 });
    expect(change(steps, { type: "set", index: 0, name: "x", value: undefined })[0]!.arguments).toEqual({});
    expect(change(steps, { type: "set", index: 0, name: "x", value: 1 })).toBe(steps);
    expect(steps[0]!.arguments).toEqual({ x: 1 });
  });
  it("drops answers that were superseded", () => {
    let edits = asked(started(steps), 4);
    edits = asked(edits, 5);
    expect(answered(edits, 4, null, null)).toBeNull();
    const done = answered(edits, 5, null, { message: "no" })!;
    expect(done.busy).toBe(false);
    expect(done.error?.message).toBe("no");
    expect(done.steps).toBe(steps);
  });
});
