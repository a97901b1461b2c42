import { expect, it } from "vitest";

import { valueOf } from "./panes/operator";

it("sends numbers of a field's kind alone", () => {
  const int = { kind: "int", optional: false } as const;
  expect(valueOf(int, " 4_096 ")).toBe(4096);
  expect(valueOf(int, "2.5")).toBeUndefined();
  expect(valueOf(int, "")).toBeUndefined();
  expect(valueOf(int, "1e999")).toBeUndefined();
  expect(valueOf({ kind: "int", optional: true }, "")).toBeNull();
  expect(valueOf({ kind: "number", optional: false }, "1e-6")).toBe(1e-6);
  expect(valueOf({ kind: "tensor", optional: false }, " float16[4, 8] ")).toBe("float16[4, 8]");
});
