import { describe, expect, it } from "vitest";
import { extents, sampled } from "./extents";
import type { OperatorRecord, TensorRecord } from "./record_types";

const q: TensorRecord = { name: "q", shape: [1, 2, 40, 8], dtype: "float16", sizes: ["", "", "n", ""] };
const mask: TensorRecord = { name: "mask", shape: [30, 40], dtype: "bool", sizes: ["m", "n"] };
const plain: TensorRecord = { name: "x", shape: [3, 4], dtype: "float16", sizes: [] };
const of = (inputs: TensorRecord[], outputs: TensorRecord[]) => ({ inputs, outputs }) as unknown as OperatorRecord;

describe("extents", () => {
  it("names the sizes that are known at the launch only", () => expect(extents(q)).toEqual(["1", "2", "n", "8"]));
  it("has numbers where all are static", () => expect(extents(plain)).toEqual(["3", "4"]));
});
describe("sampled", () => {
  it("gives each name once, with its number", () => expect(sampled(of([q, plain], [mask]))).toBe("n = 40, m = 30"));
  it("is empty where all are static", () => expect(sampled(of([plain], [plain]))).toBe(""));
});
