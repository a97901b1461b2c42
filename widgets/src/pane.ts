// What a pane declares. Each file in panes/ exports one as `pane`; everything that lists panes reads its declaration:
// the frame, the menu of panes, the tabs, the header's buttons, the keys with their help, and the style sheet.

import type { Context, Pane } from "./context";
import type { View } from "./state";

/** Keys with what they do. A key without `press` is handled by whatever has the focus, and only explained. */
export interface Key<P extends Pane = Pane> {
  /** As the footer and the help show them. */
  keys: string[];
  text: string;
  /** The same in a sentence for the documentation, if `text` is too short for it. */
  explained?: string;
  /** Its place among the keys of all panes. */
  order: number;
  /** It is explained in the help only. */
  more?: true;
  /** What happens, by the name that a keyboard event has for the key; letters are lower case. */
  press?: Record<string, (ctx: Context, pane: P) => void>;
}

/** A place of its own in a column, or a tab of another pane's place. */
export type Place =
  | {
      column: "rail" | "left" | "right";
      /** Its share of the column's height. */
      weight?: number;
      /** A narrow page shows it always, not as one of its tabs. */
      stays?: true;
      /** Other panes may be tabs of its place. */
      shared?: true;
    }
  | { tabOf: string };

export interface PaneKind<P extends Pane = Pane> {
  /** Its name in saved views. */
  id: string;
  /** In menus and on tabs. */
  title: string;
  /** What it shows, in one sentence. */
  help: string;
  place: Place;
  /** Its rank in its column, or among the tabs of its place. */
  order: number;
  make(ctx: Context): P;
  /** Whether there is nothing to show: the pane gets as little room as it needs. */
  empty?(ctx: Context): boolean;
  /** Whether a tab, or a button in the header, is there at all. */
  available?(ctx: Context): boolean;
  /** Of a tab: it needs more room than its place has by itself. */
  roomy?: true;
  /** Of a tab: its column gets most of the width. */
  wide?: true;
  /** It is updated while it is hidden, too. */
  behind?: true;
  /** A button in the header that shows it; of a tab, that also leaves it again. */
  button?: { label: string; title: string };
  keys?: readonly Key<P>[];
  /** Rules of its own, behind those of style.css. Selectors begin with ".nx". */
  style?: string;
}

/** A pane's declaration; only its own code knows what its `make` returns. */
export const definePane = <P extends Pane>(kind: PaneKind<P>): PaneKind => kind as unknown as PaneKind;

const COLUMNS = ["rail", "left", "right"] as const;

/** The panes by column, then by order, each followed by the tabs of its place.

Throws an Error if two panes have one name, one rank or one key, or if a tab names a place that is not shared. */
export function inOrder(found: readonly PaneKind[]): PaneKind[] {
  const taken = new Map<string, string>();
  const claim = (what: string, by: string) => {
    if (taken.has(what)) throw new Error(`panes ${taken.get(what)} and ${by} have one ${what}`);
    taken.set(what, by);
  };
  for (const kind of found) {
    claim(`name ${kind.id}`, kind.id);
    claim(`rank ${kind.order} in ${"column" in kind.place ? `column ${kind.place.column}` : `place ${kind.place.tabOf}`}`, kind.id);
    for (const key of kind.keys ?? []) {
      claim(`order ${key.order} of keys ${key.more ? "in the help" : "in the footer"}`, kind.id);
      for (const name of Object.keys(key.press ?? {})) claim(`key ${name}`, kind.id);
    }
  }
  const sorted = [...found].sort((a, b) => a.order - b.order);
  const tabs = (of: PaneKind) => sorted.filter((kind) => "tabOf" in kind.place && kind.place.tabOf === of.id);
  const owners = COLUMNS.flatMap((column) => sorted.filter((kind) => "column" in kind.place && kind.place.column === column));
  for (const kind of found)
    if ("tabOf" in kind.place) {
      const { tabOf } = kind.place;
      if (!owners.some((owner) => owner.id === tabOf && "shared" in owner.place)) throw new Error(`pane ${kind.id} is a tab of ${tabOf}, which is no shared place`);
    }
  return owners.flatMap((owner) => [owner, ...tabs(owner)]);
}

/** Whether the pane is shown in its column, or chosen in its place. */
export const isUp = (view: View, kind: PaneKind): boolean => ("tabOf" in kind.place ? view.panes[kind.place.tabOf] === kind.id : !view.hidden.includes(kind.id));

/** Shows the pane; if it is a tab that is shown already, its place shows its first tab again. */
export function bringUp(ctx: Context, kind: PaneKind): void {
  const slot = "tabOf" in kind.place ? kind.place.tabOf : kind.id;
  const on = isUp(ctx.view, kind) && !ctx.view.hidden.includes(slot);
  ctx.dispatch({ type: "show", slot });
  ctx.dispatch({ type: "tab", slot: "narrow", tab: slot });
  if ("tabOf" in kind.place) ctx.dispatch({ type: "tab", slot, tab: on ? slot : kind.id });
}
