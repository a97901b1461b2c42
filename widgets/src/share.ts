// Step and selection in the address of an exported page, so that a link opens there and Back and Forward walk through
// what was seen. In a notebook the address belongs to the notebook, and this is not used.

import { debounce } from "./dom";
import type { Doc } from "./record";
import { type View, stopOf } from "./state";

/** What the address says of one explorer. */
export interface Shared {
  /** The key of a stop. */
  step: string;
  selection: string[];
}

/** The parts of an address behind "#". The first explorer of a page has "step" and "select", the second "2.step", … */
const names = (n: number): { step: string; select: string } => (n === 1 ? { step: "step", select: "select" } : { step: `${n}.step`, select: `${n}.select` });
const parts = (hash: string): [string, string][] =>
  hash.replace(/^#/, "").split("&").filter(Boolean).map((part) => {
    const at = part.indexOf("=");
    return at < 0 ? [part, ""] : [part.slice(0, at), part.slice(at + 1)];
  });
const decoded = (text: string): string | null => {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
};
/** Ids as they are but for what ends one in an address. */
const encoded = (text: string): string => encodeURIComponent(text).replaceAll("%3A", ":").replaceAll("%40", "@").replaceAll("%2F", "/");

/** What an address says of the n-th explorer; null if it says nothing. */
export function readHash(hash: string, n: number): Shared | null {
  const { step, select } = names(n);
  const found = new Map(parts(hash));
  if (!found.has(step)) return null;
  const ids = (found.get(select) ?? "").split(",").map(decoded).filter((id): id is string => Boolean(id));
  return { step: decoded(found.get(step)!) ?? "", selection: ids.slice(0, 1000) };
}

/** The address with this said of the n-th explorer; what it says of others stays. */
export function writeHash(hash: string, n: number, { step, selection }: Shared): string {
  const own = names(n);
  const others = parts(hash).filter(([name]) => name !== own.step && name !== own.select).map(([name, value]) => (value ? `${name}=${value}` : name));
  const mine = [`${own.step}=${encoded(step)}`, ...(selection.length ? [`${own.select}=${selection.map(encoded).join(",")}`] : [])];
  return `#${[...others, ...mine].join("&")}`;
}

/** The view at what an address says; the same view if it names no stop of the record. */
export function viewAt(view: View, shared: Shared | null, doc: Doc): View {
  const stop = shared && doc.byKey.get(shared.step);
  return stop ? { ...view, step: stop.step, phase: stop.phase, selection: shared.selection } : view;
}

const COUNT = Symbol.for("neptune_lab explorers with an address");

export interface Address {
  /** The view that the page opens with. */
  open(view: View, doc: Doc): View;
  /** The view has changed. */
  follow(view: View, doc: Doc): void;
  destroy(): void;
}

/** Keeps the page's address and the view together. `go` shows a view that an address names. */
export function address(go: (change: (view: View, doc: Doc) => View) => void): Address {
  const page = globalThis as unknown as Record<symbol, Set<number>>;
  const taken = (page[COUNT] ??= new Set());
  let n = 1;
  while (taken.has(n)) n++;
  taken.add(n);
  let first: Shared = { step: "", selection: [] };
  let last = "";
  const said = (view: View, doc: Doc): Shared => ({ step: stopOf(view, doc).key, selection: view.selection.filter((id) => !id.startsWith("cell:")) });
  /** Whether the last key is being held, and had moved before. */
  let held = false;
  const key = (e: KeyboardEvent) => (held = e.repeat);
  const pointer = () => (held = false);
  const put = (view: View, doc: Doc, push: boolean) => {
    const now = said(view, doc);
    if (JSON.stringify(now) === last) return;
    last = JSON.stringify(now);
    try {
      history[push ? "pushState" : "replaceState"](history.state, "", writeHash(location.hash, n, now));
    } catch {
      // A page inside a frame that has no address of its own.
    }
  };
  const write = debounce((view: View, doc: Doc) => put(view, doc, false), 250);
  /** A step is a place to come back to, at once; what is lit there belongs to it. The steps of a key that is held are one. */
  const follow = (view: View, doc: Doc) => {
    if ((JSON.parse(last) as Shared).step === said(view, doc).step) return write(view, doc);
    write.cancel();
    put(view, doc, !held);
  };
  const read = () => {
    write.cancel();
    const there = readHash(location.hash, n) ?? first;
    go((view, doc) => {
      const next = viewAt(view, there, doc);
      // The address that names it is there already, in whatever spelling: it is not written again.
      last = JSON.stringify(said(next, doc));
      return next;
    });
  };
  const leave = () => write.flush();
  addEventListener("popstate", read);
  addEventListener("pagehide", leave);
  addEventListener("keydown", key, true);
  addEventListener("pointerdown", pointer, true);
  return {
    open(view, doc) {
      first = said(view, doc);
      const opened = viewAt(view, readHash(location.hash, n), doc);
      last = JSON.stringify(said(opened, doc));
      return opened;
    },
    follow,
    destroy() {
      write.cancel();
      taken.delete(n);
      removeEventListener("popstate", read);
      removeEventListener("pagehide", leave);
      removeEventListener("keydown", key, true);
      removeEventListener("pointerdown", pointer, true);
    },
  };
}
