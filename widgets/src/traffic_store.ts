// What Python counted for the record that is shown: from the payload of a saved page, otherwise asked for once.

import type { Context } from "./context";
import type { Doc } from "./record";
import { AGAIN } from "./status";
import type { Found } from "./traffic_data";

export interface TrafficStore {
  /** The counts; null while they are awaited, or if there are none: then `note` says why. */
  get(): Found | null;
  note(): string;
}

const isFound = (x: unknown): x is Found => typeof x === "object" && x !== null && Array.isArray((x as Found).forms);
const stores = new WeakMap<Context, TrafficStore>();

/** The store that the panes of an explorer share. */
export function trafficOf(ctx: Context): TrafficStore {
  let store = stores.get(ctx);
  if (!store) stores.set(ctx, (store = make(ctx)));
  return store;
}

function make(ctx: Context): TrafficStore {
  let of: Doc | null = null;
  let found: Found | null = null;
  let seq = 0;
  let note = "";
  ctx.onAnswer((m) => {
    if (m.seq !== seq || (m.kind !== "traffic" && m.kind !== "failed")) return;
    seq = 0;
    if (isFound(m.traffic)) found = m.traffic;
    else note = String(m.message ?? "Python answered without numbers.");
    ctx.refresh();
  });
  return {
    get() {
      if (of === ctx.doc) return found;
      of = ctx.doc;
      const given = ctx.payload.panes.traffic;
      found = isFound(given) ? given : null;
      note = found ? "" : given ? String((given as { error?: unknown }).error ?? "") : "";
      if (found || note) return found;
      seq = ctx.send({ kind: "traffic" });
      note = seq ? "Counting bytes and operations …" : ctx.payload.again ? `This record has no traffic. ${AGAIN}` : "This record has no traffic: it was saved without it. Open the operator in a notebook, or export the page again.";
      return null;
    },
    note: () => note,
  };
}
