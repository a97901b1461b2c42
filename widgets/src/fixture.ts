// A small record for the tests: a sum that is fused under a max, its HTile and its Triton.

import { type Doc, type Graph, type Trace, readTrace } from "./record";

const lines: Trace["lines"] = [
  ["def:s_max", "m = max(x[j] for j in range(4))", "s_max", "definition", []],
  ["def:s_sum", "s = sum(exp(x[j] - m) for j in range(4))", "s_sum", "definition", []],
  ["loop:j@s_max", "for j in range(4):", "s_max", "loop", ["def:s_max"]],
  ["store:s_max", "    m = max(m, x[j])", "s_max", "store", ["def:s_max"]],
  ["loop:j@s_sum", "for j in range(4):", "s_sum", "loop", ["def:s_sum"]],
  ["store:s_sum", "    s += exp(x[j] - m)", "s_sum", "store", ["def:s_sum"]],
  ["loop:j", "for j in range(4):", "", "loop", []],
  ["name:s_sum", "    # s_sum", "s_sum", "comment", ["def:s_sum"]],
  ["store:s_sum", "    s = exp(m0 - m) * s + exp(x[j] - m)", "s_sum", "store", ["def:s_sum"]],
  ["store:s_exp", "e[j] = exp(x[j])", "s_sum", "store", ["def:s_sum"]],
  ["tile:s_max", "m = max(x)", "s_max", "tile", ["store:s_max"]],
  ["tile:s_sum", "s = repair * s + sum(exp(x - m))", "s_sum", "tile", ["store:s_sum"]],
  ["", "program p", "", "", []],
];
const node = (id: string, kind: "input" | "reduce") => ({ id, label: id, kind, detail: "", role: "", x: null, y: null, width: null, height: null });
const graph = (kind: "plain" | "early" | "repaired"): Graph => ({
  nodes: [node("x", "input"), node("s_max", "reduce"), node("s_sum", "reduce")],
  edges: [
    { source: "x", target: "s_max", tensor: "x", kind: "plain", points: [] },
    { source: "s_max", target: "s_sum", tensor: "m", kind, points: [] },
  ],
  width: null,
  height: null,
});
const phase = (key: string, program: number[], kind: "plain" | "early" | "repaired", extra: object = {}) => ({
  key, title: key, note: "", program, graph: graph(kind), derivation: null, wrong: false, ...extra,
});
const derivation = { reducer: "sum", term: "exp(x - m)", steps: [{ title: "Read: f", text: "Read: f\n f(a, b) = a + b", latex: "", mathml: "", ok: true }], accepted: true, summary: "h = t*exp(m - m')" };

export const rawTrace: Trace = {
  operator: { name: "softmax", title: "Softmax", params: {}, inputs: [{ name: "x", shape: [4], dtype: "float32", sizes: [] }], outputs: [], source: "", definition: [0, 1], python: [] },
  steps: [
    { index: 0, primitive: "definition", arguments: {}, summary: "", phases: [phase("definition", [2, 3, 9, 4, 5], "plain")], error: null, template: "" },
    {
      index: 1,
      primitive: "rolling_update",
      arguments: { block: "s_sum", loop: "s_max.j" },
      summary: "",
      phases: [phase("naive", [6, 3, 7, 5], "early", { wrong: true }), phase("repair", [6, 3, 7, 5], "early", { wrong: true, derivation }), phase("repaired", [6, 3, 7, 8], "repaired")],
      error: null,
      template: "by_hand",
    },
    { index: 2, primitive: "set_scope", arguments: { block: "s_sum", scope: "local" }, summary: "", phases: [phase("set_scope", [6, 3, 7, 8], "repaired")], error: null, template: "by_hand" },
  ],
  kernel: {
    name: "softmax",
    htile: [12, 10],
    passes: [{ name: "fold_it", lines: [12, 10, 11], notes: ["the loop over j0 in 0 .. 4 becomes interior 0 .. i0", "  s_sum = s_sum"] }],
    source: "",
    triton: [
      { number: 1, text: "import triton", nodes: [], blocks: [], definition: [] },
      { number: 2, text: "m = tl.max(x)", nodes: ["tile:s_max"], blocks: ["store:s_max"], definition: ["def:s_max"] },
      { number: 3, text: "s = repair * s + tl.sum(e)", nodes: ["tile:s_sum"], blocks: ["store:s_sum"], definition: ["def:s_sum"] },
    ],
    launches: [{}],
    validated: "",
  },
  versions: {},
  command: null,
  schema: 5,
  lines,
};

export const fixture = (): Doc => readTrace(rawTrace);
