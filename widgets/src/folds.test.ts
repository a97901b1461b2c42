import { describe, expect, it } from "vitest";
import { fixture, rawTrace } from "./fixture";
import { type Foldable, hiddenBeside, hiddenBy, loopAround, loopsIn } from "./folds";
import { allGroups, foldedAround, groupsOf } from "./groups";
import { readTrace } from "./record";
import { EMPTY, readView, reduce, shownStops } from "./state";

const lines = (text: string): Foldable[] => text.split("\n").map((line, n) => ({ text: line.replace(/^-/, " "), node: line.trim() ? `n${n}` : "", op: line.startsWith("-") ? "del" : "same" }));
const PROGRAM = lines(`for i in range(4):
    # a
    for j in range(2):
        a = 1

        b = 2
-   removed = 0
    c = 3
out = 1
for k in range(2):
    d = 4`);

describe("loops that fold", () => {
  const loops = loopsIn(PROGRAM);
  it("hold what is nested in them; empty and removed lines end nothing", () => expect([...loops].sort(([a], [b]) => a - b)).toEqual([[0, 7], [2, 5], [9, 10]]));
  it("a loop without lines, a comprehension and a declaration are none", () => expect(loopsIn(lines("for i in range(4):\nx = sum(y for y in z)\n  input q").map((l) => ({ ...l }))).size).toBe(0));
  it("a folded loop hides its lines, an inner one only its own", () => {
    expect([...hiddenBy(PROGRAM, loops, new Set(["n2"])).keys()]).toEqual([3, 4, 5]);
    expect([...new Set(hiddenBy(PROGRAM, loops, new Set(["n0", "n2"])).values())]).toEqual([0]);
  });
  it("the loop around a line is the innermost", () => expect([0, 3, 7, 8].map((n) => loopAround(loops, n))).toEqual([0, 2, 0, -1]));
});

describe("steps that fold", () => {
  const many = (count: number, first: number) =>
    Array.from({ length: count }, (_, n) => ({ ...rawTrace.steps[2]!, index: first + n }));
  const doc = readTrace({ ...rawTrace, steps: [...rawTrace.steps.slice(0, 2), ...many(3, 2), { ...rawTrace.steps[2]!, index: 5, primitive: "bind", template: "" }] });
  it("those of a template are one, a run of one primitive in it is one, and a step with phases", () => {
    expect(allGroups(doc).map((g) => `${g.kind} ${g.id} ${g.count}`)).toEqual(["template template:by_hand@1 4", "step step:1 3", "run run:set_scope@2 3"]);
    expect(groupsOf(doc).map((g) => g.kind)).toEqual(["stop", "template", "stop"]);
  });
  it("two steps of one primitive are no run, and without a template there is no group of one", () => {
    expect(allGroups(fixture()).map((g) => g.kind)).toEqual(["template", "step"]);
    const bare = readTrace({ ...rawTrace, steps: rawTrace.steps.map((s) => ({ ...s, template: "" })) });
    expect(allGroups(bare).map((g) => g.kind)).toEqual(["step"]);
  });
  it("a folded group is one stop: what it leads to", () => {
    const view = reduce(EMPTY, { type: "fold", ids: ["template:by_hand@1"], on: true }, doc);
    const keys = shownStops(view, doc).map((s) => s.key);
    expect(keys.slice(0, 3)).toEqual(["0.definition", "4.set_scope", "5.set_scope"]);
    expect(reduce(view, { type: "move", by: "next" }, doc)).toMatchObject({ step: 4, phase: "set_scope" });
    expect(foldedAround(doc, view.folded, doc.byKey.get("1.naive")!)?.id).toBe("template:by_hand@1");
    // The current stop stays, wherever it is.
    expect(shownStops({ ...view, step: 1, phase: "naive" }, doc).map((s) => s.key)).toContain("1.naive");
    expect(shownStops({ ...view, panes: { quiet: "hide" } }, doc).map((s) => s.key)).toContain("4.set_scope");
  });
  it("what is folded is a part of the view", () => {
    const view = reduce(EMPTY, { type: "fold", ids: ["a", "b"], on: true }, doc);
    expect(reduce(view, { type: "fold", ids: ["a"], on: false }, doc).folded).toEqual(["b"]);
    expect(reduce(view, { type: "fold", ids: ["b"], on: true }, doc)).toBe(view);
    expect(readView({ folded: ["x"] }, EMPTY, []).folded).toEqual(["x"]);
    expect(readView({ folded: [1] }, view, []).folded).toEqual(["a", "b"]);
  });
});

describe("folds of two programs side by side", () => {
  const gap: Foldable = { text: "", node: "", op: "same", gap: true };
  // On the right the loop has one line less, and one line follows it there alone.
  const left = [...lines("for i in range(4):\n    a = 1\n    b = 2\nc = 3"), gap];
  const right = [...lines("for i in range(4):\n    a = 1"), gap, ...lines("c = 3\nd = 4")];
  const hidden = (side: Foldable[], ids: string[]) => hiddenBy(side, loopsIn(side), new Set(ids));
  it("hide what neither side shows", () => {
    const { gone, blankA, blankB } = hiddenBeside(left, hidden(left, ["n0"]), right, hidden(right, ["n0"]));
    expect([[...gone], blankA.size, blankB.size]).toEqual([[1, 2], 0, 0]);
  });
  it("leave a blank where the other side shows its line", () => {
    const { gone, blankA, blankB } = hiddenBeside(left, hidden(left, ["n0"]), right, new Map());
    expect([[...gone], [...blankA], blankB.size]).toEqual([[2], [1], 0]);
  });
});
