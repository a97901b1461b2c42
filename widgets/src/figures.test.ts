import { describe, expect, it } from "vitest";

import { plainColor, titleLines } from "./figures";

describe("colours in a saved figure", () => {
  it("are those that every reader of SVG knows", () => {
    expect(plainColor("color(srgb 1 0.5 0)")).toBe("rgb(255, 128, 0)");
    expect(plainColor("color(srgb 0.2 0 1.02 / 0.25)")).toBe("rgba(51, 0, 255, 0.25)");
    expect(plainColor("rgb(1, 2, 3)")).toBe("rgb(1, 2, 3)");
    expect(plainColor("none")).toBe("none");
  });
});

describe("the title over a saved drawing", () => {
  it("is broken between words where it is long", () => {
    expect(titleLines("")).toEqual([]);
    expect(titleLines("Kernel: 1 kernel, 524 kB of HBM")).toEqual(["Kernel: 1 kernel, 524 kB of HBM"]);
    const long = "Step 9: rolling_update, naive: 2 kernels, 1.06 MB of HBM";
    expect(titleLines(long).join(" ")).toBe(long);
    for (const line of titleLines(long)) expect(line.length).toBeLessThanOrEqual(40);
  });
});
