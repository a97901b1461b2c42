// Every key that is explained: those of panes, and those of the explorer itself.

import type { Key } from "./pane";
import { KEYS as OF_PANES } from "./registry";

/** Keys that belong to no pane. */
const GENERAL: Key[] = [
  { keys: ["S"], text: "story", explained: "show the story, or leave it to explore freely", order: 5 },
  { keys: ["[", "]"], text: "stop of the story before, and next", order: 10, more: true },
  { keys: ["X"], text: "explain", explained: "explain the line that has the focus or is selected: what it does, which step made it, its repair, the terms", order: 50 },
  { keys: ["?"], text: "help", explained: "this list", order: 90 },
  { keys: ["↑", "↓"], text: "lines, steps or nodes, in the pane that has the focus", order: 20, more: true },
  { keys: ["F"], text: "fold or unfold the loop around the line (with Shift, all loops of the pane), or in the list of steps the group of the step", order: 25, more: true },
  { keys: ["Enter"], text: "select the line or node, and highlight what belongs to it in every pane; with Shift, add to the selection", order: 30, more: true },
  { keys: ["Z", "Y"], text: "back to what was shown before, and forward again: step, selection, panes, folds", order: 45, more: true },
  { keys: ["Esc"], text: "clear the selection, leave a comparison, close this", order: 40, more: true },
];
const ALL = [...OF_PANES.map(({ key }) => key), ...GENERAL].sort((a, b) => a.order - b.order);
/** Those of the footer. */
export const KEYS = ALL.filter((key) => !key.more);
/** Those that only the help explains. */
export const MORE = ALL.filter((key) => key.more);
