import { describe, expect, it } from "vitest";
import { flowsOf, inWords, scaleOf, widthOf } from "./memory_picture";
import { fixture } from "./fixture";
import { pairOf, pointsOf } from "./panes/traffic";
import { apart, decades, said, tflopsOf } from "./roofline";
import { type Counts, type Found, bytesText, formOf, gpuOf, opsText, ratioText, roof, runs, sizeText, usText } from "./traffic_data";

const counts = (read: number, operations: number, more: Partial<Counts> = {}): Counts => ({
  tensors: [{ name: "x", bytes: read, loaded: 2 * read, stored: 10, read, written: 100, exact: true }],
  stages: [{ name: "s_max", read, written: 50, moved: read, chip: 0, operations: operations / 2 }, { name: "s_sum", read: 0, written: 50, moved: 0, chip: 0, operations: operations / 2 }],
  read, written: 100, moved: 2 * read + 10, chip: 7, operations, products: 0, exact: true, ...more,
});
const gpu = { name: "h200", sm_count: 132, tflops: 1000, gbps: 4000, levels: [], counts: [0, 1, 1, 2, 2, 2], us: [1, 1, 1, 1, 1, 1], bound: ["bytes", "bytes", "bytes", "bytes", "bytes", "bytes"] };
const found: Found = {
  forms: [
    { name: "definition", step: 0, phase: "definition" },
    { name: "1. rolling_update, naive", step: 1, phase: "naive" },
    { name: "1. rolling_update, repair", step: 1, phase: "repair" },
    { name: "1. rolling_update, repaired", step: 1, phase: "repaired" },
    { name: "2. set_scope", step: 2, phase: "set_scope" },
    { name: "kernel", step: null, phase: "" },
  ],
  counts: [counts(9900, 1000), counts(4900, 1000), counts(900, 2000)],
  gpus: [{ ...gpu, name: "a100" }, gpu],
  here: "h200",
};

describe("the form of a stop", () => {
  const doc = fixture();
  const at = (key: string) => formOf(found, doc.byKey.get(key)!);

  it("is its phase, and the kernel for what comes of the loops", () => {
    expect(["0.definition", "1.naive", "1.repaired", "2.set_scope", "htile.0", "triton"].map(at)).toEqual([0, 1, 3, 4, 5, 5]);
  });

  it("of a refused step is the one before it", () => {
    expect(formOf(found, { ...doc.byKey.get("1.naive")!, refused: true, phase: "refused.naive" })).toBe(0);
    expect(formOf(found, { ...doc.byKey.get("2.set_scope")!, refused: true })).toBe(3);
  });

  it("is compared with the definition, which is compared with the last", () => {
    expect(pairOf(found, gpu, 1).map((x) => x.index)).toEqual([0, 1]);
    expect(pairOf(found, gpu, 0).map((x) => x.index)).toEqual([0, 5]);
  });
});

describe("numbers in words", () => {
  it("has three figures and a unit", () => {
    expect([0, 999, 1000, 10_485_760, 131_072, 1.225e12].map(bytesText)).toEqual(["0 B", "999 B", "1 kB", "10.5 MB", "131 kB", "1.23 TB"]);
    expect([232_448, 60 * 2 ** 20, 141e9].map(sizeText)).toEqual(["227 KiB", "60 MiB", "141 GB"]);
    expect([0, 68.5e6, 8.8e9].map(opsText)).toEqual(["0", "68.5 M", "8.8 G"]);
    expect([null, 0.109226, 2500, 8.3e-6, 0].map(usText)).toEqual(["–", "0.109 µs", "2.5 ms", "under 0.001 µs", "0 µs"]);
  });

  it("has the factor between two amounts, which is never 1", () => {
    expect(ratioText(200, 10)).toBe("÷ 20");
    expect(ratioText(10, 15)).toBe("× 1.5");
    expect(ratioText(100, 102)).toBe("+2 %");
    expect(ratioText(7, 7)).toBe("the same");
    expect(ratioText(0, 7)).toBe("from none");
    expect(ratioText(7, 0)).toBe("none left");
  });

  it("takes the GPU of the view, else the one here", () => {
    expect(gpuOf(found, "a100").name).toBe("a100");
    expect(gpuOf(found, "none").name).toBe("h200");
  });
});

describe("the picture of the memories", () => {
  const [before, after] = [flowsOf(found.counts[0]!), flowsOf(found.counts[2]!)];

  it("has one scale for each level, over all pictures", () => {
    const most = scaleOf([before, after]);
    expect(most.hbm).toEqual({ down: 9900, up: 9900 });
    expect(most.l2.down).toBe(19_800);
    expect(widthOf(before.hbm.down, most.hbm.down) / widthOf(after.hbm.down, most.hbm.down)).toBeCloseTo(11);
  });

  it("draws no arrow for nothing, and one that can be seen for little", () => {
    expect(widthOf(0, 100)).toBe(0);
    expect(widthOf(1, 1e9)).toBeGreaterThan(1);
  });

  it("is said in a sentence", () => {
    expect(inWords("Kernel", after)).toBe("Kernel: 900 B read from HBM and 100 B written to it; 1.8 kB loaded from the L2 cache and 10 B stored; 7 B read and written on chip.");
  });
});

describe("the roofline", () => {
  it("is the lower of both rates", () => {
    expect([roof(gpu, 1), roof(gpu, 250), roof(gpu, 1e4)]).toEqual([4, 1000, 1000]);
    expect(tflopsOf(gpu, { kind: "measured", name: "", read: 1, written: 0, operations: 5e6, us: 2 })).toBe(2.5);
  });

  it("has powers of ten around all points", () => {
    expect(decades([0.2, 30])).toEqual([-1, 2]);
    expect(decades([10, 10])).toEqual([1, 3]);
  });

  it("shows the definition and its stages, what is wrong once, the selected step and the kernel", () => {
    const points = (at: number) => pointsOf(found, gpu, at, (n) => n === 1 || n === 2).map((p) => `${p.kind} ${p.name}`);
    const always = ["stage s_max", "stage s_sum", "definition definition"];
    expect(points(5)).toEqual([...always, "wrong step 1: wrong", "kernel kernel"]);
    expect(points(1)).toEqual([...always, "wrong step 1: wrong", "kernel kernel"]);
    expect(points(3)).toEqual([...always, "wrong step 1: wrong", "here step 1", "kernel kernel"]);
  });

  it("says what bounds a point, and how near a measured one is", () => {
    const point = { kind: "kernel" as const, name: "kernel", read: 900, written: 100, operations: 2000 };
    expect(said(gpu, point)).toBe("kernel: 2 k operations, 1 kB of HBM, 2 operations per byte, at most 8 TFLOP/s, bound by bytes");
    expect(said(gpu, { ...point, us: 1e-3 })).toContain("2 TFLOP/s, 25 % of the roof");
  });

  it("moves labels apart that would cover each other", () => {
    expect(apart([{ x: 0, y: 5, width: 10 }, { x: 5, y: 6, width: 10 }, { x: 50, y: 5, width: 10 }], 12)).toEqual([5, 18, 5]);
  });
});

describe("the table of steps", () => {
  it("has one row for forms that count the same, the definition and the kernel apart", () => {
    expect(runs(gpu, found.forms)).toEqual([[0, 0], [1, 2], [3, 4], [5, 5]]);
  });
});
