import { describe, expect, it } from "vitest";
import { diffLines } from "./diff";
import { fixture } from "./fixture";
import { clearPlace } from "./graph_draw";
import { FOLDED_FROM, shownWith, toggled, unfoldedOf, written } from "./graph_folds";
import { type Group, type Groups, groupsOf, ordered, prefixOf, runsOf } from "./graph_groups";
import { contentOf, foldedScene, groupId } from "./graph_scene";
import { place } from "./layers";
import { unpacked } from "./parts";
import type { EdgeKind, Graph, GraphEdge, GraphNode } from "./record";

const node = (id: string, kind: GraphNode["kind"] = "map"): GraphNode => ({ id, label: id, kind, detail: "", role: "", x: null, y: null, width: null, height: null });
const edge = (source: string, target: string, kind: EdgeKind = "plain"): GraphEdge => ({ source, target, tensor: source, kind, points: [] });
const graph = (nodes: GraphNode[], edges: GraphEdge[]): Graph => ({ nodes, edges, width: null, height: null });

/** Layers of six, each reading the one before. */
function layers(count: number): Graph {
  const nodes = [node("x", "input")];
  const edges: GraphEdge[] = [];
  for (let n = 0; n < count; n++) {
    const before = n ? `l${n - 1}_out` : "x";
    for (const part of ["max", "exp", "sum", "p", "gate", "out"]) nodes.push(node(`l${n}_${part}`));
    edges.push(edge(before, `l${n}_max`), edge(before, `l${n}_exp`), edge(`l${n}_max`, `l${n}_exp`), edge(`l${n}_exp`, `l${n}_sum`), edge(`l${n}_sum`, `l${n}_p`), edge(`l${n}_p`, `l${n}_gate`), edge(`l${n}_gate`, `l${n}_out`));
  }
  return graph(nodes, edges);
}
/** A chain of names that tell nothing. */
const chain = (count: number): Graph => {
  const ids = Array.from({ length: count }, (_, n) => `v${String.fromCharCode(97 + (n % 26))}${n}`);
  return graph(ids.map((id) => node(id)), ids.slice(1).map((id, n) => edge(ids[n]!, id)));
};
const ofGraph = (g: Graph): Groups => groupsOf(g, g, new Map());
const size = (children: readonly (Group | string)[]): number => children.reduce((n, child) => n + (typeof child === "string" ? 1 : size(child.children)), 0);

describe("groups of a graph", () => {
  it("are the layers by name, and layers of these", () => {
    const groups = ofGraph(layers(240));
    expect(groups.top.length).toBeLessThanOrEqual(18);
    const leaf = groups.of.get("l7_sum")!;
    expect(leaf.label).toBe("l7");
    expect(leaf.children).toEqual(["l7_max", "l7_exp", "l7_sum", "l7_p", "l7_gate", "l7_out"]);
    expect(leaf.parent!.label).toMatch(/^l\d+ … l\d+$/);
    expect(size(groups.top)).toBe(1441);
  });
  it.each([40, 400, 1500])("of %i names that tell nothing are few, and each node is in one", (count) => {
    const groups = ofGraph(chain(count));
    expect(groups.top.length).toBeLessThanOrEqual(18);
    for (const g of groups.all.values()) expect(g.children.length).toBeLessThanOrEqual(30);
    expect(size(groups.top)).toBe(count);
  });
  it("never read in a circle", () => {
    const g = layers(40);
    const groups = ofGraph(g);
    const at = new Map(groups.top.map((child, n) => [child, n]));
    const top = (id: string) => {
      let found: Group | null = groups.of.get(id) ?? null;
      while (found?.parent) found = found.parent;
      return at.get(found ?? id)!;
    };
    for (const e of g.edges) expect(top(e.source)).toBeLessThanOrEqual(top(e.target));
  });
  it("take in the blocks that steps made, by their stage or their neighbours", () => {
    const start = layers(12);
    const union = graph([...start.nodes, node("l3_sum_initial"), node("tmp")], [...start.edges, edge("tmp", "l5_max")]);
    const groups = groupsOf(start, union, new Map([["l3_sum_initial", "l3_sum"]]));
    expect(groups.of.get("l3_sum_initial")!.label).toBe("l3");
    expect(groups.of.get("tmp")!.label).toBe("l5");
    expect(groups.of.get("tmp")!.nodes).toContain("tmp");
  });
  it("leave an input that many groups read by itself", () => {
    const start = layers(12);
    const union = graph([...start.nodes, node("mask", "input")], [...start.edges, ...[1, 4, 7, 9].map((n) => edge("mask", `l${n}_p`))]);
    const groups = ofGraph(union);
    expect(groups.of.get("mask")).toBe(null);
    expect(groups.top).toContain("mask");
  });
  it("are ordered behind what they read, circles or not", () => {
    const g = graph([node("a"), node("b"), node("c")], [edge("a", "b"), edge("b", "c"), edge("c", "b")]);
    expect(new Set(ordered(g.nodes, g.edges.map((e) => [e.source, e.target] as const)))).toEqual(new Set(["a", "b", "c"]));
    expect(["l3_max", "layer.12.attn", "s_sum", "qk", "x17"].map(prefixOf)).toEqual(["l3", "layer.12", "s", "", ""]);
    expect(runsOf(12, [0, 9, 9, 9, 9, 0, 9, 9, 9, 9, 9, 9], 3, 8)).toEqual([0, 5]);
  });
});

describe("a folded graph", () => {
  const g = layers(240);
  const groups = ofGraph(g);
  it("shows groups and what leads between them, each link once with the worst kind in it", () => {
    const scene = foldedScene(g, groups, new Set());
    const content = contentOf(scene, g, null, 1);
    expect(content.shapes.length).toBeLessThanOrEqual(18);
    expect(content.links.length).toBeLessThan(40);
    const wrong = graph(g.nodes, g.edges.map((e) => (e.target === "l7_exp" && e.source === "l6_out" ? { ...e, kind: "early" as const } : e.target === "l9_sum" ? { ...e, kind: "repaired" as const } : e)));
    const now = contentOf(foldedScene(g, groups, shownWith(new Set(), groups, ["l7_exp"])), wrong, g, 1);
    const link = now.links.find((l) => l.target === "l7_exp" && l.kind === "early")!;
    expect(link.fresh).toBe(true);
    const inside = content.shapes.length && contentOf(scene, wrong, g, 1).shapes.find((e) => e.shape.id === content.rep("l9_sum"))!;
    expect(inside && inside.inside).toBe("early");
  });
  it("keeps every place from step to step, and leaves out what the phase does not have", () => {
    const scene = foldedScene(g, groups, new Set(groups.all.keys()));
    const less = graph(g.nodes.filter((n) => !n.id.startsWith("l7_")), g.edges);
    const [a, b] = [contentOf(scene, g, null, 1), contentOf(scene, less, g, 1)];
    const boxes = new Map(a.shapes.map((e) => [e.shape.id, e.shape.box]));
    for (const e of b.shapes) expect(e.shape.box).toEqual(boxes.get(e.shape.id));
    expect(b.shapes.some((e) => e.shape.id === "l7_sum")).toBe(false);
    expect(b.rep("l7_sum")).toBe(null);
  });
  it("draws no content of a group that is too small on the screen", () => {
    const scene = foldedScene(g, groups, new Set(groups.all.keys()));
    expect(contentOf(scene, g, null, 1).shapes.length).toBeGreaterThan(1440);
    expect(contentOf(scene, g, null, 0.08).shapes.length).toBeLessThan(300);
  });
  it("has boxes that do not overlap, within frames that hold them", () => {
    const scene = foldedScene(g, groups, shownWith(new Set(), groups, ["l7_exp"]));
    const leaf = groups.of.get("l7_exp")!;
    const frame = scene.shapes.get(groupId(leaf))!;
    expect(frame.open).toBe(true);
    const boxes = leaf.children.map((id) => scene.shapes.get(id as string)!.box);
    for (const [n, a] of boxes.entries()) {
      expect(Math.abs(a.x - frame.box.x)).toBeLessThan((frame.box.width - a.width) / 2);
      for (const b of boxes.slice(0, n)) expect(Math.abs(a.x - b.x) >= (a.width + b.width) / 2 || Math.abs(a.y - b.y) >= (a.height + b.height) / 2).toBe(true);
    }
    expect(scene.width).toBeLessThan(1000);
  });
  it("unfolds and folds as the view says", () => {
    const few = FOLDED_FROM - 1;
    expect(unfoldedOf(undefined, groups, few)).toBe(null);
    expect(unfoldedOf(undefined, groups, 1440)).toEqual(new Set());
    expect(unfoldedOf("0 nonsense", groups, 1440)).toEqual(new Set(["0"]));
    expect(unfoldedOf("all", groups, 1440)!.size).toBe(groups.all.size);
    expect(unfoldedOf("none", groups, few)).toEqual(new Set());
    const one = groups.all.get("0/1")!;
    const open = toggled(toggled(new Set(), groups.all.get("0")!), one);
    expect(written(open)).toBe("0 0/1");
    expect(written(toggled(open, groups.all.get("0")!))).toBe("none");
  });
});

describe("layers", () => {
  it("wrap in rows, and keep parts that hang together", () => {
    const items = Array.from({ length: 20 }, (_, n) => ({ id: `a${n}`, width: 80, height: 40 }));
    const edges = items.slice(1, 10).map((i, n) => [`a${n}`, i.id] as const);
    const placed = place(items, edges, 500);
    expect(placed.width).toBeLessThanOrEqual(500);
    expect(placed.boxes.get("a1")!.x).toBeGreaterThan(placed.boxes.get("a0")!.x);
    expect(placed.boxes.get("a9")!.y).toBeGreaterThan(placed.boxes.get("a0")!.y);
    const boxes = [...placed.boxes.values()];
    for (const [n, a] of boxes.entries()) for (const b of boxes.slice(0, n)) expect(Math.abs(a.x - b.x) >= 80 || Math.abs(a.y - b.y) >= 40).toBe(true);
  });
  it("take a circle", () => {
    const items = ["a", "b", "c"].map((id) => ({ id, width: 10, height: 10 }));
    expect(place(items, [["a", "b"], ["b", "c"], ["c", "a"]]).boxes.size).toBe(3);
    expect(place([], [])).toMatchObject({ width: 0, height: 0 });
  });
});

describe("a record in parts", () => {
  it("unpacks runs of the list before and of the pool", () => {
    expect([...unpacked([0, 2, -8, 2, 4, 1], Int32Array.from([0, 1, 2, 3, 4]))]).toEqual([0, 1, 7, 8, 4]);
    expect(() => unpacked([3, 9], Int32Array.from([1]))).toThrow(/line 12 of 1/);
  });
  it("is whole where it was not sent in parts", () => {
    const doc = fixture();
    expect(doc.complete).toBe(true);
    expect(doc.union().nodes.map((n) => n.id)).toEqual(["x", "s_max", "s_sum"]);
    expect(doc.origins().get("s_exp")).toBe("s_sum");
  });
});

describe("a diff of long programs", () => {
  const line = (text: string, node = text) => ({ node, text, origin: "", kind: "store", refs: [] });
  it("finds the lines that stay, where too much lies between the first change and the last for a whole comparison", () => {
    const a = Array.from({ length: 3000 }, (_, n) => line(`x${n} = f(${n})`));
    const b = a.map((l, n) => (n === 2 || n === 2990 ? line(`y${n} = g(${n})`, l.node) : l));
    b.splice(1500, 0, line("z = new"));
    const rows = diffLines(a, b);
    expect(rows.filter((r) => r.op === "same").length).toBe(2998);
    expect(rows.filter((r) => r.op === "change").map((r) => r.left)).toEqual([2, 2990]);
    expect(rows.filter((r) => r.op === "add").map((r) => r.right)).toEqual([1500]);
  });
  it("gives up on likeness, not on order, where all lines differ", () => {
    const [a, b] = ["a", "b"].map((of) => Array.from({ length: 2500 }, (_, n) => line(`${of}${n}${of} = 1`, `${of}${n}`)));
    const rows = diffLines(a!, b!);
    expect(rows.map((r) => r.left).filter((n) => n !== null)).toEqual(a!.map((_, n) => n));
    expect(rows.map((r) => r.right).filter((n) => n !== null)).toEqual(b!.map((_, n) => n));
  });
});

describe("the words on a link", () => {
  const line = [0, 0, 100, 0, 200, 0, 300, 0];
  const box = (x: number, y: number) => ({ x, y, width: 80, height: 40 });

  it("stand in the middle, above the line, if nothing is there", () => expect(clearPlace(line, 60, [])![0]).toBeCloseTo(150, -2));
  it("leave the nodes in sight", () => {
    for (const boxes of [[box(150, -20)], [box(150, 0)], [box(120, -25), box(180, 25)]]) {
      const [x, y] = clearPlace(line, 60, boxes)!;
      for (const b of boxes) expect(Math.abs(b.x - x) >= (b.width + 60) / 2 || Math.abs(b.y - y) >= b.height / 2).toBe(true);
    }
  });
  it("are left out where there is no room", () => expect(clearPlace(line, 60, [{ x: 150, y: 0, width: 400, height: 90 }])).toBeNull());
});
