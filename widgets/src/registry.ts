// The panes that there are, in order, and what the frame, the header and the keys read from their declarations.

import { FOUND } from "panes:found";
import type { Context, Pane } from "./context";
import { type PaneKind, inOrder } from "./pane";
import { sharedPlace } from "./shared_place";

/** Every pane: those of the rail, the left and the right column, each followed by the tabs of its place. */
export const PANES: readonly PaneKind[] = inOrder(FOUND);

/** The panes with a place of their own, which can be hidden. */
export const PLACES: readonly PaneKind[] = PANES.filter((kind) => "column" in kind.place);

/** The names of the places but for the rail: one of them always stays visible. */
export const LARGE: readonly string[] = PLACES.filter((kind) => "column" in kind.place && kind.place.column !== "rail").map((kind) => kind.id);

const tabsOf = (owner: PaneKind): PaneKind[] => PANES.filter((kind) => "tabOf" in kind.place && kind.place.tabOf === owner.id);

/** The panes of an explorer, by name, and what its frame holds: a pane, or the place that several share. */
export function makePanes(ctx: Context): { panes: Map<string, Pane>; places: Map<string, Pane> } {
  const panes = new Map(PANES.map((kind) => [kind.id, kind.make(ctx)]));
  const places = new Map(
    PLACES.map((owner) => {
      const tabs = tabsOf(owner);
      const own = panes.get(owner.id)!;
      return [owner.id, "shared" in owner.place ? sharedPlace(ctx, [owner, ...tabs].map((kind) => ({ kind, pane: panes.get(kind.id)! }))) : own];
    }),
  );
  return { panes, places };
}

/** The keys of all panes, in order. */
export const KEYS = PANES.flatMap((kind) => (kind.keys ?? []).map((key) => ({ kind, key })));

/** The rules of all panes. */
export const STYLE = PANES.map((kind) => kind.style ?? "").join("");
