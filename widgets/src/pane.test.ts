import { describe, expect, it } from "vitest";
import type { Context } from "./context";
import { fixture } from "./fixture";
import { type PaneKind, bringUp, definePane, inOrder } from "./pane";
import { KEYS, LARGE, PANES, PLACES } from "./registry";
import { type Action, EMPTY, reduce } from "./state";

declare global {
  interface ImportMeta {
    glob(pattern: string, options?: object): Record<string, unknown>;
  }
}

/** Panes that the explorer had first; a new one stands somewhere between them. */
const FIRST = ["rail", "program", "tags", "graph", "schedule", "timing", "derivation", "code"];
const first = (names: readonly string[]) => names.filter((name) => FIRST.includes(name));
const ids = (kinds: readonly PaneKind[]) => kinds.map((kind) => kind.id);
const named = (id: string, more: Partial<PaneKind> = {}): PaneKind =>
  definePane({ id, title: id, help: "Nothing.", place: { column: "right" }, order: 1, make: () => ({ el: null as unknown as HTMLElement, update: () => undefined }), ...more });

describe("the registry of panes", () => {
  it("has every file of panes/", () => {
    const files = Object.keys(import.meta.glob("./panes/*.ts")).filter((name) => !name.endsWith(".test.ts"));
    expect(ids(PANES).sort()).toEqual(files.map((name) => name.replace(/^.*\/|\.ts$/g, "")).sort());
  });

  it("lists panes by column and order, tabs behind the first pane of their place", () => {
    expect(first(ids(PANES))).toEqual(FIRST);
    expect(first(ids(PLACES))).toEqual(["rail", "program", "tags", "graph", "derivation", "code"]);
    expect(first(LARGE)).toEqual(["program", "tags", "graph", "derivation", "code"]);
  });

  it("keeps the styles of a pane from the others", () => {
    const files = import.meta.glob("./panes/*.ts", { query: "?raw", import: "default", eager: true }) as Record<string, string>;
    const taken: string[] = [];
    for (const [file, text] of Object.entries(files)) {
      // A rule for a class alone, such as ".nx .told {".
      const own = [...text.matchAll(/^\.nx \.([\w-]+) \{/gm)].map((m) => m[1]!);
      for (const [other, theirs] of Object.entries(files))
        if (other !== file)
          for (const name of own) if (new RegExp(`class: [^,}]*["\`](?:[\\w-]+ )*${name}[ "\`]`).test(theirs)) taken.push(`.${name} of ${file} in ${other}`);
    }
    expect(taken).toEqual([]);
  });

  it("says of each what it shows", () => {
    for (const kind of PANES) {
      expect(kind.help).toMatch(/^[A-Z].*\.$/);
      expect(kind.title).toMatch(/^[A-Z][a-z]+$/);
    }
  });

  it("has the keys of the footer in the order of the help", () => {
    const shown = KEYS.filter(({ kind, key }) => FIRST.includes(kind.id) && !key.more).sort((a, b) => a.key.order - b.key.order);
    expect(shown.map(({ key }) => key.keys.join(" "))).toEqual(["← →", "J K", "/", "D", "E"]);
  });

  it("refuses what two panes claim, and a tab of no place", () => {
    const key = { keys: ["X"], text: "", order: 1, press: { x: () => undefined } };
    expect(() => inOrder([named("a"), named("a", { order: 2 })])).toThrow("panes a and a have one name a");
    expect(() => inOrder([named("a"), named("b")])).toThrow("panes a and b have one rank 1 in column right");
    expect(() => inOrder([named("a", { keys: [key] }), named("b", { order: 2, keys: [{ ...key, order: 2 }] })])).toThrow("panes a and b have one key x");
    expect(() => inOrder([named("a"), named("b", { place: { tabOf: "a" } })])).toThrow("pane b is a tab of a, which is no shared place");
    const shared = named("a", { place: { column: "left", shared: true } });
    expect(ids(inOrder([named("c", { place: { tabOf: "a" }, order: 2 }), named("z"), named("b", { place: { tabOf: "a" } }), shared]))).toEqual(["a", "b", "c", "z"]);
  });
});

describe("bringing a pane up", () => {
  const doc = fixture();
  /** A context with a view alone, and what was dispatched. */
  const context = () => {
    const ctx = { view: { ...EMPTY, hidden: ["graph"] }, dispatch: (action: Action) => void (ctx.view = reduce(ctx.view, action, doc)) };
    return ctx as unknown as Context;
  };
  const tab = named("schedule", { place: { tabOf: "graph" } });

  it("shows its place and chooses it, and the second time the first tab", () => {
    const ctx = context();
    bringUp(ctx, tab);
    expect([ctx.view.hidden, ctx.view.panes]).toEqual([[], { narrow: "graph", graph: "schedule" }]);
    bringUp(ctx, tab);
    expect(ctx.view.panes.graph).toBe("graph");
  });

  it("shows a pane of a column", () => {
    const ctx = context();
    bringUp(ctx, named("graph"));
    expect([ctx.view.hidden, ctx.view.panes]).toEqual([[], { narrow: "graph" }]);
  });
});
