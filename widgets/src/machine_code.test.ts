// Machine code as rows, their links, colours and marks; and which rows are drawn.

import { describe, expect, it } from "vitest";
import { fixture } from "./fixture";
import { type MachineCode, type MachineKernel, figures, firstRow, litRows, markOf, nextPlace, pieces, rowsOf } from "./machine_code";
import { ROW, windowOf } from "./machine_listing";

const doc = fixture();
const resources: MachineKernel["resources"] = {
  registers: 132, scalar_registers: 0, local_bytes: 0, shared_bytes: 57344, tensor_memory_columns: 0, warps: 4, threads: 128,
  occupancy: { blocks: 3, warps: 12, most_warps: 64, limits: [["warps", 16], ["registers", 3]], limited_by: ["registers"] },
  counts: { instructions: 3, matrix: [{ name: "HGMMA.64x64x16", count: 2 }], waits: [], barriers: [["BAR.SYNC", 1]], memory: [{ kind: "global load", bytes: 16, count: 4 }, { kind: "spill store", bytes: 4, count: 1 }] },
};
const kernel = (name: string): MachineKernel => ({
  // A helper's line 1, which the record links to nothing, is called from line 3.
  name, grid: [1], text: "head\n  HGMMA R1\n  FADD R2\n  LDG R3\n", frames: [[], [1, 3], [2], [1]], of: [0, 1, 2, 3], kinds: { 1: "matrix", 3: "global load" }, resources,
});
const code = (...names: string[]): MachineCode => ({ target: "sm_90", stage: "sass", kernels: names.map(kernel) });

describe("rows", () => {
  it("select the innermost line that the record links, else the innermost", () => {
    const rows = rowsOf(code("k"), doc);
    expect(rows.map((r) => r.home)).toEqual(["", "triton:3", "triton:2", "triton:1"]);
    expect(rows.map((r) => r.number)).toEqual([1, 2, 3, 4]);
  });
  it("are headed by the kernel's name if there are several", () => {
    const rows = rowsOf(code("a", "b"), doc);
    expect(rows.filter((r) => r.number === null).map((r) => r.text)).toEqual(["// a", "// b"]);
    expect(rows[6]!.number).toBe(1);
  });
  it("are lit by any line that they come from", () => {
    const rows = rowsOf(code("k"), doc);
    expect(litRows(rows, new Set(["triton:1"]))).toEqual([1, 3]);
    expect(litRows(rows, new Set(["triton:3", "triton:2"]))).toEqual([1, 2]);
    expect(litRows(rows, new Set())).toEqual([]);
  });
  it("begin behind the directives", () => {
    const row = (...triton: string[]) => ({ text: "", triton, home: "", kind: "", number: 1 });
    expect(firstRow([row(), row(), row(), row("triton:1")])).toBe(2);
    expect([firstRow([row("triton:1")]), firstRow([row()]), firstRow([])]).toEqual([0, 0, 0]);
  });
  it("of an error are none", () => expect(rowsOf({ target: "sm_90", stage: "sass", error: { message: "no" } }, doc)).toEqual([]));
});

describe("walking", () => {
  it("goes to the next place, and around the ends", () => {
    expect([nextPlace([2, 5], -1, 1), nextPlace([2, 5], 2, 1), nextPlace([2, 5], 5, 1), nextPlace([2, 5], 4, -1), nextPlace([2, 5], 2, -1)]).toEqual([2, 5, 2, 2, 5]);
    expect(nextPlace([], 0, 1)).toBe(-1);
  });
});

describe("colours", () => {
  const kinds = (line: string, stage: string) => pieces(line, stage).filter((p) => p.text.trim()).map((p) => `${p.kind}:${p.text.trim()}`);
  it("of SASS", () => {
    expect(kinds("/*1240*/ @!P0 FSETP.NEU.AND P0, PT, R94, -0x1, PT ;", "sass")).toEqual(["c:/*1240*/", ":@!", "r:P0", "k:FSETP.NEU.AND", "r:P0", ":,", "r:PT", ":,", "r:R94", ":,", "n:-0x1", ":,", "r:PT", ":;"]);
  });
  it("of Triton IR", () => {
    expect(kinds("  %12 = tt.dot %1, %2 : tensor<64x64xf16, #blocked>", "ttgir").slice(0, 4)).toEqual(["r:%12", ":=", "k:tt.dot", "r:%1"]);
    expect(kinds('module attributes {"ttg.num-warps" = 4 : i32} {', "ttgir")).toContain('s:"ttg.num-warps"');
  });
  it("of LLVM IR and PTX", () => {
    expect(kinds("  %3 = fadd float %1, %2 ; sum", "llir")).toEqual(["r:%3", ":=", "k:fadd", ":float", "r:%1", ":,", "r:%2", "c:; sum"]);
    expect(kinds("\t@%p1 bra \t$L__BB0_4;", "ptx")).toEqual([":@", "r:%p1", "k:bra", "r:$L__BB0_4", ":;"]);
  });
  it("of AMDGCN", () => {
    expect(kinds("\tv_add_f32_e32 v1, v[2:3], s4 ; sum", "amdgcn")).toEqual(["k:v_add_f32_e32", "r:v1", ":,", "r:v[2:3]", ":,", "r:s4", "c:; sum"]);
  });
  it("leave labels and keep every character", () => {
    expect(kinds("attention_kernel:", "sass")).toEqual([":attention_kernel:"]);
    for (const [stage, line] of [["sass", "\t.headerflags\t@\"EF π 𝒙\""], ["llir", "define void @k(ptr %0) !dbg !5 {"], ["ttir", ""]] as const) expect(pieces(line, stage).map((p) => p.text).join("")).toBe(line);
  });
});

describe("resources", () => {
  it("say what limits, and that nothing is spilled", () => {
    expect(figures(resources).map((f) => f.text)).toEqual(["132 registers", "no spills", "56 KiB shared", "12 of 64 warps, limited by registers", "× 2 matrix", "no waits", "‖ 1 barriers", "↓ 4 loads", "no stores"]);
  });
  it("mark spills and a block that does not fit", () => {
    const bad = figures({ ...resources, local_bytes: 64, occupancy: { ...resources.occupancy, blocks: 0, limited_by: ["shared memory"] } }).filter((f) => f.bad);
    expect(bad.map((f) => f.text)).toEqual(["✗ 64 B spilled", "✗ does not fit: shared memory"]);
    expect(bad[0]!.title).toContain("1 spill store of 4 B");
  });
});

describe("marks", () => {
  it("are one per kind", () => {
    expect(["matrix", "wait", "barrier", "global load", "tile store", "spill load", "global to shared copy", "global atomic", "", "head"].map(markOf)).toEqual(["matrix", "wait", "barrier", "load", "store", "spill", "load", "load", "", ""]);
  });
});

describe("the drawn rows", () => {
  it("are those in sight and some around, whatever the length", () => {
    expect(windowOf(0, 10 * ROW, 5000)).toEqual([0, 30]);
    expect(windowOf(1000 * ROW, 10 * ROW, 5000)).toEqual([980, 1030]);
    expect(windowOf(5000 * ROW, 10 * ROW, 5000)).toEqual([4980, 5000]);
    expect(windowOf(9000 * ROW, 10 * ROW, 3)).toEqual([0, 3]);
  });
});
