// Extents of a tensor as people read them: names of sizes that are known at the launch only, numbers of the others.

import type { OperatorRecord, TensorRecord } from "./record_types";

export const extents = (tensor: TensorRecord): string[] => tensor.shape.map((extent, n) => tensor.sizes[n] || String(extent));

/** "n = 4096", the numbers of a sample that counts and pictures are for; "" if all sizes are static. */
export function sampled(operator: OperatorRecord): string {
  const found = new Map<string, number>();
  for (const { sizes, shape } of [...operator.inputs, ...operator.outputs]) sizes.forEach((name, n) => name && found.set(name, shape[n]!));
  return [...found].map(([name, extent]) => `${name} = ${extent}`).join(", ");
}
