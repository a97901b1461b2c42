// What was shown before, to go back to: the views that the person left, without sizes and what is typed into a field.

import type { View } from "./state";

/** Changes that come this soon after one another are one, in milliseconds. */
const TOGETHER = 400;
const MOST = 100;

export interface ViewHistory {
  /** The person changed `before`, at the time `now` in milliseconds. */
  left(before: View, after: View, now: number): void;
  /** The view to show instead of `view`; null if there is none. */
  undo(view: View): View | null;
  redo(view: View): View | null;
  undoable(): boolean;
  redoable(): boolean;
}

const seen = ({ sizes: _, search: __, iteration: ___, ...rest }: View): string => JSON.stringify(rest);

export function viewHistory(): ViewHistory {
  let past: View[] = [];
  let future: View[] = [];
  let last = -Infinity;
  const take = (from: View[], to: View[], view: View): View | null => {
    const found = from.pop();
    if (!found) return null;
    to.push(view);
    last = -Infinity;
    return { ...found, sizes: view.sizes, search: view.search, iteration: view.iteration };
  };
  return {
    left(before, after, now) {
      if (seen(before) === seen(after)) return;
      if (now - last > TOGETHER) past = [...past.slice(1 - MOST), before];
      future = [];
      last = now;
    },
    undo: (view) => take(past, future, view),
    redo: (view) => take(future, past, view),
    undoable: () => past.length > 0,
    redoable: () => future.length > 0,
  };
}
